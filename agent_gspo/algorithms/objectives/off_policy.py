"""Corrects for tokens of another policy: stale sequences, and a sampler that differs."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.objectives import parts
from agent_gspo.algorithms.objectives.parts import PackedTokens


def opsm(x: PackedTokens, *, threshold: float = 0.5) -> PackedTokens:
  """Applies the off-policy sequence mask (DeepSeek-V3.2 report).

  A sequence with `A < 0` and `mean_t (log pi_old - log pi) > threshold` is already unlikely under
  the policy: lowering it further only adds noise. Its advantage, and so its term in every
  objective, becomes 0; it still counts in the mean. `mean_t` is over the message, or over its span
  if spans are given. As in the report, `pi_old` is the behavior policy: where old log-probs are the
  trainer's, the message's mean of `log pi_sampler - log pi_old` is added.

  Args:
    x: Packed tokens.
    threshold: Nats per token.
  """
  log_ratio = parts.mean_log_ratio(x)  # [M]
  if x.sampler_logprobs is not None:
    log_ratio += parts.message_mean(x.old_logprobs - x.sampler_logprobs, x)
  stale = (x.advantages < 0) & (log_ratio < -threshold)
  return dataclasses.replace(x, advantages=jnp.where(stale, 0.0, x.advantages))


def truncated_weights(
  x: PackedTokens, sampler_logprobs: jax.Array, *, cap: float, level: str
) -> tuple[jax.Array, jax.Array]:
  """Computes weights of truncated importance sampling (TIS): `w = min(cap, pi_old / pi_sampler)`.

  Programs and arithmetic of sampler and trainer differ: the behavior policy differs from the old
  policy in the ratios, though both have the same parameters.

  'token' takes each token's own ratio (Yao et al. 2025, "Your Efficient RL Framework Secretly
  Brings You Off-Policy RL Training"); 'message' that of the whole message,
  `exp(sum_t (log pi_old - log pi_sampler))`, which fits objectives with sequence ratios: but for
  the truncation their expectation is then that under the old policy.

  Args:
    x: Packed tokens; `old_logprobs` are the trainer's.
    sampler_logprobs: Log-probs under the sampling distribution, float32 `[T]`.
    cap: Highest weight, at least 1.
    level: One of `options.TIS_LEVELS`.

  Returns:
    Weight of each token without gradient, float32 `[T]`, and whether it was truncated, 0 or 1,
    `[T]`.
  """
  quotient = jnp.where(x.token_mask > 0, x.old_logprobs - sampler_logprobs, 0.0)
  if level == 'message':
    quotient = parts.message_sum(quotient, x)[x.message_ids]  # [M] -> [T]
  quotient = jax.lax.stop_gradient(quotient)
  truncated = quotient > math.log(cap)
  # Truncated before the exponential, which is then finite.
  return jnp.exp(jnp.minimum(quotient, math.log(cap))), truncated.astype(quotient.dtype)
