"""One conditioned run beside a run for each price: accuracy, tokens, and both frontiers.

  python launch/sweep.py --config=configs/tiny.py --workdir=runs/prices \
    --lambdas=0,0.002,0.005,0.01,0.02,0.05 --seeds=0,1,2
  for seed in 0 1 2; do python launch/train.py --config=configs/tiny_prices.py \
    --config.seed=$seed --workdir=runs/told_$seed; done
  python benchmarks/told_prices.py --sweep=runs/prices --told=runs/told_0,runs/told_1,runs/told_2 \
    --figure=docs/images/told_prices.png
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.reporting import plots
from agent_gspo.workdir import records

ACCURACY, TOKENS = 'task/accuracy', 'tokens/written_per_question'
Points = dict[float, list[tuple[float, float]]]  # price -> (tokens, accuracy) of each seed


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--sweep', required=True, help='workdir of launch/sweep.py --lambdas')
  parser.add_argument('--told', required=True, help='workdirs of conditioned runs, comma between')
  parser.add_argument('--most_tokens', type=float, default=80.0, help='end of the hypervolume')
  parser.add_argument('--figure', help='PNG to draw')
  options = parser.parse_args()
  apart, told = of_sweep(options.sweep), of_told(options.told.split(','))
  print('price   a run for it: tokens, accuracy %        one run, told: tokens, accuracy %')
  for price in sorted(told):
    cells = [_told_points(points.get(price, [])) for points in (apart, told)]
    print(f'{price:<7g} {cells[0]:<40}{cells[1]}')
  for name, points in (('a run for each price', apart), ('one run', told)):
    seeds = zip(*points.values(), strict=True)
    areas = [hypervolume(list(of_seed), options.most_tokens) for of_seed in seeds]
    print(f'hypervolume to {options.most_tokens:g} tokens, {name}: {_spread(areas, 4)}')
  if options.figure:
    draw(apart, told, options.figure)


def of_sweep(workdir: str) -> Points:
  """Of the runs of a sweep over prices, by their configs."""
  found: Points = {}
  for folder in sorted(pathlib.Path(workdir).glob('lambda_tok=*')):
    run = records.load_run(folder)
    for record in run.evaluations:
      if record['label'] == 'trained':
        price = run.config['budget']['lambda_tok']
        found.setdefault(price, []).append((record[TOKENS], record[ACCURACY]))
  return found


def of_told(workdirs: Sequence[str]) -> Points:
  """Of conditioned runs, each evaluated at every price."""
  found: Points = {}
  for workdir in workdirs:
    for record in records.evaluations(workdir):
      price = records.told_value(record)
      if price is not None:
        found.setdefault(price, []).append((record[TOKENS], record[ACCURACY]))
  return found


def hypervolume(points: Sequence[tuple[float, float]], most_tokens: float) -> float:
  """Mean over budgets up to `most_tokens` of the best accuracy that a point within it has.

  Args:
    points: `(tokens, accuracy)`.
    most_tokens: budget to end at.

  Returns:
    Share of the rectangle from no tokens to the most and from accuracy 0 to 1 that is dominated.
  """
  within = sorted(point for point in points if point[0] < most_tokens)
  ends = [*(tokens for tokens, _ in within[1:]), most_tokens]
  best = itertools.accumulate((accuracy for _, accuracy in within), max)
  parts = zip(within, ends, best, strict=True)
  return sum((end - tokens) * height for (tokens, _), end, height in parts) / most_tokens


def draw(apart: Points, told: Points, file: str) -> None:
  """Accuracy against tokens: a run for each price in grey, one run in colours."""
  settings = []
  for price, seeds in sorted(told.items()):
    tokens, accuracy = map(list, zip(*seeds, strict=True))
    trained = {TOKENS: tokens, ACCURACY: accuracy}
    settings.append({'name': f'told {price:g}', 'trained': trained})
  references = {f'run at {price:g}': seeds for price, seeds in sorted(apart.items())}
  print(plots.frontier(settings, file, references=references))


def _told_points(seeds: Sequence[tuple[float, float]]) -> str:
  if not seeds:
    return '-'
  tokens, accuracy = zip(*seeds, strict=True)
  return f'{_spread(tokens, 1)}, {_spread([100 * share for share in accuracy], 1)}'


def _spread(values: Sequence[float], digits: int) -> str:
  """Mean [lowest, highest]."""
  mean, low, high = (f'{x:.{digits}f}' for x in (np.mean(values), min(values), max(values)))
  return f'{mean} [{low}, {high}]'


if __name__ == '__main__':
  main()
