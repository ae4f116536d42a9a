"""Shows the progress of a run: a live panel in a terminal, one line per step elsewhere."""

from __future__ import annotations

import contextlib
import io
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agent_gspo.apps.reporting import comparison, html_report, live_panel, plain_log, tables
from agent_gspo.training import progress
from agent_gspo.training.setup import BASELINES
from agent_gspo.workdir import records

_LOG_WIDTH = 140
_SILENCE = 30.0  # seconds without a line, after which a log gets the phase


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
    self._state = live_panel.ProgressState(title=title, total=total_steps, done=start_step)
    self._console = console or Console()
    self._live: Live | None = None
    self._lines = 0
    self._clock, self._last_line = clock, clock()
    self._quiet = False

  def __enter__(self) -> Progress:
    self._safely(self._open)
    return self

  def __exit__(self, *unused_exception) -> None:
    self._safely(self._close)

  def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
    """Shows the current phase; a log gets a line after half a minute without one."""
    self._state.phase = (name, done, total)
    if self._live is None and self._clock() - self._last_line >= _SILENCE:
      self.note(f'... {live_panel.phase_text(name, done, total)}')

  def step(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Shows a finished step."""
    self._safely(lambda: self._show(step, metrics))

  def note(self, text: RenderableType) -> None:
    """Writes a message (or a rich table) that stays in the log, above the panel."""
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
    blocks = self._console.encoding.lower().startswith('utf')  # curves are drawn with block glyphs
    if blocks and (self._console.is_terminal or self._console.is_jupyter):
      self._live = Live(
        console=self._console, get_renderable=self._render, refresh_per_second=4, transient=False
      )
      self._live.start()
    elif self._state.title:
      self._write(self._state.title)

  def _close(self) -> None:
    if self._live is not None:
      live, self._live = self._live, None
      self._state.phase = None
      live.stop()

  def _show(self, step: int, metrics: Mapping[str, Any]) -> None:
    self._state.record(step, metrics)
    if self._live is None:
      if self._lines % plain_log.HEADER_EVERY == 0:
        self._write(plain_log.header())
      self._lines += 1
      self._write(plain_log.line(step, metrics, self._state.remaining_seconds()))

  def _render(self) -> RenderableType:
    # Called in rich's refresh thread, where an exception would end the display.
    try:
      return live_panel.render(self._state, self._console.width)
    except Exception as error:
      return Text(f'(nothing to show: {error!r})')

  def _write(self, text: RenderableType) -> None:
    if self._live is not None and not isinstance(text, str):
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
    if self._live is None:
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
  """Yields a table of the team before and after training, then one over prices or budgets."""
  evaluations = records.evaluations(workdir)
  # Records from before the run was extended to more steps are of another team.
  steps = (0, trained['step'])
  by_label = {e.get('label'): e for e in evaluations if e.get('step') in steps}
  baselines = [by_label[k] for k in (*BASELINES, records.SEEN) if k in by_label]
  yield tables.closing_table(by_label.get(records.UNTRAINED, {}), trained, baselines=baselines)
  told = [e for e in evaluations if records.told_value(e) is not None]
  told = [e for e in told if e.get('step') == trained['step'] and records.asks_alike(e, trained)]
  if told:
    yield comparison.comparison_table(told)


def _print(text: RenderableType, console: Console) -> None:
  if isinstance(text, Table):
    tables.print_whole(text, console)
  else:
    console.print(text)
