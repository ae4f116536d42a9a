"""Caps scores and logits smoothly (Gemma 2, arXiv 2408.00118)."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def apply(x: jax.Array, cap: float | None) -> jax.Array:
  """Returns `cap * tanh(x / cap)`, elementwise; `x` if `cap` is None."""
  return x if cap is None else cap * jnp.tanh(x / cap)


def times_slope(gradient: jax.Array, capped: jax.Array, cap: float | None) -> jax.Array:
  """Returns the gradient with respect to `x`, given that of `capped = apply(x, cap)`.

  Masked entries, far below `-cap`, get 0.
  """
  if cap is None:
    return gradient
  return gradient * (1 - (jnp.maximum(capped, -cap) / cap) ** 2)
