"""Provides the parts that objectives are composed of: log-ratio x surrogate x aggregation.

`T` loss tokens, `M` messages. The tokens of all messages are one array (`PackedTokens`), whose
`message_ids` map tokens to messages, so that results do not depend on how messages were packed.

- A log-ratio, float32 `[T]`, is bounded for a finite `exp`.
- A surrogate is maximized at each token. It takes the log-ratio and the packed tokens, and returns
  its values `[T]` and where they were clipped, 0 or 1, `[T]`. `A` is the advantage of the token's
  message.
- An aggregation reduces values `[T]` to an unreduced `(total, count)`. A sequence is a message, or
  a span of messages if the packed tokens have spans: each message then counts as its share of the
  span, and shares sum to the number of spans.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

Surrogate = tuple[jax.Array, jax.Array]
Aggregate = tuple[jax.Array, jax.Array]

# exp(20) is beyond every clip band, so this bound never changes a clipped value; without it one
# overflow turns the whole batch into NaN.
MAX_EXPONENT = 20.0


@chex.dataclass(frozen=True)
class PackedTokens:
  """Inputs shared by all objectives. Optional fields have no effect if None.

  Attributes:
    logprobs: Log-probs under the trained policy, float32 `[T]`.
    old_logprobs: Log-probs under the policy before the first update, float32 `[T]`.
    message_ids: Message of each token, int32 `[T]`, `0 .. M-1`.
    token_mask: 0 for padding, float32 `[T]`.
    advantages: Advantage of each message, float32 `[M]`.
    message_mask: 0 for padding, float32 `[M]`.
    token_weights: Weight of each token in the loss, at least 0, float32 `[T]`. Ratios still use
      all tokens of a message, and a message whose weights are all 0 still counts.
    importance: Constant factor of each token's surrogate, float32 `[T]`, see
      `off_policy.truncated_weights`. The objective's count does not change.
    token_penalty: Penalty subtracted from each token's surrogate before aggregation, float32
      `[T]`, such as `kl_coef * k3`. Gradient flows into it.
    sampler_logprobs: Log-probs under the behavior policy, float32 `[T]`; None: `old_logprobs`.
    span_log_ratio: Constant mean log-ratio over all tokens of the message's span, float32 `[M]`,
      see `spans.span_statistics`. A sequence is then a span of messages, which may lie in
      different micro-batches.
    span_share: Tokens of the message / tokens of its span, float32 `[M]`; given together with
      `span_log_ratio`.
  """

  logprobs: chex.Array  # [T]
  old_logprobs: chex.Array  # [T]
  message_ids: chex.Array  # [T]
  token_mask: chex.Array  # [T]
  advantages: chex.Array  # [M]
  message_mask: chex.Array  # [M]
  token_weights: chex.Array | None = None  # [T]
  importance: chex.Array | None = None  # [T]
  token_penalty: chex.Array | None = None  # [T]
  sampler_logprobs: chex.Array | None = None  # [T]
  span_log_ratio: chex.Array | None = None  # [M]
  span_share: chex.Array | None = None  # [M]


def check(x: PackedTokens) -> None:
  """Raises AssertionError if shapes or types are inconsistent."""
  chex.assert_rank([x.logprobs, x.advantages], 1)
  per_token = [x.old_logprobs, x.message_ids, x.token_mask]
  per_token += [x.token_weights, x.importance, x.token_penalty, x.sampler_logprobs]
  per_message = [x.message_mask, x.span_log_ratio, x.span_share]
  chex.assert_equal_shape([x.logprobs, *(v for v in per_token if v is not None)])
  chex.assert_equal_shape([x.advantages, *(v for v in per_message if v is not None)])
  chex.assert_type([x.logprobs, x.old_logprobs, x.advantages], float)
  if (x.span_log_ratio is None) != (x.span_share is None):
    raise AssertionError('span_log_ratio and span_share are given together or not at all.')


def message_sum(values: jax.Array, x: PackedTokens) -> jax.Array:
  """Sums `values` `[T]` over the tokens of each message, `[M]`."""
  # Not `values * mask`: padding may hold infinities, and 0 * inf is NaN.
  values = jnp.where(x.token_mask > 0, values, 0.0)
  return jax.ops.segment_sum(values, x.message_ids, x.advantages.shape[0])


def message_mean(values: jax.Array, x: PackedTokens) -> jax.Array:
  """Averages `values` `[T]` over the tokens of each message, `[M]`; 0 for empty ones."""
  return message_sum(values, x) / jnp.maximum(message_sum(x.token_mask, x), 1.0)


def loss_weights(x: PackedTokens) -> jax.Array:
  """Returns the weight of each token in the loss, `[T]`: 0 in padding tokens and messages."""
  weights = x.token_mask * x.message_mask[x.message_ids]  # [T]
  return weights if x.token_weights is None else weights * x.token_weights


def weighted_mean(values: jax.Array, x: PackedTokens) -> jax.Array:
  """Averages `values` `[T]` over each message by `loss_weights`, `[M]`; 0 if they sum to 0."""
  weights = loss_weights(x)  # [T]
  total = message_sum(weights, x)  # [M]
  weighted = message_sum(jnp.where(weights > 0, values, 0.0) * weights, x)
  return weighted / jnp.where(total > 0, total, 1.0)


def advantages(x: PackedTokens) -> jax.Array:
  """Returns the advantage of each token's message, `[T]`; 0 in padded messages."""
  return jnp.where(x.message_mask > 0, x.advantages, 0.0)[x.message_ids]


