"""Measures steps per hour with rollouts ahead of the learner, in a slow environment.

    python benchmarks/rollouts_ahead.py

Twelve agents write at once in 5 x 5 mazes whose `act` takes 50 ms, four episodes at a time, 12
episodes of two rounds per step; a decoder of 3 layers from scratch. Seconds are medians of steps
after the fifth, since the first ones compile. Of several devices half sample while the others
learn, but without rollouts ahead all do both (XLA_FLAGS=--xla_force_host_platform_device_count=8 on
CPUs). Busy shares are of the steps' seconds. Prints a markdown table.

With --trace=DIR JAX's profiler records the steps after the fifth with `rollout.ahead=1` (open it in
XProf); on CPUs the share of the time in which each device computes is printed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import io
import itertools
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import numpy as np
from jax.profiler import ProfileData

from agent_gspo.apps.commands import command
from agent_gspo.environments.half_maze import HalfMaze, Piece
from agent_gspo.options import option
from agent_gspo.training import host_memory
from agent_gspo.training.loop import train
from agent_gspo.workdir import json_lines
from configs import half_maze

_SKIPPED = 5  # steps that compile
_FIELDS = {
  'model.source': 'random:tiny',
  'task.name': 'benchmarks.rollouts_ahead:SlowMaze',
  'task.options.size': 5,
  'team.agents': ('guide',) * 11 + ('mover',),
  'team.max_message_tokens': 8,
  'team.topology': 'debate',
  'learner.pack_length': 384,
  'rollout.questions': 2,
  'rollout.group_size': 6,
  'reward.gate_accuracy': 0.01,
  'sft.steps': 0,
  'evaluation.questions': 1,
  'evaluation.every': 0,
  'checkpoint.every': 1000,
}
_OPTIMIZER = 'jit__applied'  # program of the optimizer's step


@dataclasses.dataclass(eq=False, kw_only=True)
class SlowMaze(HalfMaze):
  """Maze with a slow `act`, as with a web page or a simulator.

  Attributes:
    delay: Seconds of an action.
    jitter: Whether the time of an action is random, at most `delay`.
  """

  name = 'slow_maze'
  threads = 4

  delay: float = option(0.05, least=0)
  jitter: bool = False

  def act(self, state: Piece, texts: Mapping[int, str]) -> tuple[Piece, float, bool]:
    """Walks after a delay."""
    time.sleep(self.delay * (random.SystemRandom().random() if self.jitter else 1))
    return super().act(state, texts)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--steps', type=int, default=20, help='steps of a run')
  parser.add_argument('--trace', type=pathlib.Path, help='folder for a trace')
  options = parser.parse_args()
  if options.steps <= _SKIPPED:
    parser.error(f'--steps={options.steps} must be more than the {_SKIPPED} that compile')
  host_memory.keep()  # as all commands do
  command.use_compilation_cache()
  if options.trace:
    _trace(options.trace, options.steps)
  else:
    _table(options.steps)


def _table(count: int) -> None:
  """Prints the seconds of a step without rollouts ahead, and with one and two, by schedule."""
  print(
    '| `rollout.ahead` | schedule | actors | s per step | of them rollout | steps per hour | '
    'staleness | learner busy | actors busy |'
  )
  print('| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |')
  for ahead, schedule in ((0, 'fixed'), (1, 'fixed'), (2, 'fixed'), (1, 'free'), (2, 'free')):
    config = _config(ahead, count, schedule)
    with tempfile.TemporaryDirectory() as folder:
      _train(config, folder)
      steps = list(json_lines.iterate(pathlib.Path(folder) / 'metrics.jsonl'))[_SKIPPED:]
    median = lambda name, of=steps: np.median([x.get(name, 0) for x in of])
    rollout = 'time/wait_s' if ahead else 'time/rollout_s'
    step, wait, stale = map(median, ('time/step_s', rollout, 'rollout/staleness'))
    total = lambda name, of=steps: sum(x[name] for x in of)
    sampled = total('time/actors_s' if ahead else rollout) / total('time/step_s')
    learned = 1 - total(rollout) / total('time/step_s')
    print(
      f'| {ahead} | {schedule} | {config["mesh"]["actors"]} | {step:.2f} | {wait:.2f} | '
      f'{3600 / step:,.0f} | {stale:.1f} | {learned:.0%} | {sampled:.0%} |',
      flush=True,
    )


def _trace(folder: pathlib.Path, count: int) -> None:
  """Traces the later steps of a run and prints how busy its devices are."""
  config = _config(1, count)
  with tempfile.TemporaryDirectory() as workdir:
    _train({**config, 'steps': _SKIPPED}, workdir)
    quiet = jax.profiler.ProfileOptions()
    quiet.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=quiet):
      _train(config, workdir)
  found = list(_operations(folder))
  steps = [(start, end) for _, program, start, end in found if program == _OPTIMIZER]
  first, last = steps[0][0], steps[-1][1]
  print('| device | computes | programs |\n| ---: | ---: | --- |')
  for device in sorted({device for device, *_ in found}):
    spans: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    for place, program, start, end in found:
      if place == device and first <= start < last:
        spans[program].append((start, end))
    shares = {name: _covered(of) / (last - first) for name, of in spans.items()}
    most = sorted(shares, key=shares.__getitem__, reverse=True)[:3]
    told = ', '.join(f'{name} {shares[name]:.0%}' for name in most)
    share = _covered([*itertools.chain(*spans.values())]) / (last - first)
    print(f'| {device} | {share:.0%} | {told} |')


def _operations(folder: pathlib.Path) -> Iterator[tuple[int, str, float, float]]:
  """Yields device, program, start and end (ns) of each operation in a trace, by start."""
  (file,) = folder.glob('plugins/profile/*/*.xplane.pb')
  lines = (line for plane in ProfileData.from_file(str(file)).planes for line in plane.lines)
  events = sorted((e for line in lines for e in line.events), key=lambda e: e.start_ns)
  for event in events:
    told = dict(event.stats)
    if 'hlo_op' in told:
      yield int(told['device_ordinal']), str(told['hlo_module']), event.start_ns, event.end_ns


def _covered(spans: list[tuple[float, float]]) -> float:
  """Returns the length of a union of intervals."""
  total, until = 0.0, -np.inf
  for start, end in sorted(spans):
    total += max(0.0, end - max(start, until))
    until = max(until, end)
  return total


def _config(ahead: int, steps: int, schedule: str = 'fixed') -> dict[str, Any]:
  devices, config = jax.device_count(), half_maze.get_config()
  actors = devices // 2 if ahead else 0
  fields = {**_FIELDS, 'steps': steps, 'rollout.ahead': ahead, 'mesh.actors': actors}
  fields['rollout.schedule'] = schedule
  if devices > 1:
    fields |= {'mesh.data': -1, 'learner.micro_batch_size': devices}
  with config.unlocked():
    config.update_from_flattened_dict(fields)
  return config.to_dict()


def _train(config: dict[str, Any], workdir: str) -> None:
  with contextlib.redirect_stdout(io.StringIO()):
    train(config, workdir)


if __name__ == '__main__':
  main()
