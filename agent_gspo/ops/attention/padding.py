"""Pads rows to a multiple of the block size."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def to_multiple(
  size: int, q: jax.Array, k: jax.Array, v: jax.Array, subtree_end: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Pads `T` of `[B, K, g, T, d]`, `[B, K, T, d]` twice and `[B, T]` to a multiple of `size`.

  Each padding column is its own tree, to which no other column attends.
  """
  length = subtree_end.shape[1]
  more = -length % size
  if not more:
    return q, k, v, subtree_end
  wider = lambda x: jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, more), (0, 0)))
  own = jnp.arange(length + 1, length + more + 1, dtype=subtree_end.dtype)
  own = jnp.broadcast_to(own[None], (subtree_end.shape[0], more))
  return wider(q), wider(k), wider(v), jnp.concatenate([subtree_end, own], axis=1)
