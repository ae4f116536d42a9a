"""The one representation that all objectives work on: tokens of all messages in one array.

`T` loss tokens, `M` messages. `message_ids` says which message each token belongs to, so that
nothing depends on how messages were cut into rows.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


@chex.dataclass(frozen=True)
class PackedTokens:
  """Inputs that all objectives share. The optional fields change nothing where they are None.

  Attributes:
    logprobs: float32 `[T]`, under the policy that is trained.
    old_logprobs: float32 `[T]`, under the policy before the first update.
    message_ids: int32 `[T]`, `0 .. M-1`.
    token_mask: float32 `[T]`, 0 for padding.
    advantages: float32 `[M]`.
    message_mask: float32 `[M]`, 0 for padding.
    token_weights: float32 `[T]`, at least 0, weight of each token in the loss (D3S, arXiv
      2509.22115, selects tokens). A message's ratio is still that of all its tokens, and a
      message of which nothing is selected still counts as a message.
    importance: float32 `[T]`, a constant that each token's surrogate is multiplied by, see
      `behaviour.truncated_weights`. What the objective is divided by does not change.
    token_penalty: float32 `[T]`, subtracted from each token's surrogate before the
      aggregation: `kl_coef * k3`, for example. Gradient flows into it.
    clip_scale: float32 `[M]`, multiplies a message's own clip bounds (ETR, arXiv 2601.03723).
    span_log_ratio: float32 `[M]`, a constant: mean log-ratio over all tokens of the span
      that the message belongs to, see `spans.span_statistics`. With it a sequence is a span of
      messages, which may lie in different micro-batches.
    span_share: float32 `[M]`, tokens of the message / tokens of its span; given together
      with `span_log_ratio`.
  """

  logprobs: chex.Array
  old_logprobs: chex.Array
  message_ids: chex.Array
  token_mask: chex.Array
  advantages: chex.Array
  message_mask: chex.Array
  token_weights: chex.Array | None = None
  importance: chex.Array | None = None
  token_penalty: chex.Array | None = None
  clip_scale: chex.Array | None = None
  span_log_ratio: chex.Array | None = None
  span_share: chex.Array | None = None


def check(x: PackedTokens) -> None:
  """Raises AssertionError where shapes or types do not fit together."""
  chex.assert_rank([x.logprobs, x.advantages], 1)
  per_token = [x.old_logprobs, x.message_ids, x.token_mask]
  per_token += [x.token_weights, x.importance, x.token_penalty]
  per_message = [x.message_mask, x.clip_scale, x.span_log_ratio, x.span_share]
  chex.assert_equal_shape([x.logprobs, *(v for v in per_token if v is not None)])
  chex.assert_equal_shape([x.advantages, *(v for v in per_message if v is not None)])
  chex.assert_type([x.logprobs, x.old_logprobs, x.advantages], float)
  if (x.span_log_ratio is None) != (x.span_share is None):
    raise AssertionError('span_log_ratio and span_share are given together or not at all.')


def message_sum(values: jax.Array, x: PackedTokens) -> jax.Array:
  """Sum of `values` `[T]` over the tokens of each message, `[M]`."""
  # Not `values * mask`: padding may hold infinities, and 0 * inf is NaN.
  values = jnp.where(x.token_mask > 0, values, 0.0)
  return jax.ops.segment_sum(values, x.message_ids, x.advantages.shape[0])


def message_mean(values: jax.Array, x: PackedTokens) -> jax.Array:
  """Mean of `values` `[T]` over the tokens of each message, `[M]`; 0 for empty ones."""
  return message_sum(values, x) / jnp.maximum(message_sum(x.token_mask, x), 1.0)


def loss_weights(x: PackedTokens) -> jax.Array:
  """Weight of each token in the loss, `[T]`: 0 in padding of either kind."""
  weights = x.token_mask * x.message_mask[x.message_ids]
  return weights if x.token_weights is None else weights * x.token_weights


def weighted_mean(values: jax.Array, x: PackedTokens) -> jax.Array:
  """Mean of `values` `[T]` over each message by `loss_weights`, `[M]`; 0 where they sum to 0."""
  weights = loss_weights(x)
  total = message_sum(weights, x)
  weighted = message_sum(jnp.where(weights > 0, values, 0.0) * weights, x)
  return weighted / jnp.where(total > 0, total, 1.0)


def advantages(x: PackedTokens) -> jax.Array:
  """Advantage of each token's message, `[T]`; 0 in padded messages."""
  return jnp.where(x.message_mask > 0, x.advantages, 0.0)[x.message_ids]


def logprobs(x: PackedTokens) -> jax.Array:
  """`log pi` `[T]`, 0 in the padding."""
  return jnp.where(x.token_mask > 0, x.logprobs, 0.0)
