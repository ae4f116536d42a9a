"""Masks that compose with any objective: packed tokens in, packed tokens out."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from agent_gspo.algorithms.objectives import ratios
from agent_gspo.algorithms.objectives.packed import PackedTokens


def opsm(x: PackedTokens, *, threshold: float = 0.5) -> PackedTokens:
  """Off-policy sequence mask (DeepSeek-V3.2 report).

  A sequence with `A < 0` and `mean_t (log pi_old - log pi) > threshold` has left the policy
  already: pushing it further down only adds noise. Its advantage becomes 0, and with it its
  term in every objective; it still counts in the mean. The mean is over the message, or over its
  span where spans are given.

  Args:
    x: packed tokens.
    threshold: nats a token.
  """
  stale = (x.advantages < 0) & (ratios.of_sequences(x) < -threshold)
  return dataclasses.replace(x, advantages=jnp.where(stale, 0.0, x.advantages))
