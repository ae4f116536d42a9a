"""Computes attention by definition, with all scores in memory; autodiff gives the gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.ops import soft_cap
from agent_gspo.ops.attention.masks import Mask
from agent_gspo.ops.precision import operand, score_offset


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: Mask,
  *,
  cap: float | None = None,
  sum_values: bool = False,
) -> jax.Array:
  """Computes attention (see `agent_gspo.ops.attention`) with all scores `[B, K, g, T, S]`.

  The `g` query heads of one key head form one matrix, and the softmax is normalized after the
  values: both limit the scores to one pass through memory.

  Args:
    q, k, v, mask, cap: See the package.
    sum_values: Sums values elementwise for one query per row: no matmul, and the sum fuses (14x
      faster on CPU, slower elsewhere).
  """
  b, heads, g, t, d = q.shape
  # [B, K, g * T, d] x [B, K, S, d] -> [B, K, g, T, S]
  scores = jnp.einsum(
    'bknd,bksd->bkns', q.reshape(b, heads, g * t, d), k, preferred_element_type=jnp.float32
  ).reshape(b, heads, g, t, -1)
  scores = soft_cap.apply(scores, cap) + jnp.where(mask.dense(), 0.0, -1e30)[:, None, None]
  highest = score_offset(jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
  weights = jnp.exp(scores - highest)  # [B, K, g, T, S]
  total = weights.sum(axis=-1)[..., None]  # [B, K, g, T, 1]
  weights = operand(weights, v.dtype)
  if t == 1 and sum_values:
    wide, values = weights.astype(jnp.float32), v.astype(jnp.float32)
    # Sum over S: [B, K, g, S, 1] * [B, K, 1, S, d] -> [B, K, g, 1, d]
    out = (wide[:, :, :, 0, :, None] * values[:, :, None]).sum(axis=3)[:, :, :, None, :]
  else:
    weights = weights.reshape(b, heads, g * t, -1)  # [B, K, g * T, S]
    out = jnp.einsum('bkns,bksd->bknd', weights, v, preferred_element_type=jnp.float32)
  return operand(out.reshape(b, heads, g, t, d) / total, v.dtype)
