"""Trains a team: python launch/train.py --config=configs/quickstart.py --workdir=runs/quickstart

Any field can be set from here: --config.budget.lambda_tok=0.002. The same command resumes a stopped
run. An unstable run can resume with another learning rate (or another field of
`config.compatibility.CHANGEABLE`): add --config.learner.learning_rate=1e-6
--allow_changes=learner.learning_rate; config.json records the step of the change.

--plan prints memory, positions and FLOPs of a step for each device, and reads no weights; every run
prints the same lines first, and is refused if it cannot fit. --plan_for=tpu (or
gpu, cpu) plans for such devices elsewhere. --dry_run adds the cost of the whole run: questions,
positions and time, at a rate measured here. --print_config prints every field with its value and
meaning, and which ones differ from the defaults.

On a TPU pod slice and under Slurm the same command, started once per host, is one run; elsewhere
add --coordinator=HOST:PORT --num_processes=N --process_id=0 (to N - 1). All need the same command
and --workdir, and the same code and packages.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from absl import flags

from agent_gspo import provenance
from agent_gspo.apps.commands import command, config_flag
from agent_gspo.config import fields
from agent_gspo.sharding import partners, places
from agent_gspo.training import interruption

_CONFIG = config_flag.define()
_WORKDIR = command.define_folder('workdir', None, 'Folder of the run; made if it does not exist.')
_COORDINATOR = flags.DEFINE_string('coordinator', '', 'Address of process 0 of several, host:port.')
_PROCESSES = flags.DEFINE_integer('num_processes', 0, 'Number of processes of the run.')
_PROCESS = flags.DEFINE_integer('process_id', -1, 'Index of this process, from 0.')
_START = flags.DEFINE_float('start_timeout_s', 60.0, 'Seconds to wait for missing processes.')
_HEARTBEAT = flags.DEFINE_integer(
  'heartbeat_timeout_s', 100, 'Seconds without a heartbeat after which a process counts as dead.'
)
_PLAN = flags.DEFINE_bool(
  'plan', False, 'Print what a step needs of each device, and end; no weights are read.'
)
_PLAN_FOR = flags.DEFINE_enum(
  'plan_for', None, ['cpu', 'gpu', 'tpu'], 'Kind of devices to plan for; by default those here.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Print the plan, and questions, positions and time of the whole run, and end.'
)
_PRINT = flags.DEFINE_bool(
  'print_config', False, 'Print every field with its value and meaning, and end.'
)
_CHANGES = flags.DEFINE_list('allow_changes', [], 'Fields that may differ from the run so far.')


def main() -> None:
  """Runs the command."""
  config = config_flag.load(_CONFIG)
  if _PRINT.value:
    from agent_gspo.config import check

    print(fields.described(config, check.resolve(config).to_dict()))
    return
  planned = _PLAN.value or _DRY_RUN.value or _PLAN_FOR.value is not None
  if not _WORKDIR.value and not planned:
    raise ValueError('--workdir is missing; name a folder for the run.')
  who = _COORDINATOR.value, _PROCESSES.value, _PROCESS.value
  place = places.find(*who)
  if place is not None and place.processes > 1:
    partners.meet(place, _facts(config), _START.value)  # before the slow imports
  from agent_gspo.apps.reporting.progress import Progress
  from agent_gspo.ops import device_kind
  from agent_gspo.sharding import hosts
  from agent_gspo.training import loop

  hosts.connect(*who, _HEARTBEAT.value)
  if planned:
    with device_kind.planned_for(_PLAN_FOR.value or ''):
      loop.print_plan(config, whole=_DRY_RUN.value)
  else:
    loop.train(config, str(_WORKDIR.value), _CHANGES.value, Progress)
  partners.leave()
  if hosts.count() > 1:
    interruption.ignore()  # a process killed while waiting for the others would fail them all


def _facts(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values that must be equal in all processes of a run."""
  same: dict[str, Any] = {
    f'--{flag.name}': flag.value for flag in (_PLAN, _PLAN_FOR, _DRY_RUN, _CHANGES)
  }
  same['--workdir'] = os.path.abspath(_WORKDIR.value) if _WORKDIR.value else ''
  return {**provenance.software(), **same, **config}


def _place() -> places.Place | None:
  """Returns this process's place in the run from these flags alone, even if others are invalid."""
  own = flags.FlagValues()
  for holder in (_COORDINATOR, _PROCESSES, _PROCESS):
    own[holder.name] = flags.FLAGS[holder.name]
  own(sys.argv, known_only=True)
  if own.coordinator:
    return places.Place(own.coordinator, own.num_processes, own.process_id)
  return places.find()


def cli() -> None:
  """Parses the flags and runs the command; reports a failure to the other processes."""
  try:
    command.run(main)
  except BaseException as error:
    _tell_others(error)
    raise


def _tell_others(error: BaseException) -> None:
  """Reports the cause of this process's end to the others, if any; a failure ends them all."""
  status: Any = error.code if isinstance(error, SystemExit) else 1
  cause = error.__context__ if isinstance(error, SystemExit) else error
  problem = f'{type(cause).__name__}, see its own output'
  if isinstance(cause, ValueError | OSError | flags.Error):
    problem = str(cause)
  others = partners.met()
  if others is None:
    with contextlib.suppress(ValueError, flags.Error):
      place = _place()
      known = isinstance(cause, partners.PartnerError | KeyboardInterrupt)
      if place is not None and status and not known:
        partners.refuse(place, problem)
    return
  if others.has_left:
    return
  if cause is not None and cause.args == (interruption.TOGETHER,):
    others.leave()
    return
  if not isinstance(error, SystemExit):
    if first := others.cause():  # the failure elsewhere that caused this one
      print('error:', first, file=sys.stderr)
      problem, status = first, 2
    else:
      traceback.print_exception(error)
  others.leave(problem)
  partners.end_now(status if isinstance(status, int) and status else 2)


if __name__ == '__main__':
  cli()
