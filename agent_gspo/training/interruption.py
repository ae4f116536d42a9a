"""Ctrl-C that never costs a finished step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Interruption:
  """Turns SIGINT and SIGTERM into `KeyboardInterrupt`, but not while state is changing.

  Outside of `deferred` the first signal raises at once. Inside, it waits for the block to
  end (a second one does not wait).

  A patient one raises in `meet` alone: where several processes must stop after the same step.
  """

  def __init__(self, patient: bool = False):
    self._patient, self._deferring = patient, patient
    self._pending = False
    self._previous: dict[int, Any] = {}

  def __enter__(self) -> Interruption:
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGINT, signal.SIGTERM):
        self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *unused_exception) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """A block that the first signal does not break into."""
    if self._patient:
      yield
      return
    self._deferring = True
    try:
      yield
    finally:
      self._deferring = False
      pending, self._pending = self._pending, False
    if pending:
      raise KeyboardInterrupt

  def meet(self, any_of: Callable[[bool], bool]) -> None:
    """Raises where a signal has come to any of several processes; all of them call it.

    Args:
      any_of: whether it is so in one of the processes.
    """
    if self._patient and any_of(self._pending):
      raise KeyboardInterrupt

  @contextlib.contextmanager
  def allowed(self) -> Iterator[None]:
    """A part of a `deferred` block that the first signal does break into."""
    if self._patient:
      yield
      return
    if self._pending:
      self._pending = False
      raise KeyboardInterrupt
    deferring, self._deferring = self._deferring, False
    try:
      yield
    finally:
      self._deferring = deferring

  def _handle(self, unused_number, unused_frame) -> None:
    if self._deferring and not self._pending:
      self._pending = True
      return
    self._pending = False
    raise KeyboardInterrupt
