"""Draws by hashed names: splits and stratified choices, the same on every machine."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import random
import re

_MAX_STRATA = 4_096


def _hashed(*parts: object) -> int:
  """Hashes the parts to a 64-bit number."""
  text = '/'.join(map(str, parts))
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), 'big')


def rng(*parts: object) -> random.Random:
  """Returns a generator seeded by the parts alone."""
  return random.Random(_hashed(*parts))


def masked(text: str) -> str:
  """Returns the text's lower-case words, numbers masked; equal for copies of a problem."""
  text = re.sub(r'[0-9]+(?:[.,/][0-9]+)*', ' number ', text.lower())
  return ' '.join(re.findall(r'[a-z]+', text))


def bucket(text: str) -> int:
  """Hashes the masked text to 0..99, so that copies of a problem share a bucket."""
  return _hashed(masked(text)) % 100


def stratum(
  seed: int, split: str, what: str, count: int, index: int, otherwise: random.Random
) -> int:
  """Picks one of `count` options for item `index`, each once in every block of `count` items.

  Beyond 4,096 options, it is drawn from `otherwise`.
  """
  if count > _MAX_STRATA:
    return otherwise.randrange(count)
  return _permutation(seed, split, what, count, index // count)[index % count]


def chosen(
  seed: int, split: str, what: str, total: int, size: int, index: int, otherwise: random.Random
) -> tuple[bool, ...]:
  """Picks `size` of `total` places for item `index`, stratified over the subsets (`stratum`).

  Returns:
    True for each chosen place, `[total]`.
  """
  count = math.comb(total, size)
  if count > _MAX_STRATA:
    places = tuple(otherwise.sample(range(total), size))
  else:
    places = _subsets(total, size)[stratum(seed, split, what, count, index, otherwise)]
  return tuple(place in places for place in range(total))


@functools.lru_cache(maxsize=64)
def _subsets(total: int, size: int) -> tuple[tuple[int, ...], ...]:
  return tuple(itertools.combinations(range(total), size))


@functools.lru_cache(maxsize=256)
def _permutation(seed: int, split: str, what: str, count: int, block: int) -> tuple[int, ...]:
  order = list(range(count))
  rng(seed, split, what, block).shuffle(order)
  return tuple(order)
