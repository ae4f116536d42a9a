"""Random keys that depend on what a row is, never on the batch it is in."""

from __future__ import annotations

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np


def question_number(question_id: str) -> int:
  """A stable 31-bit number for a question, to fold into its keys."""
  return zlib.crc32(question_id.encode()) & 0x7FFFFFFF


def stream(seed: int, name: str) -> jax.Array:
  """Root key of one use of randomness ('train', 'eval', ...); streams do not overlap."""
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
  """Keys `[N]`: `root` folded with each column of the non-negative int rows `[N, C]`.

  The rollout's columns are (step, question number, sample, agent, turn).
  """
  rows = np.asarray(rows)
  return _fold_rows(root, jnp.asarray(rows, jnp.uint32), rows.shape[1])
