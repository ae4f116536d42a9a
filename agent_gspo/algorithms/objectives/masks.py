"""Masks packed tokens, for composition with any objective."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from agent_gspo.algorithms.objectives import ratios
from agent_gspo.algorithms.objectives.packed import PackedTokens


def opsm(x: PackedTokens, *, threshold: float = 0.5) -> PackedTokens:
  """Applies the off-policy sequence mask (DeepSeek-V3.2 report).

  A sequence with `A < 0` and `mean_t (log pi_old - log pi) > threshold` is already unlikely under
  the policy: lowering it further only adds noise. Its advantage, and so its term in every
  objective, becomes 0; it still counts in the mean. `mean_t` is over the message, or over its span
  if spans are given.

  Args:
    x: Packed tokens.
    threshold: Nats per token.
  """
  stale = (x.advantages < 0) & (ratios.of_sequences(x) < -threshold)
  return dataclasses.replace(x, advantages=jnp.where(stale, 0.0, x.advantages))
