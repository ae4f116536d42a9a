"""Plots learning curves over several seeds."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from agent_gspo.apps.reporting import formatting
from agent_gspo.workdir import records

_COLOURS = ('#2a6fdb', '#d9622b', '#16966b', '#a04fc4', '#b98a00', '#cf3a5b', '#5b6b7f', '#6aa023')
_Style = Literal['-', '--', ':']
_Panel = tuple[str, tuple[tuple[str, _Style, str], ...], int]  # title, (key, style, name), scale

_PANELS: tuple[_Panel, ...] = (
  ('accuracy', (('task/accuracy', '-', ''),), 100),
  ('tokens written a question', (('tokens/written_per_question', '-', ''),), 1),
  (
    'silent turns',
    (
      ('comm/silence_rate_relevant', '-', 'relevant'),
      ('comm/silence_rate_irrelevant', '--', 'irrelevant'),
    ),
    100,
  ),
)


def learning_curves(
  workdirs_by_label: Mapping[str, Sequence[records.PathLike]],
  out_png: records.PathLike,
) -> pathlib.Path:
  """Draws accuracy, tokens written and silence rate over training steps.

  A line is the mean over the runs of a label, its band spans the lowest to the highest run. If a
  label's runs do not record relevance, the silence rate of all turns is drawn.

  Raises:
    ValueError: No run has metrics.
    FileNotFoundError: A workdir has no run.
  """
  from matplotlib import figure, lines, ticker  # here, as importing it takes a second
  from matplotlib.backends import backend_agg

  runs = {k: [records.load_run(w) for w in dirs] for k, dirs in workdirs_by_label.items()}
  if not any(run.metrics for group in runs.values() for run in group):
    raise ValueError('workdirs_by_label: no run in it has written metrics yet')
  picture = figure.Figure(figsize=(12, 3.6), layout='constrained')
  backend_agg.FigureCanvasAgg(picture)
  styles_used: set[tuple[_Style, str]] = set()
  for axes, (title, curves, scale) in zip(picture.subplots(1, 3), _PANELS, strict=True):
    axes.set_title(title, loc='left', fontsize=11, fontweight='bold')
    axes.set_xlabel('step')
    axes.grid(axis='y', color='#000000', alpha=0.1, linewidth=0.8)
    axes.spines[['top', 'right']].set_visible(False)
    axes.margins(x=0.01)
    if scale == 100:
      axes.yaxis.set_major_formatter(ticker.PercentFormatter(decimals=None))
    for i, group in enumerate(runs.values()):
      drawn = False
      for key, style, name in (*curves, ('comm/silence_rate', ':', 'all turns')):
        if key == 'comm/silence_rate' and (drawn or scale == 1 or len(curves) == 1):
          continue
        steps, low, mean, high = across_runs([run.metrics for run in group], key)
        if not steps.size:
          continue
        drawn = True
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot(steps, scale * mean, style, color=colour, linewidth=1.8)
        axes.fill_between(steps, scale * low, scale * high, color=colour, alpha=0.15, linewidth=0)
        if name:
          styles_used.add((style, name))
    axes.set_ylim(bottom=0)
  handles = []
  for i, (label, group) in enumerate(runs.items()):
    seeds = f' ({len(group)} seeds)' if len(group) > 1 else ''
    colour = _COLOURS[i % len(_COLOURS)]
    handles.append(lines.Line2D([], [], color=colour, linewidth=3, label=f'{label}{seeds}'))
  for style, name in sorted(styles_used):
    handles.append(lines.Line2D([], [], color='#555', linestyle=style, label=f'silent, {name}'))
  picture.legend(handles=handles, loc='outside lower center', ncols=4, frameon=False)
  out = pathlib.Path(out_png)
  out.parent.mkdir(parents=True, exist_ok=True)
  picture.savefig(out, dpi=150)
  return out


def across_runs(
  runs: Sequence[Sequence[Mapping[str, Any]]], key: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns `(steps, low, mean, high)` of a metric over runs, each `[n]`."""
  by_step: dict[float, list[float]] = {}
  for metrics in runs:
    for m in metrics:
      if (value := formatting.finite(m.get(key))) is not None:
        by_step.setdefault(m['step'], []).append(value)
  steps = sorted(by_step)
  low, mean, high = (
    np.array([f(by_step[s]) for s in steps]) for f in (min, lambda v: sum(v) / len(v), max)
  )
  return np.array(steps), low, mean, high
