"""Compares one price-conditioned run with a run for each price: accuracy, tokens, frontiers.

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
from matplotlib import figure
from matplotlib.backends import backend_agg

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

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
  """Reads the points of a sweep over prices, by the prices in its configs."""
  found: Points = {}
  for folder in sorted(pathlib.Path(workdir).glob('lambda_tok=*')):
    run = records.load_run(folder)
    for record in run.evaluations:
      if record['label'] == 'trained':
        price = run.config['budget']['lambda_tok']
        found.setdefault(price, []).append((record[TOKENS], record[ACCURACY]))
  return found


def of_told(workdirs: Sequence[str]) -> Points:
  """Reads the points of conditioned runs, each evaluated at every price."""
  found: Points = {}
  for workdir in workdirs:
    for record in records.evaluations(workdir):
      price = records.told_value(record)
      if price is not None:
        found.setdefault(price, []).append((record[TOKENS], record[ACCURACY]))
  return found


def hypervolume(points: Sequence[tuple[float, float]], most_tokens: float) -> float:
  """Computes the mean, over budgets up to `most_tokens`, of the best accuracy within the budget.

  Args:
    points: `(tokens, accuracy)`.
    most_tokens: Largest budget, in tokens.

  Returns:
    Share of the rectangle from no tokens to the most and from accuracy 0 to 1 that is dominated.
  """
  within = sorted(point for point in points if point[0] < most_tokens)
  ends = [*(tokens for tokens, _ in within[1:]), most_tokens]
  best = itertools.accumulate((accuracy for _, accuracy in within), max)
  parts = zip(within, ends, best, strict=True)
  return sum((end - tokens) * height for (tokens, _), end, height in parts) / most_tokens


def draw(apart: Points, told: Points, file: str) -> None:
  """Draws tokens and accuracy by price: mean, lowest and highest of the seeds."""
  picture = figure.Figure(figsize=(9, 3.6), layout='constrained')
  backend_agg.FigureCanvasAgg(picture)
  panels = picture.subplots(1, 2)
  for axes, part, scale, name in (
    (panels[0], 0, 1, 'tokens written per question'),
    (panels[1], 1, 100, 'accuracy, %'),
  ):
    for label, points, colour in (
      ('a run for each price', apart, '#777777'),
      ('one run, told the price', told, '#0a7d8c'),
    ):
      prices = sorted(points)
      values = scale * np.asarray([[seed[part] for seed in points[price]] for price in prices])
      places = range(len(prices))
      axes.plot(places, values.mean(axis=1), 'o-', color=colour, label=label)
      axes.fill_between(places, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.15)
    axes.set_xticks(range(len(told)), [f'{price:g}' for price in sorted(told)])
    axes.set_xlabel('price of a token')
    axes.set_title(name, fontsize=10, loc='left')
    axes.grid(color='#000000', alpha=0.1, linewidth=0.8)
    axes.spines[['top', 'right']].set_visible(False)
  panels[0].set_ylim(bottom=0)
  panels[1].set_ylim(80, 101)
  panels[0].legend(frameon=False)
  picture.savefig(file, dpi=150)
  print(file)


def _told_points(seeds: Sequence[tuple[float, float]]) -> str:
  if not seeds:
    return '-'
  tokens, accuracy = zip(*seeds, strict=True)
  return f'{_spread(tokens, 1)}, {_spread([100 * share for share in accuracy], 1)}'


def _spread(values: Sequence[float], digits: int) -> str:
  """Formats values as 'mean [lowest, highest]'."""
  mean, low, high = (f'{x:.{digits}f}' for x in (np.mean(values), min(values), max(values)))
  return f'{mean} [{low}, {high}]'


if __name__ == '__main__':
  main()
