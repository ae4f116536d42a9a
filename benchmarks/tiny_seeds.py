"""What configs/tiny.py learns, over seeds, with its price of a token and without one.

    python benchmarks/tiny_seeds.py --workdir=runs/tiny_seeds --seeds=0,1,2

Runs that are complete are not run again, so the same command goes on where it was stopped.
Fields of the config can be set: --config.steps=2. Prints a markdown table (mean over seeds,
lowest and highest in brackets), writes benchmarks/results/tiny_seeds.json and the learning
curves (--figure, docs/images/tiny.png).
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.reporting import json_lines, plots, records
from agent_gspo.training import sweep
from benchmarks import common

_CONFIG = common.ROOT / 'configs' / 'tiny.py'
_SECONDS = 'benchmark_seconds.jsonl'
_FREE = ('--config.budget.mode=fixed', '--config.budget.lambda_tok=0.0')
_MEASURES = (  # name, key of eval.jsonl, scale, decimals
  ('accuracy, %', 'task/accuracy', 100, 1),
  ('tokens written a question', 'tokens/written_per_question', 1, 1),
  ('silent with a relevant note, %', 'comm/silence_rate_relevant', 100, 1),
  ('silent with an irrelevant note, %', 'comm/silence_rate_irrelevant', 100, 1),
)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--workdir', type=pathlib.Path, required=True, help='folder of the runs')
  parser.add_argument('--seeds', default='0,1,2', help='comma between them')
  parser.add_argument(
    '--figure', type=pathlib.Path, default=common.ROOT / 'docs' / 'images' / 'tiny.png'
  )
  options, rest = parser.parse_known_args()
  overrides = common.check_overrides(rest)
  seeds = [int(seed) for seed in options.seeds.split(',')]
  price = common.field(_CONFIG, overrides, 'budget.lambda_tok')
  steps = common.field(_CONFIG, overrides, 'steps')
  if not price:
    parser.error('budget.lambda_tok of the config is 0: there is nothing to compare with')

  settings = {'price 0': _FREE, f'price {price:g}': ()}
  workdirs = {
    name: [options.workdir / f'{name.replace(" ", "_")}_seed_{seed}' for seed in seeds]
    for name in settings
  }
  for i, seed in enumerate(seeds):
    for name, fields in settings.items():
      workdir = workdirs[name][i]
      if _trained(workdir, steps) is None:
        print(f'== {name}, seed {seed}', flush=True)
        _run(workdir, [*overrides, *fields, f'--config.seed={seed}'])

  figures = {
    'config': _CONFIG.name,
    'overrides': overrides,
    'seeds': seeds,
    'machine': common.machine(),
    'settings': {name: _figures(dirs, steps) for name, dirs in workdirs.items()},
  }
  print(_report(figures['settings']))
  file = common.save('tiny_seeds', figures)
  picture = plots.learning_curves(workdirs, options.figure, smoothing=5)
  print(f'\nwrote {file.relative_to(common.ROOT)} and {picture}')


def _run(workdir: pathlib.Path, overrides: Sequence[str]) -> None:
  start = time.monotonic()
  try:
    common.train(_CONFIG, workdir, overrides)
  finally:
    if workdir.is_dir():  # one line for each time that the run was taken up
      with (workdir / _SECONDS).open('a', encoding='utf-8') as file:
        file.write(f'{{"seconds": {time.monotonic() - start:.1f}}}\n')


def _trained(workdir: pathlib.Path, steps: int) -> dict[str, Any] | None:
  """The closing evaluation of a run of so many steps, None if it has not got there."""
  return _evaluation(workdir, 'trained', steps)


def _evaluation(workdir: pathlib.Path, label: str, step: int) -> dict[str, Any] | None:
  found = json_lines.iterate(workdir / records.EVALUATIONS)
  return next((r for r in found if (r.get('label'), r.get('step')) == (label, step)), None)


def _figures(workdirs: Sequence[pathlib.Path], steps: int) -> dict[str, list[Any]]:
  """Of each measure and the time, one value a seed; measures as [before, after]."""
  pairs = [(_evaluation(w, 'untrained', 0), _trained(w, steps)) for w in workdirs]
  figures = {key: [[r[key] for r in pair] for pair in pairs] for _, key, _, _ in _MEASURES}
  figures['seconds'] = [
    sum(record['seconds'] for record in json_lines.iterate(w / _SECONDS)) for w in workdirs
  ]
  return figures


def _report(settings: dict[str, dict[str, list[Any]]]) -> str:
  rows = []
  for name, key, scale, decimals in _MEASURES:
    cells = [name]
    for figures in settings.values():
      cells += [
        sweep.spread([scale * pair[when] for pair in figures[key]], decimals) for when in (0, 1)
      ]
    rows.append(cells)
  seconds = ['seconds of the command']
  for figures in settings.values():
    seconds += ['', sweep.spread(figures['seconds'], 0)]
  header = ['', *[f'{name}, {when}' for name in settings for when in ('before', 'after')]]
  return common.table(header, [*rows, seconds])


if __name__ == '__main__':
  main()
