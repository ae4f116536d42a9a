"""Trains a team: python launch/train.py --config=configs/quickstart.py --workdir=runs/quickstart

Any field can be set from here: --config.budget.lambda_tok=0.002. The same command goes on
where it was stopped.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from absl import app, flags
from ml_collections import config_flags

from launch import command

_CONFIG = config_flags.DEFINE_config_file('config', None, 'Config file, see configs/.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run; made if it does not exist.')


def main(argv: list[str]) -> int:
  command.refuse_arguments(argv)
  with command.clear_errors():
    command.use_compilation_cache()
    from agent_gspo.training.loop import train

    train(_CONFIG.value.to_dict(), _WORKDIR.value)
  return 0


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  command.run(app, main)
