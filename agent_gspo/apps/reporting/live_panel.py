"""Renders the live display of a run: a few lines that are redrawn in place."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich import progress_bar
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_gspo.apps.reporting import formatting
from agent_gspo.apps.reporting.formatting import duration, fixed, number, percent

_WINDOW = 20  # past steps used to estimate the remaining time

_LABEL_WIDTH = 19

_SHORT, _LONG = partial(fixed, decimals=1), partial(fixed, decimals=3)
# Label, metric of the curve, and the figures: name, metric, formatter.
_ROWS = (
  ('accuracy', 'task/accuracy', (
    ('now', 'task/accuracy', percent), ('running', 'budget/running_accuracy', percent))),
  ('tokens a question', 'tokens/written_per_question', (
    ('written', 'tokens/written_per_question', _SHORT),
    ('read', 'tokens/read_per_question', partial(fixed, decimals=0)),
    ('a message', 'comm/tokens_per_message', _SHORT))),
  ('silence', 'comm/silence_rate', (
    ('all', 'comm/silence_rate', percent),
    ('relevant', 'comm/silence_rate_relevant', percent),
    ('irrelevant', 'comm/silence_rate_irrelevant', percent))),
  ('reward', '', (
    ('mean', 'reward/mean', _LONG), ('task', 'reward/task', _LONG),
    ('tokens', 'reward/token_cost', _LONG), ('turns', 'reward/turn_cost', _LONG),
    ('repetition', 'reward/repetition', _LONG))),
  ('policy', '', (
    ('lambda_tok', 'budget/lambda_tok', number),
    ('ratio', 'policy/ratio_mean', partial(fixed, decimals=4)),
    ('clipped', 'policy/clip_fraction', percent), ('grad norm', 'policy/grad_norm', number))),
  ('time', '', (
    ('step', 'time/step_s', duration), ('rollout', 'time/rollout_s', duration),
    ('score', 'time/score_s', duration), ('update', 'time/update_s', duration))),
)  # fmt: skip


@dataclasses.dataclass
class ProgressState:
  """State of the display of a run; times are those of `time.monotonic`."""

  title: str
  total: int  # steps of the whole run
  done: int  # finished steps, those before a resume included
  step: int | None = None  # number of the last step
  metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the last step
  history: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # one value per step
  phase: tuple[str, int | None, int | None] | None = None  # within the step: name, done, total
  started: float = dataclasses.field(default_factory=time.monotonic)
  curve_column: int = 0  # first column of the curves, to the right of the figures
  ticks: list[float] = dataclasses.field(default_factory=list)  # end times of the last steps

  CURVES = ('task/accuracy', 'tokens/written_per_question', 'comm/silence_rate')

  def record(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Adds a finished step to the state."""
    if not self.ticks:
      self.ticks.append(self.started)
    self.ticks = [*self.ticks, time.monotonic()][-_WINDOW - 1 :]
    self.step, self.metrics, self.phase = step, metrics, None
    self.done += 1
    for key in self.CURVES:
      self.history.setdefault(key, []).append(metrics.get(key))

  def remaining_seconds(self) -> float | None:
    """Estimates the time to the end, None before the first step."""
    # The first step compiles: it is left out once there is another.
    ticks = self.ticks[1:] if 2 < len(self.ticks) <= _WINDOW else self.ticks
    if len(ticks) < 2:
      return None
    return max(0, self.total - self.done) * (ticks[-1] - ticks[0]) / (len(ticks) - 1)


def render(state: ProgressState, width: int) -> RenderableType:
  """Returns the panel and the bar below it for a terminal of `width` columns."""
  step = formatting.MISSING if state.step is None else state.step
  title = Text.assemble((state.title, 'bold'), f'  step {step} of {state.total}')
  style: Any = {'title_align': 'left', 'border_style': 'dim', 'padding': (0, 1)}
  return Group(Panel(_figures(state, width), title=title, **style), _bar(state, width))


def phase_text(name: str, done: int | None, total: int | None) -> str:
  """Returns the name of a phase, and how much of it is done."""
  if done is None:
    return name
  return f'{name} {done}/{total}' if total else f'{name} {done}'


def _figures(state: ProgressState, width: int) -> Text:
  # Laid out by hand: rich would break lines within "41.1 %".
  cells = {
    label: [(name, write(state.metrics.get(key))) for name, key, write in items]
    for label, _, items in _ROWS
  }
  space = max(20, width - 4 - _LABEL_WIDTH)
  widest = max(_length(cells[label]) for label, curve, _ in _ROWS if curve)
  state.curve_column = max(state.curve_column, widest + 2)  # never back: curves would jump
  lines = Text()
  for label, curve, _ in _ROWS:
    heading = f'{label:<{_LABEL_WIDTH}}'
    for row in _wrapped(cells[label], space):
      lines.append(heading, 'bold')
      heading = ' ' * _LABEL_WIDTH
      for name, value in row:
        lines.append(f'{name} ', 'dim').append(f'{value}  ')
      if curve and len(row) == len(cells[label]):
        lines.append(' ' * (state.curve_column - _length(row) - 2))
        most = min(40, space - state.curve_column)
        values = state.history.get(curve, [])
        lines.append(formatting.sparkline(values, most), 'cyan')
      lines.rstrip()
      lines.append('\n')
  lines.rstrip()
  return lines


def _length(items: list[tuple[str, str]]) -> int:
  return sum(len(name) + len(value) + 3 for name, value in items) - 2


def _wrapped(items: list[tuple[str, str]], space: int) -> list[list[tuple[str, str]]]:
  rows: list[list[tuple[str, str]]] = [[]]
  for item in items:
    if rows[-1] and _length([*rows[-1], item]) > space:
      rows.append([])
    rows[-1].append(item)
  return rows


def _bar(state: ProgressState, width: int) -> Table:
  share = state.done / state.total if state.total else 1.0
  row = Table.grid(padding=(0, 1))
  row.add_column(width=max(10, min(40, width - 60)))
  row.add_column(no_wrap=True, overflow='ellipsis')
  bar = progress_bar.ProgressBar(total=max(state.total, 1), completed=state.done)
  elapsed = formatting.duration(int(time.monotonic() - state.started))
  left = state.remaining_seconds()
  text = Text(f'{100 * share:3.0f} %  elapsed {elapsed}  left ')
  text.append(formatting.duration(None if left is None else round(left)), 'bold')
  if state.phase:
    text.append(f'  {phase_text(*state.phase)}', 'magenta')
  row.add_row(bar, text)
  return row
