"""Computes log importance ratios of packed tokens, float32 `[T]`, bounded for a finite `exp`.

Each is one of the three parts of an objective: ratio x surrogate x aggregation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.objectives import packed
from agent_gspo.algorithms.objectives.packed import PackedTokens

# exp(20) is beyond every clip band, so this bound never changes a clipped value; without it one
# overflow turns the whole batch into NaN.
MAX_EXPONENT = 20.0


def _bounded(log_ratio: jax.Array) -> jax.Array:
  return jnp.clip(log_ratio, -MAX_EXPONENT, MAX_EXPONENT)


def _own(x: PackedTokens) -> jax.Array:
  """Returns `log pi - log pi_old` `[T]`, 0 in padding."""
  return jnp.where(x.token_mask > 0, x.logprobs - x.old_logprobs, 0.0)


def token(x: PackedTokens) -> jax.Array:
  """Computes token-level log-ratios `log pi(y_t) - log pi_old(y_t)`, `[T]`."""
  return _bounded(_own(x))


def of_sequences(x: PackedTokens) -> jax.Array:
  """Computes the mean log-ratio of each message, or of its span if given, `[M]`; unbounded."""
  if x.span_log_ratio is not None:
    return x.span_log_ratio
  return packed.message_mean(_own(x), x)


def sequence(x: PackedTokens) -> jax.Array:
  """Computes `log s_i` of the token's sequence (GSPO, arXiv 2507.18071, eq. 7), `[T]`.

  `log s_i = mean_t (log pi(y_it) - log pi_old(y_it))`. The gradient flows through `s_i`. With
  spans across micro-batches or token weights, `sequence_token` is used, which has the same value,
  and the same gradient where both are defined.
  """
  if x.span_log_ratio is not None or x.token_weights is not None:
    return sequence_token(x)
  return _bounded(of_sequences(x))[x.message_ids]  # [M] -> [T]


def sequence_token(x: PackedTokens) -> jax.Array:
  """Computes `log (sg[s_i] pi(y_it) / sg[pi(y_it)])` (GSPO-token, arXiv 2507.18071, eq. 14)."""
  log_s = jax.lax.stop_gradient(of_sequences(x))[x.message_ids]  # [M] -> [T]
  own = packed.logprobs(x)
  return _bounded(log_s + (own - jax.lax.stop_gradient(own)))
