"""Draws stratified choices: each of `count` options once in every `count` items."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random

MAX_STRATA = 4_096


def hashed(*parts: object) -> int:
  """Hashes the parts to a 64-bit number, the same on every machine."""
  text = '/'.join(map(str, parts))
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), 'big')


def rng(*parts: object) -> random.Random:
  """Returns a generator seeded by the parts alone."""
  return random.Random(hashed(*parts))


@functools.lru_cache(maxsize=64)
def subsets(total: int, size: int) -> tuple[tuple[int, ...], ...]:
  """Returns all subsets of `size` of `total` indices, in lexicographic order."""
  return tuple(itertools.combinations(range(total), size))


def stratum(
  seed: int, split: str, what: str, count: int, index: int, otherwise: random.Random
) -> int:
  """Picks one of `count` options for item `index`, each once in every block of `count` items.

  Beyond `MAX_STRATA` options, it is drawn from `otherwise`.
  """
  if count > MAX_STRATA:
    return otherwise.randrange(count)
  return _permutation(seed, split, what, count, index // count)[index % count]


@functools.lru_cache(maxsize=256)
def _permutation(seed: int, split: str, what: str, count: int, block: int) -> tuple[int, ...]:
  order = list(range(count))
  rng(seed, split, what, block).shuffle(order)
  return tuple(order)