def logprobs(x: PackedTokens) -> jax.Array:
  """Returns `log pi` `[T]`, 0 in padding."""
  return jnp.where(x.token_mask > 0, x.logprobs, 0.0)


# Log-ratios.


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
  return message_mean(_own(x), x)


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
  own = logprobs(x)
  return _bounded(log_s + (own - jax.lax.stop_gradient(own)))


# Surrogates.


def clip(log_ratio: jax.Array, x: PackedTokens, *, low: float, high: float) -> Surrogate:
  """Computes PPO (arXiv 1707.06347, eq. 7): `min(r A, clip(r, 1 - low, 1 + high) A)`."""
  ratio, advantage = jnp.exp(log_ratio), advantages(x)  # [T] each
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
  value = weight * advantages(x) * logprobs(x)
  return value, (weight != ratio).astype(value.dtype)


def geometric_mean(log_ratio: jax.Array, x: PackedTokens, *, low: float, high: float) -> Surrogate:
  """Computes GMPO (arXiv 2507.20673, eq. 4): `A exp(mean_t c_t)`, equal at all tokens of a message.

  `c_t = min(log r_t, high)` where `A > 0` and `max(log r_t, -low)` where `A < 0`: each token is
  clipped before the mean, on the side where the clip lowers the objective.
  """
  advantage = advantages(x)
  cut = jnp.where(advantage > 0, jnp.minimum(log_ratio, high), jnp.maximum(log_ratio, -low))
  ratio = jnp.exp(weighted_mean(cut, x))[x.message_ids]  # [M] -> [T]
  clipped = (cut != log_ratio) & (advantage != 0)
  return ratio * advantage, clipped.astype(ratio.dtype)


def soft_gate(
  log_ratio: jax.Array, x: PackedTokens, *, tau_positive: float, tau_negative: float
) -> Surrogate:
  """Computes SAPO (arXiv 2511.20347): `(4 / tau) sigmoid(tau (r - 1)) A`, tau by the sign of `A`.

  The gate's slope is 1 at `r = 1` and decays on both sides without a cutoff.
  """
  ratio, advantage = jnp.exp(log_ratio), advantages(x)
  tau = jnp.where(advantage > 0, tau_positive, tau_negative)
  value = 4.0 / tau * jax.nn.sigmoid(tau * (ratio - 1.0)) * advantage
  return value, jnp.zeros_like(value)


def likelihood(log_ratio: jax.Array, x: PackedTokens) -> Surrogate:
  """Computes REINFORCE: `A log pi`; the ratio is not read."""
  value = advantages(x) * logprobs(x)
  return value, jnp.zeros_like(log_ratio)


# Aggregations.


def _sequences(x: PackedTokens) -> jax.Array:
  """Returns the share of each message in its sequence, `[M]`."""
  return x.message_mask if x.span_share is None else x.message_mask * x.span_share


def sequence_mean(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Averages over sequences the mean over their tokens: every sequence has equal weight."""
  share = _sequences(x)  # [M]
  return jnp.sum(share * weighted_mean(values, x)), jnp.sum(share)


def token_sum(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Averages over sequences the sum over their tokens: weight is proportional to length."""
  weights = loss_weights(x)  # [T]
  return jnp.sum(jnp.where(weights > 0, values, 0.0) * weights), jnp.sum(_sequences(x))


def constant_length(values: jax.Array, x: PackedTokens, *, max_length: float) -> Aggregate:
  """Divides `token_sum` by a constant length: a token's weight does not depend on other lengths."""
  total, count = token_sum(values, x)
  return total / max_length, count


def token_mean(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Averages over all tokens of the batch; `count` is the number of tokens."""
  return token_sum(values, x)[0], jnp.sum(loss_weights(x))
