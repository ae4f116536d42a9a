"""Derives random keys from the identity of a row, independent of its batch."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.sampling.shapes import bucket


def question_number(question_id: str) -> int:
  """Hashes a question id to a stable 31-bit number, to fold into its keys."""
  return zlib.crc32(question_id.encode()) & 0x7FFFFFFF


def stream(seed: int, name: str) -> jax.Array:
  """Returns the root key of a random stream ('train', 'eval', ...); streams do not overlap."""
  return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


@functools.partial(jax.jit, static_argnames='width')
def _fold_rows(root: jax.Array, rows: jax.Array, width: int) -> jax.Array:
  def one(row):
    key = root
    for column in range(width):
      key = jax.random.fold_in(key, row[column])
    return key

  return jax.vmap(one)(rows)


def row_keys(root: jax.Array, rows: np.ndarray) -> jax.Array:
  """Folds each column of the non-negative int rows `[N, C]` into `root`; returns keys `[N]`.

  The rollout's columns are (step, question number, sample, agent, turn).
  """
  rows = np.asarray(rows, np.uint32)
  n = len(rows)
  padded = np.pad(rows, ((0, bucket(n, 8) - n), (0, 0)))  # few shapes: no recompilation by `N`
  return take(_fold_rows(root, padded, rows.shape[1]), np.arange(n))


def take(keys: jax.Array, rows: np.ndarray) -> jax.Array:
  """Selects keys on the host; a device gather would be compiled for each pair of sizes."""
  data = np.asarray(jax.random.key_data(keys))[rows]
  return jax.random.wrap_key_data(data, impl=jax.random.key_impl(keys))


def to_seeds(keys: jax.Array) -> list[int]:
  """Returns threefry keys `[N]` as signed 64-bit numbers, the seeds that other servers accept."""
  high, low = np.asarray(jax.random.key_data(keys)).astype(np.int64).T
  return (high << 32 | low).tolist()


def of_seeds(seeds: Sequence[int]) -> jax.Array:
  """Returns the keys `[N]` of signed 64-bit seeds, the inverse of `to_seeds`."""
  bits = np.asarray(seeds, np.int64).view(np.uint64)
  words = np.stack([bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)], axis=-1)
  return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl='threefry2x32')
