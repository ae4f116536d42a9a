"""Runs work in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
  """A thread for one job at a time. The interpreter waits for it before exit."""

  def __init__(self):
    self._thread: threading.Thread | None = None
    self._error: BaseException | None = None

  def start(self, work: Callable[[], None]) -> None:
    """Starts a job; the previous one must have been waited for."""
    assert self._thread is None
    self._thread = threading.Thread(target=self._run, args=(work,), name='background')
    self._thread.start()

  def wait(self) -> None:
    """Waits for the job, and raises its error once."""
    if self._thread is not None:
      self._thread.join()
    self._thread = None
    error, self._error = self._error, None
    if error is not None:
      raise error

  def _run(self, work: Callable[[], None]) -> None:
    try:
      work()
    except BaseException as error:  # `wait` raises it
      self._error = error
