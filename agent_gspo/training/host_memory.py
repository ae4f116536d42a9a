"""Keeps freed host memory in the process, between programs that reuse it."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
from collections.abc import Callable

_SMALL = 2 << 30  # bytes
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8


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


def release() -> None:
  """Sets glibc's malloc to return what is freed at once, after `keep`. No-op elsewhere.

  Takes less memory than glibc's default, which keeps blocks up to the largest one that was freed.
  """
  if mallopt := _of_glibc('mallopt'):
    mallopt(_M_MMAP_MAX, 1 << 16)
    mallopt(_M_MMAP_THRESHOLD, 128 << 10)
    mallopt(_M_TRIM_THRESHOLD, 128 << 10)


def give_back() -> None:
  """Returns freed memory to the system, between phases whose arrays differ in size.

  What one phase leaves is too scattered for the next one's arrays. No-op where there is no glibc,
  and in a small process, which would wait for cleared pages and gain little.
  """
  if resident() > _SMALL and (malloc_trim := _of_glibc('malloc_trim')):
    malloc_trim(0)


class Ceiling:
  """Releases freed memory when a loop uses 10 % more than after its first iteration.

  glibc cannot place an aligned array in a gap of the same size, so that repeated programs may
  leave several gaps of their temporaries' size.
  """

  def __init__(self) -> None:
    self._highest = 0.0

  def check(self) -> None:
    """Marks the end of an iteration."""
    held = resident()
    self._highest = self._highest or 1.1 * held
    if held > self._highest:
      give_back()


def resident() -> int:
  """Returns the memory that the process holds, bytes; 0 where the system does not tell."""
  try:
    with open('/proc/self/statm') as file:
      pages = file.read().split()[1]
  except OSError:
    return 0
  return int(pages) * os.sysconf('SC_PAGE_SIZE')


def available(root: pathlib.Path = pathlib.Path('/')) -> int:
  """Returns the memory that the process may hold, bytes: the host's, or the limit of its cgroups.

  Containers and batch systems limit a process by cgroups, of version 1 or 2.

  Args:
    root: Folder of `proc` and `sys`.
  """
  limits = [os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')]
  try:
    groups = (root / 'proc/self/cgroup').read_text().splitlines()
  except OSError:
    return limits[0]
  for group in groups:  # number:controllers:/path; version 2 names no controllers
    _, controllers, path = group.split(':', 2)
    top, file = root / 'sys/fs/cgroup', 'memory.max'
    if controllers:
      top, file = top / 'memory', 'memory.limit_in_bytes'
      if 'memory' not in controllers.split(','):
        continue
    inner = top / path.lstrip('/')  # in a container the path may be that outside of it
    for folder in (inner, *inner.parents):
      if folder.is_relative_to(top) and os.access(folder / file, os.R_OK):
        text = (folder / file).read_text().strip()
        limits += [int(text)] if text.isdecimal() else []  # else "max"
  return min(limits)


def _of_glibc(name: str) -> Callable[..., int] | None:
  return getattr(ctypes.CDLL(None), name, None) if sys.platform == 'linux' else None
