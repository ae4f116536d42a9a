"""Estimators of the KL divergence from a reference policy, one value a token.

`d = log pi(y_t) - log pi_ref(y_t)` of tokens sampled from the policy (Schulman 2020,
"Approximating KL Divergence"). All three estimate the same number; as terms of a loss their
gradients differ, and that of `k1` is useless.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def _difference(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  chex.assert_equal_shape([logprobs, reference_logprobs])
  return logprobs - jax.lax.stop_gradient(reference_logprobs)


def k1(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  """Unbiased, of either sign: `d`. Only for use inside a reward.

  As a term of a loss its gradient is that of `log pi`, whose expectation on-policy is zero
  whatever the reference is: noise without a pull. Inside a reward, where it is a constant, it
  is right.

  Args:
    logprobs: float32 `[T]`, of tokens sampled from the policy.
    reference_logprobs: float32 `[T]`, no gradient flows into it.
  """
  return _difference(logprobs, reference_logprobs)


def k2(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  """Biased, non-negative: `d ** 2 / 2`.

  As a term of a loss its expected gradient on-policy is that of `KL(pi || pi_ref)`.

  Args:
    logprobs: float32 `[T]`, of tokens sampled from the policy.
    reference_logprobs: float32 `[T]`, no gradient flows into it.
  """
  return 0.5 * _difference(logprobs, reference_logprobs) ** 2


def k3(logprobs: jax.Array, reference_logprobs: jax.Array) -> jax.Array:
  """Unbiased, non-negative: `exp(-d) - 1 + d`; as in GRPO (arXiv 2402.03300, eq. 4).

  As a term of a loss its expected gradient on-policy is that of `KL(pi_ref || pi)`.

  Args:
    logprobs: float32 `[T]`, of tokens sampled from the policy.
    reference_logprobs: float32 `[T]`, no gradient flows into it.
  """
  # Bounded below: a token the policy all but excludes would otherwise be infinite.
  d = jnp.maximum(_difference(logprobs, reference_logprobs), -20.0)
  return jnp.expm1(-d) + d


# Those that may stand in a loss.
LOSS_ESTIMATORS = {'k2': k2, 'k3': k3}
