"""Renders the live display of a run: a few lines that are redrawn in place."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich import progress_bar
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_gspo.apps.reporting import formatting
from agent_gspo.apps.reporting.formatting import duration, fixed, number, percent

_WINDOW = 20  # past steps used to estimate the remaining time

_LABEL_WIDTH = 17

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


def _figures(state: ProgressState, width: int) -> Table:
  curve_width = min(40, width - 72)  # of what the widest row with a curve leaves
  table = Table.grid(padding=(0, 2), expand=True)
  table.add_column(style='bold', no_wrap=True, width=_LABEL_WIDTH)
  table.add_column(ratio=1)
  if curve_width >= 8:
    table.add_column(style='cyan', no_wrap=True, width=curve_width)
  for label, curve, items in _ROWS:
    figures = [
      Text.assemble((f'{name} ', 'dim'), write(state.metrics.get(key)), no_wrap=True)
      for name, key, write in items
    ]
    history = formatting.sparkline(state.history.get(curve, []), curve_width)
    row = [label, Columns(figures, padding=(0, 2)), history]
    table.add_row(*row[: len(table.columns)])
  return table


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
