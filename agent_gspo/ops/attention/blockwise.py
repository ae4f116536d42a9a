"""Computes tree attention one block of scores at a time in plain JAX, with linear memory.

Fully masked blocks are skipped. The backward pass recomputes the scores from their log-sum-exp
(FlashAttention-2, arXiv 2307.08691).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from agent_gspo.ops import soft_cap
from agent_gspo.ops.attention import KEPT, padding
from agent_gspo.ops.attention.masks import TreeMask
from agent_gspo.ops.precision import operand, score_offset

BLOCK = 64
"""Queries, and keys, of a block; small, since on a CPU more masked blocks are then skipped."""

_LOW = -1e30
_product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def attend(
  q: jax.Array, k: jax.Array, v: jax.Array, mask: TreeMask, *, cap: float | None = None
) -> jax.Array:
  """Computes tree attention (see `agent_gspo.ops.attention`)."""
  length = q.shape[3]
  q, k, v, mask = padding.to_multiple(BLOCK, q, k, v, mask)
  return _attend(cap, q, k, v, mask)[:, :, :, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(cap, q, k, v, mask):
  return _forward(cap, q, k, v, mask)[0]


def _forward(cap, q, k, v, mask):
  """Returns the output `[B, K, g, T, d]` and the log-sum-exp of the scores `[B, K, g, T]`."""

  def of_queries(i):
    q_i = _block(q, i, 3)  # [B, K, g, BLOCK, d]
    none = q_i[..., 0].astype(jnp.float32)  # [B, K, g, BLOCK]

    def add(j, state):
      highest, total, out = state
      scores = _scores(cap, q_i, _block(k, j, 2), mask, i, j)  # [B, K, g, BLOCK, BLOCK]
      new = jnp.maximum(highest, score_offset(scores.max(axis=-1)))
      weights, rescale = jnp.exp(scores - new[..., None]), jnp.exp(highest - new)
      # [B, K, g, BLOCK, d]
      values = _product('bkgts,bksd->bkgtd', operand(weights, v.dtype), _block(v, j, 2))
      return (
        new,
        total * rescale + weights.sum(axis=-1),
        out * rescale[..., None] + values,
      )

    # Running maximum and sum [B, K, g, BLOCK], unnormalized output [B, K, g, BLOCK, d].
    start = (jnp.full_like(none, _LOW), jnp.zeros_like(none), jnp.zeros_like(q_i, jnp.float32))
    highest, total, out = _over_keys(i, mask, add, start)
    return operand(out / total[..., None], v.dtype), highest + jnp.log(total)

  return tuple(_joined(x) for x in jax.lax.map(of_queries, jnp.arange(q.shape[3] // BLOCK)))


def keep(forward, how, q, k, v, mask):
  """Returns the output of `forward`, and all that its gradient reads, named `KEPT`."""
  out, log_total = checkpoint_name(forward(how, q, k, v, mask), KEPT)
  return out, (q, k, v, mask, out, log_total)


def _backward(cap, kept, gradient):
  q, k, v, mask, out, log_total = kept
  # Common term of the weights' gradients, since weights sum to 1: [B, K, g, T].
  common = _product('bkgtd,bkgtd->bkgt', out, gradient)

  def of_queries(state, i):
    q_i, gradient_i = _block(q, i, 3), _block(gradient, i, 3)
    log_total_i, common_i = _block(log_total, i, 3), _block(common, i, 3)

    def add(j, state):
      dq, dk, dv = state  # [B, K, g, BLOCK, d], [B, K, T, d] twice
      k_j = _block(k, j, 2)  # [B, K, BLOCK, d]
      # scores, weights, dweights, dscores: [B, K, g, BLOCK, BLOCK]
      scores = _scores(cap, q_i, k_j, mask, i, j)
      weights = jnp.exp(scores - log_total_i[..., None])
      dweights = _product('bkgtd,bksd->bkgts', gradient_i, _block(v, j, 2))
      dscores = soft_cap.times_slope(weights * (dweights - common_i[..., None]), scores, cap)
      dscores = operand(dscores, q.dtype)
      weights = operand(weights, v.dtype)
      return (
        dq + _product('bkgts,bksd->bkgtd', dscores, k_j),
        _add_block(dk, j, _product('bkgts,bkgtd->bksd', dscores, q_i)),
        _add_block(dv, j, _product('bkgts,bkgtd->bksd', weights, gradient_i)),
      )

    dq, *state = _over_keys(i, mask, add, (jnp.zeros_like(q_i, jnp.float32), *state))
    return tuple(state), operand(dq, q.dtype)

  none = jnp.zeros(k.shape, jnp.float32)
  (dk, dv), dq = jax.lax.scan(of_queries, (none, none), jnp.arange(q.shape[3] // BLOCK))
  return _joined(dq), operand(dk, k.dtype), operand(dv, v.dtype), None


_attend.defvjp(functools.partial(keep, _forward), _backward)


def _over_keys(i: jax.Array, mask: TreeMask, add: Any, state: Any) -> Any:
  """Applies `state = add(j, state)` for each key block with a key visible to query block `i`."""
  blocks = lambda x: x.reshape(x.shape[0], -1, BLOCK)  # [B, T] -> [B, T / BLOCK, BLOCK]
  seen = blocks(mask.subtree_end).max(axis=(0, 2)) > i * BLOCK  # [T / BLOCK]
  if mask.window is not None:
    positions = blocks(mask.positions)
    nearest = positions[:, i].min(axis=1)[:, None] - positions.max(axis=2)  # [B, T / BLOCK]
    seen &= (nearest < mask.window).any(axis=0)

  def maybe(j, state):
    return jax.lax.cond(seen[j], lambda: add(j, state), lambda: state)

  return jax.lax.fori_loop(0, i + 1, maybe, state)


def _scores(cap, q_i, k_j, mask, i, j):
  """Computes masked scores of query block `i` and key block `j`, float32 `[B, K, g, t, s]`."""
  hidden = jnp.where(mask.block(i, j, BLOCK), 0.0, _LOW)[:, None, None]
  return soft_cap.apply(_product('bkgtd,bksd->bkgts', q_i, k_j), cap) + hidden


def _block(x: jax.Array, i: jax.Array, axis: int) -> jax.Array:
  return jax.lax.dynamic_slice_in_dim(x, i * BLOCK, BLOCK, axis)


def _add_block(x: jax.Array, i: jax.Array, change: jax.Array) -> jax.Array:
  return jax.lax.dynamic_update_slice_in_dim(x, _block(x, i, 2) + change, i * BLOCK, 2)


def _joined(blocks: jax.Array) -> jax.Array:
  """Reshapes `[n, B, K, g, BLOCK, ...]` to `[B, K, g, n * BLOCK, ...]`."""
  x = jnp.moveaxis(blocks, 0, 3)
  return x.reshape(*x.shape[:3], -1, *x.shape[5:])
