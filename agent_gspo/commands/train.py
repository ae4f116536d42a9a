"""Trains a team: python launch/train.py --config=configs/quickstart.py --workdir=runs/quickstart

Any field can be set from here: --config.budget.lambda_tok=0.002. The same command goes on
where it was stopped. Where a run became unstable, it also goes on with another learning rate (or
what else `checkpoints.CHANGEABLE` names): add --config.learner.learning_rate=1e-6
--allow_changes=learner.learning_rate; config.json then tells from which step on.
"""

from absl import flags

from agent_gspo.commands import command

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run; made if it does not exist.')
_CHANGES = flags.DEFINE_list(
  'allow_changes', [], 'Fields that may have another value than in the run so far.'
)


def main() -> None:
  """Runs the command."""
  config = command.load_config(_CONFIG)
  if not _WORKDIR.value:
    raise ValueError('--workdir is missing; name a folder for the run.')
  from agent_gspo.training.loop import train

  train(config, _WORKDIR.value, _CHANGES.value)


def cli() -> None:
  """Parses the flags and runs the command."""
  command.run(main)


if __name__ == '__main__':
  cli()
