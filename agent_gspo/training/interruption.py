"""Defers Ctrl-C, SIGTERM and SIGHUP, so that they never cost a finished step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Argument of the `KeyboardInterrupt` that all processes of a run raise together.
TOGETHER = 'together'


class Interruption:
  """Turns SIGINT, SIGTERM and SIGHUP into `KeyboardInterrupt`, but not while state is changing.

  Outside of `deferred` the first signal raises at once. Inside, it waits for the block to
  end. A second signal does not wait, unless it is SIGHUP: kernel, shell and service managers
  send it beside another. Under `nohup` SIGHUP stays ignored.

  With several processes it raises only in `meet` and at the end of `allowed`, which all of them
  reach.

  Attributes:
    tell: Called when a signal has to wait, with what it waits for ("this update"). Runs in its
      own thread, as the interrupted code may be using the terminal.
  """

  def __init__(self, any_of: Callable[[bool], bool] | None = None):
    """Initializes the state; signals are caught from `__enter__` on.

    Args:
      any_of: Logical "or" of a flag over all processes; None with one process.
    """
    self._any_of = any_of
    self._deferring = any_of is not None
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
    """Sets the name of a block for `tell`, without deferring signals."""
    before, self._what = self._what, what
    try:
      yield
    finally:
      self._what = before

  @contextlib.contextmanager
  def deferred(self, what: str) -> Iterator[None]:
    """Defers the first signal to the end of the block; `what` names it for `tell`."""
    if self._any_of is not None:
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
    """Raises if any process has received a signal; all processes must call it.

    With one process the signal has raised before, but Python drops what callbacks of its garbage
    collector raise, and JAX has one: this raises again.
    """
    if self._any_of is None and self._signaled:
      raise KeyboardInterrupt
    if self._any_of is not None and self._any_of(self._pending):
      raise KeyboardInterrupt(TOGETHER)

  @contextlib.contextmanager
  def allowed(self, what: str) -> Iterator[None]:
    """Allows the first signal to interrupt this part of a `deferred` block.

    Several processes synchronize at its end.
    """
    if self._any_of is not None:
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
  """Ignores all signals from here on, for a process whose work is done."""
  for number in _NUMBERS:
    signal.signal(number, signal.SIG_IGN)
