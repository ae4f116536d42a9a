"""Runs the command of agent_gspo/apps/commands/evaluate.py."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.apps.commands.evaluate import cli

if __name__ == '__main__':
  cli()
