"""Pads rows to a multiple of the block size."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.ops.attention.masks import TreeMask


def to_multiple(
  size: int, q: jax.Array, k: jax.Array, v: jax.Array, mask: TreeMask
) -> tuple[jax.Array, jax.Array, jax.Array, TreeMask]:
  """Pads `T` of `q` `[B, K, g, T, d]`, `k`, `v` `[B, K, T, d]` and `mask` to a multiple of `size`.

  Each padding column is its own tree, to which no other column attends.
  """
  rows, length = mask.subtree_end.shape
  more = -length % size
  if not more:
    return q, k, v, mask
  wider = lambda x: jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, more), (0, 0)))
  own = jnp.arange(length + 1, length + more + 1, dtype=mask.subtree_end.dtype)
  ends = jnp.concatenate([mask.subtree_end, jnp.broadcast_to(own[None], (rows, more))], axis=1)
  positions = None if mask.positions is None else jnp.pad(mask.positions, ((0, 0), (0, more)))
  return wider(q), wider(k), wider(v), TreeMask(ends, positions, mask.window)
