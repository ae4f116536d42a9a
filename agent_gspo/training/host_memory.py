"""Keeps freed host memory in the process, between programs that reuse it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def keep() -> None:
  """Sets glibc's malloc to keep freed memory; call it before threads allocate. No-op elsewhere.

  On a CPU each program allocates its temporaries and frees them at its end. By default they go
  back to the system at once, which clears every page again for the next program: a seventh of the
  time of an update (docs/performance.md).
  """
  if mallopt := _of_glibc('mallopt'):
    mallopt(_M_ARENA_MAX, 1)  # one arena: all threads reuse freed memory
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)


def give_back() -> None:
  """Returns freed memory to the system, between phases whose arrays differ in size.

  What one phase leaves is too scattered for the next one's arrays. Takes a tenth of a second per
  GB, once a phase. No-op where there is no glibc.
  """
  if malloc_trim := _of_glibc('malloc_trim'):
    malloc_trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
  return getattr(ctypes.CDLL(None), name, None) if sys.platform == 'linux' else None
