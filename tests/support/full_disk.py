"""A disk that takes no more."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full(size: int = 0) -> Iterator[None]:
  """No file grows beyond `size` bytes: as on a full disk, if under another name.

  Python ignores the signal that comes with it.
  """
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
