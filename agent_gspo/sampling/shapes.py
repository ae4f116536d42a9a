"""Rounds array sizes up to few shapes, so that few programs are compiled."""

from __future__ import annotations


def bucket(n: int, smallest: int, *, halves: bool = True) -> int:
  """Rounds `n` up to `smallest * {1, 1.5} * 2^k`: few shapes, at most a third is padding.

  Args:
    n: Size to round up.
    smallest: Smallest size.
    halves: Whether sizes at 1.5 are used; without them up to a half is padding.
  """
  size = smallest
  while size < n:
    if halves and size % 2 == 0 and size * 3 // 2 >= n:
      return size * 3 // 2
    size *= 2
  return size
