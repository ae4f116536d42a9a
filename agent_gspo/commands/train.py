"""Trains a team: python launch/train.py --config=configs/quickstart.py --workdir=runs/quickstart

Any field can be set from here: --config.budget.lambda_tok=0.002. The same command goes on
where it was stopped. Where a run became unstable, it also goes on with another learning rate (or
what else `checkpoints.CHANGEABLE` names): add --config.learner.learning_rate=1e-6
--allow_changes=learner.learning_rate; config.json then tells from which step on.

--plan prints what the run needs of each device (memory, positions and FLOPs of a step) and reads no
weights; every run begins with the same lines, and is refused where it cannot fit. --dry_run adds
what the whole run costs: questions, positions and time, at the rate that is measured here.

On a TPU pod slice and under Slurm the same command, started once a host, is one run; elsewhere add
--coordinator=HOST:PORT --num_processes=N --process_id=0 (to N - 1). All need the same --workdir.
"""

from absl import flags

from agent_gspo.commands import command

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run; made if it does not exist.')
_COORDINATOR = flags.DEFINE_string(
  'coordinator', '', 'Of several processes: address of the first one, host:port.'
)
_PROCESSES = flags.DEFINE_integer('num_processes', 0, 'How many processes train together.')
_PROCESS = flags.DEFINE_integer('process_id', -1, 'Which of them this one is, from 0.')
_HEARTBEAT = flags.DEFINE_integer(
  'heartbeat_timeout_s', 100, 'Seconds without a sign after which a process counts as dead.'
)
_PLAN = flags.DEFINE_bool(
  'plan', False, 'Print what the run needs of each device, and end; no weights are read.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'The plan, and questions, positions and time of the whole run; and end.'
)
_CHANGES = flags.DEFINE_list(
  'allow_changes', [], 'Fields that may have another value than in the run so far.'
)


def main() -> None:
  """Runs the command."""
  config = command.load_config(_CONFIG)
  planned = _PLAN.value or _DRY_RUN.value
  if not _WORKDIR.value and not planned:
    raise ValueError('--workdir is missing; name a folder for the run.')
  from agent_gspo.sharding import hosts
  from agent_gspo.training import interruption, loop

  hosts.connect(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _HEARTBEAT.value)
  if planned:
    loop.print_plan(config, whole=_DRY_RUN.value)
  else:
    loop.train(config, str(_WORKDIR.value), _CHANGES.value)
    if hosts.count() > 1:
      interruption.ignore()  # one that died while it waits for the others would fail them all


def cli() -> None:
  """Parses the flags and runs the command."""
  command.run(main)


if __name__ == '__main__':
  cli()
