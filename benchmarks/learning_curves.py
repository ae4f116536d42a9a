"""Draws accuracy, tokens and silence over training, mean and range of the runs of each label.

  python launch/sweep.py --config=configs/tiny.py --workdir=runs/prices \
    --lambdas=0.02,0 --seeds=0,1,2
  python benchmarks/learning_curves.py docs/images/tiny.png \
    'price 0.02=runs/prices/lambda_tok=0.02_seed_*' 'price 0=runs/prices/lambda_tok=0_seed_*'

Needs `pip install -e '.[docs]'`.
"""

from __future__ import annotations

import argparse
import glob
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import figure, lines, ticker

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.workdir import records

_COLOURS = ('#2a6fdb', '#d9622b', '#16966b', '#a04fc4', '#b98a00', '#cf3a5b', '#5b6b7f', '#6aa023')
_PANELS = {  # title: {metric: (style, name)}
  'accuracy': {'task/accuracy': ('-', '')},
  'tokens written per question': {'tokens/written_per_question': ('-', '')},
  'silent turns': {
    'comm/silence_rate_relevant': ('-', 'relevant'),
    'comm/silence_rate_irrelevant': ('--', 'irrelevant'),
  },
}


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('out', help='PNG file')
  parser.add_argument('runs', nargs='+', help='LABEL=PATTERN of workdirs')
  options = parser.parse_args()
  labels = [given.partition('=') for given in options.runs]
  draw({label: sorted(glob.glob(pattern)) for label, _, pattern in labels}, options.out)


def draw(workdirs: Mapping[str, Sequence[str]], out: str) -> None:
  """Draws the runs of each label; raises a ValueError for a label without runs."""
  if missing := [label for label, folders in workdirs.items() if not folders]:
    raise ValueError(f'no workdir for {", ".join(missing)}')
  runs = {k: [records.load_run(w).metrics for w in folders] for k, folders in workdirs.items()}
  picture = figure.Figure(figsize=(12, 3.6), layout='constrained')
  handles = [
    lines.Line2D([], [], color=colour, linewidth=3, label=f'{label} ({len(group)} seeds)')
    for colour, (label, group) in zip(_COLOURS, runs.items(), strict=False)
  ]
  for axes, (title, curves) in zip(picture.subplots(1, 3), _PANELS.items(), strict=True):
    axes.set_title(title, loc='left', fontsize=11, fontweight='bold')
    axes.set_xlabel('step')
    axes.grid(axis='y', alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    axes.margins(x=0.01)
    if title != 'tokens written per question':
      axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=None))
    for colour, group in zip(_COLOURS, runs.values(), strict=False):
      for metric, (style, _) in curves.items():
        steps, values = across_runs(group, metric)
        axes.plot(steps, values.mean(axis=1), style, color=colour, linewidth=1.8)
        axes.fill_between(
          steps, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.15, linewidth=0
        )
    axes.set_ylim(bottom=0)
    handles += [
      lines.Line2D([], [], color='#555', linestyle=style, label=f'silent, {name}')
      for style, name in curves.values()
      if name
    ]
  picture.legend(handles=handles, loc='outside lower center', ncols=4, frameon=False)
  picture.savefig(out, dpi=150)


def across_runs(
  runs: Sequence[Sequence[Mapping[str, float]]], metric: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the steps that all runs have, `[n]`, and a metric at each, `[n, runs]`."""
  curves = [{m['step']: m[metric] for m in run if m.get(metric) is not None} for run in runs]
  steps = sorted(set.intersection(*map(set, curves)))
  values = [[curve[step] for curve in curves] for step in steps]
  return np.array(steps), np.array(values, float).reshape(len(steps), len(runs))


if __name__ == '__main__':
  main()
