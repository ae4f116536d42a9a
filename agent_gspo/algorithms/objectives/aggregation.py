"""Aggregates per-token values to an unreduced `(total, count)`, one part of an objective.

Micro-batches and devices are summed first and divided once, so that the mean does not depend on
how the batch was split. A sequence is a message, or a span of messages if the packed tokens have
spans: each message then counts as its share of the span, and shares sum to the number of spans.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.objectives import packed
from agent_gspo.algorithms.objectives.packed import PackedTokens

Aggregate = tuple[jax.Array, jax.Array]


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
