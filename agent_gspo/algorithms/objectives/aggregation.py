"""From one value a token to an unreduced `(total, count)`: one of the parts of an objective.

Micro-batches and devices are summed first and divided once, so that the mean does not depend on
how the batch was cut. A sequence is a message, or a span of messages where the packed tokens hold
spans: each message then counts as its share of the span, and shares sum to the number of spans.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.objectives import packed
from agent_gspo.algorithms.objectives.packed import PackedTokens

Aggregate = tuple[jax.Array, jax.Array]


def _sequences(x: PackedTokens) -> jax.Array:
  """How much of a sequence each message is, `[M]`."""
  return x.message_mask if x.span_share is None else x.message_mask * x.span_share


def sequence_mean(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Mean over sequences of the mean over their tokens: every sequence weighs the same."""
  share = _sequences(x)
  return jnp.sum(share * packed.weighted_mean(values, x)), jnp.sum(share)


def token_sum(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Mean over sequences of the sum over their tokens: a sequence weighs as much as it is long."""
  weights = packed.loss_weights(x)
  return jnp.sum(jnp.where(weights > 0, values, 0.0) * weights), jnp.sum(_sequences(x))


def constant_length(values: jax.Array, x: PackedTokens, *, max_length: float) -> Aggregate:
  """`token_sum` over one constant length: it does not matter to a token how long others are."""
  total, count = token_sum(values, x)
  return total / max_length, count


def token_mean(values: jax.Array, x: PackedTokens) -> Aggregate:
  """Mean over all tokens of the batch; `count` is of tokens."""
  return token_sum(values, x)[0], jnp.sum(packed.loss_weights(x))
