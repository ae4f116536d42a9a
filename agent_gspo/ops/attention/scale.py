"""Computes the offset subtracted from scores before the exponential."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def above(scores: jax.Array) -> jax.Array:
  """Rounds scores up to a multiple of `log 2`.

  Weights `exp(score - above)` then differ by powers of two between blocks with different maxima
  and have the same mantissa: rounded to bfloat16 they are equal in all implementations, so that
  the sampler's log-probs equal the trainer's.
  """
  return jnp.ceil(scores * (1 / math.log(2))) * math.log(2)
