"""Ctrl-C, SIGTERM or a terminal that closes never cost a finished step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What a `KeyboardInterrupt` holds to which all processes of a run come.
TOGETHER = 'together'


class Interruption:
  """Turns SIGINT, SIGTERM and SIGHUP into `KeyboardInterrupt`, but not while state is changing.

  Outside of `deferred` the first signal raises at once. Inside, it waits for the block to
  end (a second one does not wait, unless it is SIGHUP: kernel, shell and service managers
  send it beside another). Under `nohup` SIGHUP stays ignored.

  Where several processes must stop at the same place, it raises in `meet` and at the end of
  `allowed` alone, to which all of them come.

  Attributes:
    tell: called with what a signal waits for ("this update") when it has to wait, in a thread of
      its own: what the signal broke into may hold the terminal.
  """

  def __init__(self, any_of: Callable[[bool], bool] | None = None):
    """Prepares; signals are caught from `__enter__` on.

    Args:
      any_of: whether something is so in one of several processes; None if there is one process.
    """
    self._any_of = any_of
    self._deferring = self._patient = any_of is not None
    self._pending = self._signaled = False
    self._what = 'what is under way'
    self._previous: dict[int, Any] = {}
    self.tell: Callable[[str], None] = lambda what: None

  def __enter__(self) -> Interruption:
    if threading.current_thread() is threading.main_thread():
      for number in _NUMBERS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
          self._previous[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *unused_exception) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  @contextlib.contextmanager
  def named(self, what: str) -> Iterator[None]:
    """A block that `tell` calls so; nothing else."""
    before, self._what = self._what, what
    try:
      yield
    finally:
      self._what = before

  @contextlib.contextmanager
  def deferred(self, what: str) -> Iterator[None]:
    """A block that the first signal does not break into; `what` it is."""
    if self._patient:
      with self.named(what):
        yield
      return
    self._deferring = True
    try:
      with self.named(what):
        yield
    finally:
      self._deferring = False
      pending, self._pending = self._pending, False
    if pending:
      raise KeyboardInterrupt

  def meet(self) -> None:
    """Raises where a signal has come to any of several processes; all of them call it."""
    if self._any_of is not None and self._any_of(self._pending):
      raise KeyboardInterrupt(TOGETHER)

  @contextlib.contextmanager
  def allowed(self, what: str) -> Iterator[None]:
    """A part of a `deferred` block that the first signal does break into.

    With several processes they meet at its end.
    """
    if self._patient:
      with self.named(what):
        yield
      self.meet()
      return
    if self._pending:
      self._pending = False
      raise KeyboardInterrupt
    deferring, self._deferring = self._deferring, False
    try:
      yield
    finally:
      self._deferring = deferring

  def _handle(self, number, unused_frame) -> None:
    if number == signal.SIGHUP:
      signal.signal(number, signal.SIG_IGN)
      if self._signaled:
        return
    self._signaled = True
    if self._deferring and not self._pending:
      self._pending = True
      threading.Thread(target=self.tell, args=(self._what,), daemon=True).start()
      return
    self._pending = False
    raise KeyboardInterrupt


def ignore() -> None:
  """From here on signals change nothing: for a process whose work is done."""
  for number in _NUMBERS:
    signal.signal(number, signal.SIG_IGN)
