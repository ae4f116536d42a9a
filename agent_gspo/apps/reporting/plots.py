"""Plots learning curves and the accuracy-tokens frontier over several seeds."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from agent_gspo.apps.reporting import formatting
from agent_gspo.workdir import records

if TYPE_CHECKING:
  from matplotlib import figure

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
_PRICE: _Panel = ('price of a token', (('budget/lambda_tok', '-', ''),), 1)


def learning_curves(
  workdirs_by_label: Mapping[str, Sequence[records.PathLike]],
  out_png: records.PathLike,
  *,
  smoothing: int = 1,
) -> pathlib.Path:
  """Draws accuracy, tokens written and silence rate over training steps.

  A line is the mean over the runs of a label, its band spans the lowest to the highest run. If a
  label's runs do not record relevance, the silence rate of all turns is drawn. The token price is
  drawn if a run changed it.

  Args:
    workdirs_by_label: Label -> workdirs of its seeds.
    out_png: File to write.
    smoothing: Length of the trailing mean, in steps.

  Raises:
    ValueError: No run has metrics.
    FileNotFoundError: A workdir has no run.
  """
  from matplotlib import lines  # here, as importing it takes a second

  runs = {k: [records.load_run(w) for w in dirs] for k, dirs in workdirs_by_label.items()}
  if not any(run.metrics for group in runs.values() for run in group):
    raise ValueError('workdirs_by_label: no run in it has written metrics yet')

  controlled = any(_price_moves(run) for group in runs.values() for run in group)
  panels = (*_PANELS, _PRICE) if controlled else _PANELS
  picture = _picture(4 * len(panels), 3.6)
  styles_used: set[tuple[_Style, str]] = set()
  for axes, (title, curves, scale) in zip(picture.subplots(1, len(panels)), panels, strict=True):
    axes.set_title(title, loc='left', fontsize=11, fontweight='bold')
    _plain(axes, 'step', shares=scale == 100)
    axes.margins(x=0.01)
    for i, group in enumerate(runs.values()):
      drawn = False
      for key, style, name in (*curves, ('comm/silence_rate', ':', 'all turns')):
        if key == 'comm/silence_rate' and (drawn or scale == 1 or len(curves) == 1):
          continue
        steps, low, mean, high = across_runs([run.metrics for run in group], key, smoothing)
        if not steps.size:
          continue
        drawn = True
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot(steps, scale * mean, style, color=colour, linewidth=1.8)
        axes.fill_between(steps, scale * low, scale * high, color=colour, alpha=0.15, linewidth=0)
        if name:
          styles_used.add((style, name))
    if axes.dataLim.y0 >= 0:  # a price may be negative
      axes.set_ylim(bottom=0)
  handles = []
  for i, (label, group) in enumerate(runs.items()):
    seeds = f' ({len(group)} seeds)' if len(group) > 1 else ''
    colour = _COLOURS[i % len(_COLOURS)]
    handles.append(lines.Line2D([], [], color=colour, linewidth=3, label=f'{label}{seeds}'))
  for style, name in sorted(styles_used):
    handles.append(lines.Line2D([], [], color='#555', linestyle=style, label=f'silent, {name}'))
  picture.legend(handles=handles, loc='outside lower center', ncols=4, frameon=False)
  return _save(picture, out_png)


def _picture(width: float, height: float) -> figure.Figure:
  from matplotlib import figure
  from matplotlib.backends import backend_agg

  picture = figure.Figure(figsize=(width, height), layout='constrained')
  backend_agg.FigureCanvasAgg(picture)
  return picture


def _plain(axes: Any, xlabel: str, shares: bool) -> None:
  """Draws faint lines and no frame."""
  from matplotlib import ticker

  axes.set_xlabel(xlabel)
  axes.grid(axis='y', color='#000000', alpha=0.1, linewidth=0.8)
  axes.spines[['top', 'right']].set_visible(False)
  if shares:
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(decimals=None))


def _save(picture: figure.Figure, out_png: records.PathLike) -> pathlib.Path:
  """Writes a picture; returns its path."""
  out = pathlib.Path(out_png)
  out.parent.mkdir(parents=True, exist_ok=True)
  picture.savefig(out, dpi=150)
  return out


def _price_moves(run: records.Run) -> bool:
  return len({step.get('budget/lambda_tok') for step in run.metrics} - {None}) > 1


def frontier(
  settings: Sequence[Mapping[str, Any]],
  out_png: records.PathLike,
  references: Mapping[str, Sequence[tuple[float, float]]] | None = None,
  start: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Draws accuracy against tokens written per question, a point per setting.

  Args:
    settings: Records with `name` and, under `trained`, `task/accuracy` and
      `tokens/written_per_question`, one value per seed. The point is the mean, its bars span the
      lowest to the highest seed; single seeds are dots.
    out_png: File to write.
    references: Name -> (tokens, accuracy) of each seed, for systems that were not trained here;
      drawn in gray.
    start: Same keys as `trained`, for the untrained team that all settings share, if any.
  """
  picture = _picture(7.5, 4.8)
  axes = picture.subplots()
  tokens, accuracy = 'tokens/written_per_question', 'task/accuracy'
  points = lambda values: [*zip(values[tokens], values[accuracy], strict=True)]
  if start is not None and None not in start[tokens]:
    _seeds(axes, points(start), 'before training', 'D', '#666')
  for i, setting in enumerate(settings):
    _seeds(axes, points(setting['trained']), setting['name'], 'o', _COLOURS[i % len(_COLOURS)])
  for name, seeds in (references or {}).items():
    x, share = np.mean(seeds, axis=0)
    _seeds(axes, seeds, None, 'x', '#666')
    late = x > axes.get_xlim()[1] / 2  # the name goes to the left of the point
    side: dict[str, Any] = {'ha': 'right' if late else 'left', 'textcoords': 'offset points'}
    axes.annotate(name, (x, 100 * share), (-6 if late else 6, 5), fontsize=8, **side)
  _plain(axes, 'tokens written a question', shares=True)
  axes.set_ylabel('accuracy')
  axes.set_xlim(left=0)
  axes.set_ylim(0, np.clip(1.3 * axes.dataLim.y1, 1, 102))
  axes.legend(frameon=False, fontsize=8, loc='best', ncols=1 + len(settings) // 8)
  return _save(picture, out_png)


def _seeds(axes, points: Sequence[tuple[float, float]], name: str | None, mark: str, colour: str):
  """Draws the mean of some (tokens, accuracy), bars to the extremes, and a dot for each."""
  tokens, accuracy = np.asarray(points, float).T * [[1], [100]]
  x, y = tokens.mean(), accuracy.mean()
  reach = lambda values, mean: [[mean - values.min()], [values.max() - mean]]
  bars = {'xerr': reach(tokens, x), 'yerr': reach(accuracy, y), 'capsize': 3}
  axes.errorbar(x, y, fmt=mark, color=colour, label=name, **bars)
  axes.plot(tokens, accuracy, '.', color=colour, alpha=0.5)


def across_runs(
  runs: Sequence[Sequence[Mapping[str, Any]]], key: str, smoothing: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns `(steps, low, mean, high)` of a metric, each `[n]`, over runs with a value at a step.

  `smoothing` is the length of the trailing mean over a run's own values.
  """
  by_step: dict[float, list[float]] = {}
  for metrics in runs:
    read = ((m['step'], formatting.finite(m.get(key))) for m in metrics)
    points = [(step, value) for step, value in read if value is not None]
    for i, (step, _) in enumerate(points):
      window = [value for _, value in points[max(0, i - smoothing + 1) : i + 1]]
      by_step.setdefault(step, []).append(sum(window) / len(window))
  steps = sorted(by_step)
  low, mean, high = (
    np.array([f(by_step[s]) for s in steps]) for f in (min, lambda v: sum(v) / len(v), max)
  )
  return np.array(steps), low, mean, high
