"""Counts the compilations of a run by step, and the cache hits of a second start.

    python benchmarks/compilations.py --config=configs/tiny.py --steps=50

Trains twice, each in its own process: with an empty compilation cache, then with the cache of the
first run. A program that a step requests from XLA counts, whether it is compiled or read from the
cache. Fields of the config can be set: --config.rollout.group_size=4. Prints a markdown table and
writes benchmarks/results/compilations_<config>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import common

_REQUEST = '/jax/compilation_cache/compile_requests_use_cache'
_HIT = '/jax/compilation_cache/cache_hits'
_FIGURES = 'AGENT_GSPO_COMPILATIONS'  # environment variable of a child: the file it writes


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--config', type=pathlib.Path, required=True)
  parser.add_argument('--steps', type=int, default=50)
  options, rest = parser.parse_known_args()
  overrides = [*common.check_overrides(rest), f'--config.steps={options.steps}']
  found = {}
  with tempfile.TemporaryDirectory() as scratch:
    for start in ('empty cache', 'second start'):
      workdir, file = pathlib.Path(scratch) / start.split()[0], pathlib.Path(scratch) / 'figures'
      settings = {_FIGURES: str(file), 'AGENT_GSPO_CACHE': f'{scratch}/cache'}
      command = [sys.executable, __file__, f'--config={options.config}', f'--workdir={workdir}']
      subprocess.run(
        [*command, *overrides],
        env={**os.environ, **settings},
        check=True,
        stdout=subprocess.DEVNULL,
      )
      found[start] = json.loads(file.read_text())
  head = ('start', 'programs asked for', 'of the cache', 'first step done, s', 'last step with one')
  rows = [
    (
      start,
      str(figures['requests']),
      str(figures['hits']),
      f'{figures["first_step_s"]:.0f}',
      str(max((i for i, n in enumerate(figures['of_step'], 1) if n), default=0)),
    )
    for start, figures in found.items()
  ]
  print(common.table(head, rows))
  name = f'compilations_{options.config.stem}'
  file = common.save(name, {'overrides': overrides, 'machine': common.machine(), **found})
  print(f'\nwrote {file.relative_to(common.ROOT)}')


def _child(file: pathlib.Path, start: float) -> None:
  """Runs the training command and records its compilations."""
  import jax

  from agent_gspo.apps.commands import command, train
  from agent_gspo.training import loop

  events = {_REQUEST: 0, _HIT: 0}
  of_step: list[int] = []
  figures = {'first_step_s': 0.0, 'of_step': of_step}

  def heard(event: str, **_) -> None:
    if event in events:
      events[event] += 1

  def step(*arguments, **named):
    before = events[_REQUEST]
    result = train_step(*arguments, **named)
    figures['first_step_s'] = figures['first_step_s'] or time.time() - start
    of_step.append(events[_REQUEST] - before)
    file.write_text(json.dumps({**figures, 'requests': events[_REQUEST], 'hits': events[_HIT]}))
    return result

  jax.monitoring.register_event_listener(heard)
  train_step, loop.train_step = loop.train_step, step
  command.run(train.main)


if __name__ == '__main__':
  if _FIGURES in os.environ:
    _child(pathlib.Path(os.environ[_FIGURES]), time.time())
  else:
    main()
