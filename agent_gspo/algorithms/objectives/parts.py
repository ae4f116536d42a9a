"""Provides the parts that objectives are composed of: log-ratio x surrogate x aggregation.

`T` tokens, `M` messages.

- A log-ratio, float32 `[T]`, is bounded for a finite `exp`.
- A surrogate is maximized at each token. It takes the log-ratio and the packed tokens, and returns
  its values `[T]` and where they were clipped, 0 or 1, `[T]`. `A` is the advantage of the token's
  message.
- An aggregation reduces values `[T]` to an unreduced `(total, count)`. A sequence is a message, or
  a span of messages if the packed tokens have spans: each message then counts as its share of the
  span, and shares sum to the number of spans.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.objectives import packed
from agent_gspo.algorithms.objectives.packed import PackedTokens

Surrogate = tuple[jax.Array, jax.Array]
Aggregate = tuple[jax.Array, jax.Array]

# exp(20) is beyond every clip band, so this bound never changes a clipped value; without it one
# overflow turns the whole batch into NaN.
MAX_EXPONENT = 20.0


def _bounded(log_ratio: jax.Array) -> jax.Array:
  return jnp.clip(log_ratio, -MAX_EXPONENT, MAX_EXPONENT)


def _own(x: PackedTokens) -> jax.Array:
  """Returns `log pi - log pi_old` `[T]`, 0 in padding."""
  return jnp.where(x.token_mask > 0, x.logprobs - x.old_logprobs, 0.0)


def token_ratio(x: PackedTokens) -> jax.Array:
  """Computes token-level log-ratios `log pi(y_t) - log pi_old(y_t)`, `[T]`."""
  return _bounded(_own(x))


def mean_log_ratio(x: PackedTokens) -> jax.Array:
  """Computes the mean log-ratio of each message, or of its span if given, `[M]`; unbounded."""
  if x.span_log_ratio is not None:
    return x.span_log_ratio
  return packed.message_mean(_own(x), x)


def sequence_ratio(x: PackedTokens) -> jax.Array:
  """Computes `log s_i` of the token's sequence (GSPO, arXiv 2507.18071, eq. 7), `[T]`.

  `log s_i = mean_t (log pi(y_it) - log pi_old(y_it))`. The gradient flows through `s_i`. With
  spans across micro-batches or token weights, `sequence_token_ratio` is used, which has the same
  value, and the same gradient where both are defined.
  """
  if x.span_log_ratio is not None or x.token_weights is not None:
    return sequence_token_ratio(x)
  return _bounded(mean_log_ratio(x))[x.message_ids]  # [M] -> [T]


def sequence_token_ratio(x: PackedTokens) -> jax.Array:
  """Computes `log (sg[s_i] pi(y_it) / sg[pi(y_it)])` (GSPO-token, arXiv 2507.18071, eq. 14)."""
  log_s = jax.lax.stop_gradient(mean_log_ratio(x))[x.message_ids]  # [M] -> [T]
  own = packed.logprobs(x)
  return _bounded(log_s + (own - jax.lax.stop_gradient(own)))


# Surrogates.


def clip(log_ratio: jax.Array, x: PackedTokens, *, low: float, high: float) -> Surrogate:
  """Computes PPO (arXiv 1707.06347, eq. 7): `min(r A, clip(r, 1 - low, 1 + high) A)`."""
  ratio, advantage = jnp.exp(log_ratio), packed.advantages(x)  # [T] each
  free, bounded = ratio * advantage, jnp.clip(ratio, 1 - low, 1 + high) * advantage
  return jnp.minimum(free, bounded), (bounded < free).astype(free.dtype)


def weighted_likelihood(
  log_ratio: jax.Array, x: PackedTokens, *, low: float, high: float
) -> Surrogate:
  """Computes CISPO (arXiv 2506.13585, eq. 4): `sg[clip(r, 1 - low, 1 + high)] A log pi`.

  The clip bounds a weight; no token loses its gradient.
  """
  ratio = jnp.exp(log_ratio)
  weight = jax.lax.stop_gradient(jnp.clip(ratio, 1 - low, 1 + high))
  value = weight * packed.advantages(x) * packed.logprobs(x)
  return value, (weight != ratio).astype(value.dtype)


def geometric_mean(log_ratio: jax.Array, x: PackedTokens, *, low: float, high: float) -> Surrogate:
  """Computes GMPO (arXiv 2507.20673, eq. 4): `A exp(mean_t c_t)`, equal at all tokens of a message.

  `c_t = min(log r_t, high)` where `A > 0` and `max(log r_t, -low)` where `A < 0`: each token is
  clipped before the mean, on the side where the clip lowers the objective.
  """
  advantage = packed.advantages(x)
  cut = jnp.where(advantage > 0, jnp.minimum(log_ratio, high), jnp.maximum(log_ratio, -low))
  ratio = jnp.exp(packed.weighted_mean(cut, x))[x.message_ids]  # [M] -> [T]
  clipped = (cut != log_ratio) & (advantage != 0)
  return ratio * advantage, clipped.astype(ratio.dtype)


def soft_gate(
  log_ratio: jax.Array, x: PackedTokens, *, tau_positive: float, tau_negative: float
) -> Surrogate:
  """Computes SAPO (arXiv 2511.20347): `(4 / tau) sigmoid(tau (r - 1)) A`, tau by the sign of `A`.

  The gate's slope is 1 at `r = 1` and decays on both sides without a cutoff.
  """
  ratio, advantage = jnp.exp(log_ratio), packed.advantages(x)
  tau = jnp.where(advantage > 0, tau_positive, tau_negative)
  value = 4.0 / tau * jax.nn.sigmoid(tau * (ratio - 1.0)) * advantage
  return value, jnp.zeros_like(value)


def likelihood(log_ratio: jax.Array, x: PackedTokens) -> Surrogate:
  """Computes REINFORCE: `A log pi`; the ratio is not read."""
  value = packed.advantages(x) * packed.logprobs(x)
  return value, jnp.zeros_like(log_ratio)


# Aggregations.


def _sequences(x: PackedTokens) -> jax.Array:
  """Returns the share of each message in its sequence, `[M]`."""
  return x.message_mask if x.span_share is None else x.message_mask * x.span_share


def sequence_mean(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Averages over sequences the mean over their tokens: every sequence has equal weight."""
  share = _sequences(x)  # [M]
  return jnp.sum(share * packed.weighted_mean(values, x)), jnp.sum(share)


def token_sum(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Averages over sequences the sum over their tokens: weight is proportional to length."""
  weights = packed.loss_weights(x)  # [T]
  return jnp.sum(jnp.where(weights > 0, values, 0.0) * weights), jnp.sum(_sequences(x))


def constant_length(values: jax.Array, x: PackedTokens, *, max_length: float) -> Aggregate:
  """Divides `token_sum` by a constant length: a token's weight does not depend on other lengths."""
  total, count = token_sum(values, x)
  return total / max_length, count


def token_mean(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Averages over all tokens of the batch; `count` is the number of tokens."""
  return token_sum(values, x)[0], jnp.sum(packed.loss_weights(x))
