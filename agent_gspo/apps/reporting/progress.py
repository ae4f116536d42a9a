"""Shows the progress of a run: a line for each step, and a bar below them in a terminal."""

from __future__ import annotations

import contextlib
import io
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from agent_gspo.apps.reporting import comparison, formatting, html_report, plain_log, tables
from agent_gspo.training import progress
from agent_gspo.training.setup import BASELINES
from agent_gspo.workdir import records

_LOG_WIDTH = 140
_SILENCE = 30.0  # seconds without a line, after which a log gets the phase
_WINDOW = 20  # past steps used to estimate the remaining time


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
    self._console = console or Console()
    self._bar: Bar | None = None
    self._lines = 0
    self._clock, self._last_line = clock, clock()
    self._ends = [clock()]  # of the last steps
    self._quiet = False

  def __enter__(self) -> Progress:
    self._safely(self._open)
    return self

  def __exit__(self, *unused_exception) -> None:
    self._safely(self._close)

  def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
    """Shows the current phase; a log gets a line after half a minute without one."""
    text = name if done is None else f'{name} {done}' + f'/{total}' * bool(total)
    if (bar := self._bar) is not None:  # may be called while another thread closes it
      bar.update(bar.task_ids[0], phase=text)
    elif self._clock() - self._last_line >= _SILENCE:
      self.note(f'... {text}')

  def step(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Shows a finished step."""
    self._safely(lambda: self._show(step, metrics))

  def note(self, text: RenderableType) -> None:
    """Writes a message (or a rich table) that stays in the log, above the bar."""
    self._safely(lambda: self._write(text))

  def ended(self, workdir: pathlib.Path, trained: Mapping[str, Any]) -> None:
    """Shows the closing tables and writes the report; notes a failure instead of raising."""
    try:
      wide = self._bar is None or self._console.width >= tables.WIDE
      for table in _closing(workdir, trained, wide):
        self.note(table)
      report = html_report.write_report(workdir, workdir / 'report.html')
      self.note(f'curves and transcripts: {report}')
    except Exception as error:
      self.note(
        f'there is no report ({type(error).__name__}: {error}); all else is done. For another try: '
        f'python launch/report.py {workdir}'
      )

  def _open(self) -> None:
    if self._console.is_terminal or self._console.is_jupyter:
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
    width = _LOG_WIDTH if self._bar is None else self._console.width
    if self._lines % plain_log.HEADER_EVERY == 0:
      self._write(plain_log.header(width))
    self._lines += 1
    self._write(plain_log.line(step, metrics, left, width))
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

  def _write(self, text: RenderableType) -> None:
    if self._bar is not None and not isinstance(text, str):
      _print(text, self._console)
      return
    encoding = self._console.encoding
    if not isinstance(text, str):
      # A log is wider than the 80 columns that rich assumes. The encoding decides which characters
      # rich draws frames with.
      file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors='replace')
      _print(text, Console(file=file, width=_LOG_WIDTH, color_system=None))
      file.seek(0)
      text = '\n'.join(line.rstrip() for line in file.read().splitlines())
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


def _closing(workdir: pathlib.Path, trained: Mapping[str, Any], wide: bool) -> Iterator[Table]:
  """Yields a table of the team before and after training, then one over prices or budgets.

  Baselines have a table of their own unless the terminal is wide.
  """
  evaluations = records.evaluations(workdir)
  # Records from before the run was extended to more steps are of another team.
  steps = (0, trained['step'])
  by_label = {e.get('label'): e for e in evaluations if e.get('step') in steps}
  baselines = [by_label[k] for k in (*BASELINES, records.SEEN) if k in by_label]
  before = by_label.get(records.UNTRAINED, {})
  yield tables.closing_table(before, trained, baselines=baselines if wide else ())
  if baselines and not wide:
    yield tables.evaluation_table(*baselines)
  told = [e for e in evaluations if records.told_value(e) is not None]
  told = [e for e in told if e.get('step') == trained['step'] and records.asks_alike(e, trained)]
  if told:
    yield comparison.comparison_table(told)


def _print(text: RenderableType, console: Console) -> None:
  if isinstance(text, Table):
    tables.print_whole(text, console)
  else:
    console.print(text)
