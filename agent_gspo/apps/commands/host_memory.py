"""What a process frees stays with it, for the next program that asks."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def keep() -> None:
  """Tells glibc so, before threads allocate; elsewhere it does nothing.

  On a CPU each program that runs takes memory for its temporaries and frees it at its end. By
  default that goes back to the system at once, which has to clear every page of it for the next
  one: a seventh of the time of an update (docs/performance.md).
  """
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None) if sys.platform == 'linux' else None
  if mallopt is not None:
    mallopt(_M_ARENA_MAX, 1)  # what a thread frees serves all of them
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)
