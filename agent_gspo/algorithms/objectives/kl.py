"""Estimates the KL divergence from a reference policy, one value per token.

`d = log pi(y_t) - log pi_ref(y_t)` for tokens sampled from the policy (Schulman 2020,
"Approximating KL Divergence"). All three estimate the same number; as terms of a loss their
gradients differ, and that of `k1` is useless. Log-probs are float32 `[T]`; the reference gets no
gradient.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def _difference(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  chex.assert_equal_shape([logprobs, reference_logprobs])
  return logprobs - jax.lax.stop_gradient(reference_logprobs)


def k1(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  """Computes `d`: unbiased, of either sign. Only for use inside a reward.

  As a term of a loss its gradient is that of `log pi`, whose on-policy expectation is zero for any
  reference: pure noise. Inside a reward, where it is a constant, it is correct.
  """
  return _difference(logprobs, reference_logprobs)


def k2(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  """Computes `d ** 2 / 2`: biased, non-negative.

  As a term of a loss its expected gradient on-policy is that of `KL(pi || pi_ref)`.
  """
  return 0.5 * _difference(logprobs, reference_logprobs) ** 2


def k3(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  """Computes `exp(-d) - 1 + d`: unbiased, non-negative; as in GRPO (arXiv 2402.03300, eq. 4).

  As a term of a loss its expected gradient on-policy is that of `KL(pi_ref || pi)`.
  """
  # Bounded below: tokens with almost no probability under the policy would give infinity.
  d = jnp.maximum(_difference(logprobs, reference_logprobs), -20.0)
  return jnp.expm1(-d) + d


# Estimators valid in a loss.
LOSS_ESTIMATORS = {'k2': k2, 'k3': k3}
