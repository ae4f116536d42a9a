"""Choices that come out even: each of `count` options once in every `count` items."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random

MAX_STRATA = 4_096


def hashed(*parts: object) -> int:
  """A number that depends on nothing but the parts."""
  text = '/'.join(map(str, parts))
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), 'big')


def rng(*parts: object) -> random.Random:
  """A generator that depends on nothing but the parts."""
  return random.Random(hashed(*parts))


@functools.lru_cache(maxsize=64)
def subsets(total: int, size: int) -> tuple[tuple[int, ...], ...]:
  """All ways to choose `size` of `total` places, in order."""
  return tuple(itertools.combinations(range(total), size))


def stratum(
  seed: int, split: str, what: str, count: int, index: int, otherwise: random.Random
) -> int:
  """One of `count` options for item `index`: each block of `count` items holds every one once.

  Beyond `MAX_STRATA` options they are drawn from `otherwise`.
  """
  if count > MAX_STRATA:
    return otherwise.randrange(count)
  return _permutation(seed, split, what, count, index // count)[index % count]


@functools.lru_cache(maxsize=256)
def _permutation(seed: int, split: str, what: str, count: int, block: int) -> tuple[int, ...]:
  order = list(range(count))
  rng(seed, split, what, block).shuffle(order)
  return tuple(order)
