"""What scores are compared with before they become weights."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def above(scores: jax.Array) -> jax.Array:
  """The least `n log 2`, `n` whole, that is not below a score.

  Weights `exp(score - above)` then differ by powers of two between blocks of scores with other
  highest ones, and have the same bits behind the point: rounded to bfloat16 they are the same in
  all implementations, so that the sampler's log-probs are the trainer's.
  """
  return jnp.ceil(scores * (1 / math.log(2))) * math.log(2)
