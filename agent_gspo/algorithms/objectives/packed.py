"""Represents the tokens of all messages in one array, the input of all objectives.

`T` loss tokens, `M` messages. `message_ids` maps tokens to messages, so that results do not depend
on how messages were packed into rows.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


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
  span_log_ratio: chex.Array | None = None  # [M]
  span_share: chex.Array | None = None  # [M]


def check(x: PackedTokens) -> None:
  """Raises AssertionError if shapes or types are inconsistent."""
  chex.assert_rank([x.logprobs, x.advantages], 1)
  per_token = [x.old_logprobs, x.message_ids, x.token_mask]
  per_token += [x.token_weights, x.importance, x.token_penalty]
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
