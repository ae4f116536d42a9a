"""Simulates a full disk."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full(size: int = 0) -> Iterator[None]:
  """Makes writes beyond `size` bytes of a file fail, as on a full disk but with another errno.

  Python ignores the signal that the kernel also sends.
  """
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
