"""Attention of one token a row to a cache as it was, and to itself beside it.

The result is that of the cache with the token's own keys and values written to it. But what is
read is not what is being written: else a TPU moves whole caches to fast memory, writes one column
of each there, and moves them back.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.ops.attention import scale
from agent_gspo.ops.precision import operand

Parts = tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""Keys and values of the cache before `[B, K, S, d]`, and of the token `[B, K, 1, d]`."""

ROWS = 128
"""From so many on it pays; caches of fewer rows stay in fast memory (docs/performance.md)."""


def attend(q: jax.Array, parts: Parts, before: jax.Array) -> jax.Array:
  """`[B, K, g, 1, d]` like `q`, which is as in the package.

  Args:
    q: one query a row.
    parts: of keys and values.
    before: bool `[B, S]`, columns of the cache before that the query sees.
  """
  (k, v), (own_k, own_v) = parts
  rows = q[:, :, :, 0]
  scores = jnp.einsum('bkgd,bksd->bkgs', rows, k, preferred_element_type=jnp.float32)
  scores += jnp.where(before, 0.0, -1e30)[:, None, None]
  own = (rows.astype(jnp.float32) * own_k.astype(jnp.float32)).sum(axis=-1, keepdims=True)
  highest = scale.above(jnp.maximum(scores.max(axis=-1, keepdims=True), own))
  weights, own_weight = jnp.exp(scores - highest), jnp.exp(own - highest)
  total = weights.sum(axis=-1, keepdims=True) + own_weight
  # Or the product would take all exponentials once more.
  weights = jax.lax.optimization_barrier(operand(weights, v.dtype))
  out = jnp.einsum('bkgs,bksd->bkgd', weights, v, preferred_element_type=jnp.float32)
  out += operand(own_weight, v.dtype).astype(jnp.float32) * own_v.astype(jnp.float32)
  return operand(out / total, v.dtype)[:, :, :, None]
