"""Selects the kind of device that programs are planned for."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_PLANNED = contextvars.ContextVar[str]('kind', default='')


def current() -> str:
  """Returns the kind of this process's devices, or that of `planned_for`."""
  return _PLANNED.get() or jax.default_backend()


@contextlib.contextmanager
def planned_for(kind: str) -> Iterator[None]:
  """Makes `current` return `kind`: 'cpu', 'gpu' or 'tpu', or '' for that of the devices here.

  Serves to plan runs on other machines; programs that run meanwhile use the devices here.
  """
  token = _PLANNED.set(kind)
  try:
    yield
  finally:
    _PLANNED.reset(token)
