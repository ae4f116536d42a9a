"""Steps an hour with rollouts ahead of the learner, in an environment that answers slowly.

    python benchmarks/rollouts_ahead.py

Twelve agents write at once in 5 x 5 mazes whose `act` takes 50 ms: 12 episodes of two rounds a
step, a decoder of 3 layers from scratch. Seconds are medians of the steps after the fifth, since
the first ones compile. Of several devices half sample while the others learn, but without rollouts
ahead all do both (XLA_FLAGS=--xla_force_host_platform_device_count=8 on CPUs). Learner and actors
are busy for their share of the steps' seconds. Prints a markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Mapping

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import numpy as np

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


@dataclasses.dataclass(eq=False, kw_only=True)
class SlowMaze(HalfMaze):
  """Maze whose `act` takes a while, as a web page or a simulator does.

  Attributes:
    delay: Seconds of an action.
    jitter: Whether an action takes any time up to `delay`, at random.
  """

  name = 'slow_maze'

  delay: float = option(0.05, least=0)
  jitter: bool = False

  def act(self, state: Piece, texts: Mapping[int, str]) -> tuple[Piece, float, bool]:
    """Walks after a pause."""
    time.sleep(self.delay * (random.SystemRandom().random() if self.jitter else 1))
    return super().act(state, texts)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--steps', type=int, default=20, help='steps of a run')
  options = parser.parse_args()
  host_memory.keep()  # as all commands do
  command.use_compilation_cache()
  print(
    '| `rollout.ahead` | actors | s a step | of them rollout | steps an hour | staleness | '
    'learner busy | actors busy |'
  )
  print('| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |')
  devices = jax.device_count()
  for ahead in (0, 1, 2):
    config, actors = half_maze.get_config(), devices // 2 if ahead else 0
    fields = {**_FIELDS, 'steps': options.steps, 'rollout.ahead': ahead, 'mesh.actors': actors}
    if devices > 1:
      fields |= {'mesh.data': -1, 'learner.micro_batch_size': devices}
    with config.unlocked():
      config.update_from_flattened_dict(fields)
    with tempfile.TemporaryDirectory() as folder:
      with contextlib.redirect_stdout(io.StringIO()):
        train(config.to_dict(), folder)
      steps = list(json_lines.iterate(pathlib.Path(folder) / 'metrics.jsonl'))[_SKIPPED:]
    median = lambda name, of=steps: np.median([x.get(name, 0) for x in of])
    rollout = 'time/wait_s' if ahead else 'time/rollout_s'
    step, wait, stale = map(median, ('time/step_s', rollout, 'rollout/staleness'))
    total = lambda name, of=steps: sum(x[name] for x in of)
    sampled = total('time/actors_s' if ahead else rollout) / total('time/step_s')
    learned = 1 - total(rollout) / total('time/step_s')
    print(
      f'| {ahead} | {actors} | {step:.2f} | {wait:.2f} | {3600 / step:,.0f} | {stale:.1f} | '
      f'{learned:.0%} | {sampled:.0%} |',
      flush=True,
    )


if __name__ == '__main__':
  main()
