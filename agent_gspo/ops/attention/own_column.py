"""Computes decode attention of one token per row to the old KV cache and, separately, to itself.

The result equals attention to the cache with the token's own keys and values written to it. The
buffer that is read is not the one written: otherwise a TPU moves whole caches to fast memory,
writes one column of each there, and moves them back.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.ops import soft_cap
from agent_gspo.ops.precision import operand, score_offset

Parts = tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""Keys and values of the old cache `[B, K, S, d]`, and of the token `[B, K, 1, d]`."""

ROWS = 128
"""Rows from which this is faster; smaller caches stay in fast memory (docs/performance.md)."""


def attend(q: jax.Array, parts: Parts, before: jax.Array, *, cap: float | None = None) -> jax.Array:
  """Computes attention of one query per row, `[B, K, g, 1, d]` like `q`.

  Args:
    q, cap: Queries and cap, see the package.
    parts: Keys and values.
    before: Visible columns of the old cache, bool `[B, S]`.
  """
  (k, v), (own_k, own_v) = parts
  rows = q[:, :, :, 0]  # [B, K, g, d]; scores [B, K, g, S], own [B, K, g, 1]
  scores = jnp.einsum('bkgd,bksd->bkgs', rows, k, preferred_element_type=jnp.float32)
  scores = soft_cap.apply(scores, cap) + jnp.where(before, 0.0, -1e30)[:, None, None]
  own = (rows.astype(jnp.float32) * own_k.astype(jnp.float32)).sum(axis=-1, keepdims=True)
  own = soft_cap.apply(own, cap)
  highest = score_offset(jnp.maximum(scores.max(axis=-1, keepdims=True), own))
  weights, own_weight = jnp.exp(scores - highest), jnp.exp(own - highest)
  total = weights.sum(axis=-1, keepdims=True) + own_weight
  # Without the barrier the product would recompute all exponentials.
  weights = jax.lax.optimization_barrier(operand(weights, v.dtype))
  out = jnp.einsum('bkgs,bksd->bkgd', weights, v, preferred_element_type=jnp.float32)
  out += operand(own_weight, v.dtype).astype(jnp.float32) * own_v.astype(jnp.float32)
  return operand(out / total, v.dtype)[:, :, :, None]
