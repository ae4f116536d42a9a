"""Trains a team: python launch/train.py --config=configs/quickstart.py --workdir=runs/quickstart

Any field can be set from here: --config.budget.lambda_tok=0.002. The same command goes on
where it was stopped.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from absl import flags

from launch import command

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run; made if it does not exist.')


def main() -> None:
  """Runs the command."""
  config = command.load_config(_CONFIG)
  if not _WORKDIR.value:
    raise ValueError('--workdir is missing; name a folder for the run.')
  from agent_gspo.training.loop import train

  train(config, _WORKDIR.value)


if __name__ == '__main__':
  command.run(main)
