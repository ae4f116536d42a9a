"""Estimators of the KL divergence from a reference policy, one value a token."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def k3(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  """Unbiased, non-negative: `exp(-d) - 1 + d`, `d = log pi - log pi_ref`.

  Schulman 2020, "Approximating KL Divergence"; as in GRPO (arXiv 2402.03300, eq. 4).

  Args:
    logprobs: float32 `[T]`, of tokens sampled from the policy.
    reference_logprobs: float32 `[T]`, no gradient flows into it.
  """
  chex.assert_equal_shape([logprobs, reference_logprobs])
  # Bounded above: a token the reference all but excludes would otherwise be infinite.
  d = jnp.maximum(logprobs - jax.lax.stop_gradient(reference_logprobs), -20.0)
  return jnp.expm1(-d) + d
