"""Correction for tokens that were sampled from another policy than the trainer computes.

The sampler's program, or its arithmetic, is not the trainer's: the policy that sampled differs
from the old policy that ratios begin with, though both have the same parameters.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.objectives import packed
from agent_gspo.algorithms.objectives.packed import PackedTokens

LEVELS = ('message', 'token')


def truncated_weights(
  x: PackedTokens, sampler_logprobs: jax.Array, *, cap: float, level: str
) -> tuple[jax.Array, jax.Array]:
  """Truncated importance sampling (TIS): `w = min(cap, pi_old / pi_sampler)`, a constant.

  'token' takes each token's own quotient (Yao et al. 2025, "Your Efficient RL Framework Secretly
  Brings You Off-Policy RL Training"); 'message' that of the whole message,
  `exp(sum_t (log pi_old - log pi_sampler))`, which fits objectives whose ratio is of a sequence:
  but for the truncation their expectation is then that under the old policy.

  Args:
    x: packed tokens; `old_logprobs` are the trainer's.
    sampler_logprobs: float32 `[T]`, of the distribution sampled from.
    cap: highest weight, at least 1.
    level: of `LEVELS`.

  Returns:
    Float32 `[T]` weight of each token, which no gradient flows into, and whether it was
    truncated, 0 or 1.
  """
  quotient = jnp.where(x.token_mask > 0, x.old_logprobs - sampler_logprobs, 0.0)
  if level == 'message':
    quotient = packed.message_sum(quotient, x)[x.message_ids]
  quotient = jax.lax.stop_gradient(quotient)
  truncated = quotient > math.log(cap)
  # Cut before the exponential, which is then finite.
  return jnp.exp(jnp.minimum(quotient, math.log(cap))), truncated.astype(quotient.dtype)
