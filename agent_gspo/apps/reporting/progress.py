"""Shows the progress of a run: a line for each step, and a bar below them in a terminal."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from agent_gspo.apps.reporting import formatting, html_report, tables
from agent_gspo.apps.reporting.formatting import fixed, number
from agent_gspo.training import progress
from agent_gspo.training.run_evaluations import BASELINES
from agent_gspo.workdir import records

_LOG_WIDTH, _NOTEBOOK_WIDTH = 140, 100
_SILENCE = 30.0  # seconds without a line, after which a log gets the phase
_WINDOW = 20  # past steps used to estimate the remaining time

_HEADER_EVERY = 20

_PERCENT = partial(fixed, decimals=1, scale=100)
_WHOLE, _SHORT, _LONG, _RATIO = (partial(fixed, decimals=n) for n in (0, 1, 3, 4))
# Heading, width, metric, formatter.
_COLUMNS = (
  ('acc %', 6, 'task/accuracy', _PERCENT),
  ('run %', 6, 'budget/running_accuracy', _PERCENT),
  ('reward', 7, 'reward/mean', _LONG),
  ('written', 8, 'tokens/written_per_question', _SHORT),
  ('read', 8, 'tokens/read_per_question', _WHOLE),
  ('silent %', 8, 'comm/silence_rate', _PERCENT),
  ('rel %', 6, 'comm/silence_rate_relevant', _PERCENT),
  ('irrel %', 7, 'comm/silence_rate_irrelevant', _PERCENT),
  ('lambda', 8, 'budget/lambda_tok', number),
  ('ratio', 7, 'policy/ratio_mean', _RATIO),
  ('clip %', 6, 'policy/clip_fraction', _PERCENT),
  ('roll s', 6, 'time/rollout_s', _SHORT),
  ('score s', 7, 'time/score_s', _SHORT),
  ('upd s', 6, 'time/update_s', _SHORT),
)


class Progress(progress.Progress):
  """Display of the progress of a run.

      with Progress(total_steps, start_step, "gsm8k, three agents") as progress:
        progress.phase("rollout", 3, 16)
        progress.step(step, metrics)
        progress.note("checkpoint saved")

  It never raises: a missing or invalid metric is shown as "-", and if writing to the terminal
  fails (a closed pipe, a full disk), the display stops and the run continues.
  """

  def __init__(
    self,
    total_steps: int,
    start_step: int = 0,
    title: str = '',
    *,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Prepares the display of a run of `total_steps`; it appears on `__enter__`."""
    self._title, self._total, self._done = title, total_steps, start_step
    # The shell of a notebook claims to be a terminal, but cannot move the cursor: each refresh of a
    # bar would stay visible. It is recognized by an environment variable of ipykernel.
    inline = 'inline' in os.environ.get('MPLBACKEND', '')
    notebook = console is None and ('JPY_PARENT_PID' in os.environ or inline)
    self._console = console or Console(
      force_terminal=False if notebook else None, force_jupyter=False
    )
    self._log_width = _NOTEBOOK_WIDTH if notebook else _LOG_WIDTH
    self._bar: Bar | None = None
    self._lines = 0
    self._clock, self._last_line = clock, clock()
    self._patience = 0.0  # seconds until a log gets the phase: the first one at once
    self._ends = [clock()]  # of the last steps
    self._quiet = False

  def __enter__(self) -> Progress:
    self._safely(self._open)
    return self

  def __exit__(self, *unused_exception) -> None:
    self._safely(self._close)

  def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
    """Shows the current phase; a log gets the first, then one after half a minute of silence."""
    text = name if done is None else f'{name} {done}' + f'/{total}' * bool(total)
    if (bar := self._bar) is not None:  # may be called while another thread closes it
      bar.update(bar.task_ids[0], phase=text)
    elif self._clock() - self._last_line >= self._patience:
      self._patience = _SILENCE
      self.note(f'... {text}')

  def step(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Shows a finished step."""
    self._safely(lambda: self._show(step, metrics))

  def note(self, text: str | Table) -> None:
    """Writes a message (or a rich table) that stays in the log, above the bar."""
    self._safely(lambda: self._write(text))

  def ended(self, workdir: pathlib.Path, trained: Mapping[str, Any]) -> None:
    """Shows the closing tables and writes the report; notes a failure instead of raising."""
    try:
      for table in _closing(workdir, trained):
        self.note(table)
      report = html_report.write_report(workdir, workdir / 'report.html')
      self.note(f'curves and transcripts: {report}')
    except Exception as error:
      self.note(
        f'there is no report ({type(error).__name__}: {error}); all else is done. For another try: '
        f'python launch/report.py {workdir}'
      )

  def _open(self) -> None:
    if self._console.is_terminal:
      columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
      told = TextColumn('left {task.fields[left]}  {task.fields[phase]}', markup=False)
      self._bar = Bar(*columns, told, console=self._console, refresh_per_second=4)
      self._bar.add_task('', total=self._total, completed=self._done, left='-', phase='')
      self._bar.start()
    if self._title:
      self._write(self._title)

  def _close(self) -> None:
    if self._bar is not None:
      bar, self._bar = self._bar, None
      bar.update(bar.task_ids[0], phase='')
      bar.stop()

  def _show(self, step: int, metrics: Mapping[str, Any]) -> None:
    self._ends = [*self._ends, self._clock()][-_WINDOW - 1 :]
    self._done += 1
    left = self._remaining()
    width = self._log_width if self._bar is None else self._console.width
    if self._lines % _HEADER_EVERY == 0:
      self._write(header(width))
    self._lines += 1
    self._write(line(step, metrics, left, width))
    if self._bar is not None:
      self._bar.update(self._bar.task_ids[0], completed=self._done, left=left, phase='')

  def _remaining(self) -> str:
    """Estimates the time to the end."""
    # The first step compiles.
    ends = self._ends[1:] if len(self._ends) <= _WINDOW else self._ends
    if len(ends) < 2 and self._done < self._total:
      return '-'
    left = max(0, self._total - self._done) * (ends[-1] - ends[0]) / max(len(ends) - 1, 1)
    return formatting.duration(round(left))

  def _write(self, text: str | Table) -> None:
    if self._bar is not None and isinstance(text, Table):
      tables.print_whole(text, self._console)
      return
    if isinstance(text, Table):
      text = tables.render_text(text, self._log_width).rstrip('\n')
    encoding = self._console.encoding
    self._console.out(text.encode(encoding, 'replace').decode(encoding), highlight=False)
    self._last_line = self._clock()
    if self._bar is None:
      self._console.file.flush()

  def _safely(self, action: Callable[[], None]) -> None:
    if self._quiet:
      return
    try:
      action()
    except (Exception, SystemExit) as error:  # rich exits the process when a pipe closes
      self._quiet = True
      with contextlib.suppress(Exception, SystemExit):
        self._close()
      with contextlib.suppress(OSError):
        cause = 'its output was closed' if isinstance(error, SystemExit) else repr(error)
        print(f'the progress display stopped, the run goes on: {cause}', file=sys.stderr)


def _closing(workdir: pathlib.Path, trained: Mapping[str, Any]) -> Iterator[Table]:
  """Yields tables of the team before and after training, of baselines, of prices or budgets."""
  evaluations = records.evaluations(workdir)
  # Records from before the run was extended to more steps are of another team.
  steps = (0, trained['step'])
  by_label = {e.get('label'): e for e in evaluations if e.get('step') in steps}
  baselines = [by_label[k] for k in (*BASELINES, records.SEEN) if k in by_label]
  before = by_label.get(records.UNTRAINED, {})
  alike = not before or records.asks_alike(before, trained)
  yield tables.evaluation_table(before, trained, with_change=alike)
  if baselines:
    yield tables.evaluation_table(*baselines)
  told = [e for e in evaluations if records.told_value(e) is not None]
  told = [e for e in told if e.get('step') == trained['step'] and records.asks_alike(e, trained)]
  if told:
    yield tables.comparison_table(told)


def header(width: int) -> str:
  """Returns the headings; every line has their width unless a number overflows."""
  names = [f'{name:>{cell}}' for name, cell, _, _ in _COLUMNS]
  return _joined([f'{"step":>7}', *names, f'{"left":>8}'], width)


def line(step: int, metrics: Mapping[str, Any], left: str, width: int) -> str:
  """Returns the line of one step, with "-" for missing metrics.

  `left` is the time to the end of the run. Columns that do not fit into `width` characters are left
  out.
  """
  cells = [f'{write(metrics.get(key)):>{cell}}' for _, cell, key, write in _COLUMNS]
  return _joined([f'{step:>7}', *cells, f'{left:>8}'], width)


def _joined(cells: Sequence[str], width: int) -> str:
  ends = itertools.accumulate(len(cell) + 1 for cell in cells)
  return ' '.join(cell for cell, end in zip(cells, ends, strict=True) if end <= width + 1)
