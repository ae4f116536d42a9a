"""Keeps freed host memory in the process, for its next program."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def keep() -> None:
  """Sets glibc's malloc to keep freed memory; call it before threads allocate. No-op elsewhere.

  On a CPU each program allocates its temporaries and frees them at its end. By default they go
  back to the system at once, which clears every page again for the next program: a seventh of the
  time of an update (docs/performance.md).
  """
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None) if sys.platform == 'linux' else None
  if mallopt is not None:
    mallopt(_M_ARENA_MAX, 1)  # one arena: all threads reuse freed memory
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)
