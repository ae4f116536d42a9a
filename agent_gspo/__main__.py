"""Runs a command: python -m agent_gspo train --config=tiny --workdir=runs/tiny"""

from __future__ import annotations

import importlib
import sys

import agent_gspo

_COMMANDS = ('train', 'sweep', 'report', 'compare', 'evaluate', 'ask', 'serve', 'export')


def main() -> None:
  """Runs the command that the first argument names."""
  name = sys.argv[1] if len(sys.argv) > 1 else '--help'
  if name == '--version':
    print(agent_gspo.__version__)
  elif name in _COMMANDS:
    del sys.argv[1]
    importlib.import_module(f'agent_gspo.apps.commands.{name}').cli()
  else:
    print(f'usage: python -m agent_gspo {{{",".join(_COMMANDS)}}} --help', file=sys.stderr)
    raise SystemExit(0 if name in ('--help', '-h') else 2)


if __name__ == '__main__':
  main()
