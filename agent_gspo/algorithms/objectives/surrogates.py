"""Computes the surrogate maximized at each token from its log-ratio, one part of an objective.

Each takes `log_ratio` float32 `[T]` (see `ratios`) and the packed tokens, and returns the
surrogate `[T]` and where it was clipped, 0 or 1, `[T]`. `A` is the advantage of the token's
message.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.objectives import packed
from agent_gspo.algorithms.objectives.packed import PackedTokens

Surrogate = tuple[jax.Array, jax.Array]


def clip(log_ratio: jax.Array, x: PackedTokens, *, low: float, high: float) -> Surrogate:
  """Computes PPO (arXiv 1707.06347, eq. 7): `min(r A, clip(r, 1 - low, 1 + high) A)`."""
  ratio, advantage = jnp.exp(log_ratio), packed.advantages(x)  # [T] each
  free, bounded = ratio * advantage, jnp.clip(ratio, 1 - low, 1 + high) * advantage
  return jnp.minimum(free, bounded), (bounded < free).astype(free.dtype)


def weighted_likelihood(
  log_ratio: jax.Array, x: PackedTokens, *, low: float, high: float
) -> Surrogate:
  """Computes CISPO (arXiv 2506.13585, eq. 4): `sg[clip(r, 1 - low, 1 + high)] A log pi`.

  The clip bounds a weight; no token loses its gradient.
  """
  ratio = jnp.exp(log_ratio)
  weight = jax.lax.stop_gradient(jnp.clip(ratio, 1 - low, 1 + high))
  value = weight * packed.advantages(x) * packed.logprobs(x)
  return value, (weight != ratio).astype(value.dtype)


def geometric_mean(log_ratio: jax.Array, x: PackedTokens, *, low: float, high: float) -> Surrogate:
  """Computes GMPO (arXiv 2507.20673, eq. 4): `A exp(mean_t c_t)`, equal at all tokens of a message.

  `c_t = min(log r_t, high)` where `A > 0` and `max(log r_t, -low)` where `A < 0`: each token is
  clipped before the mean, on the side where the clip lowers the objective.
  """
  advantage = packed.advantages(x)
  cut = jnp.where(advantage > 0, jnp.minimum(log_ratio, high), jnp.maximum(log_ratio, -low))
  ratio = jnp.exp(packed.weighted_mean(cut, x))[x.message_ids]  # [M] -> [T]
  clipped = (cut != log_ratio) & (advantage != 0)
  return ratio * advantage, clipped.astype(ratio.dtype)


def soft_gate(
  log_ratio: jax.Array, x: PackedTokens, *, tau_positive: float, tau_negative: float
) -> Surrogate:
  """Computes SAPO (arXiv 2511.20347): `(4 / tau) sigmoid(tau (r - 1)) A`, tau by the sign of `A`.

  The gate's slope is 1 at `r = 1` and decays on both sides without a cutoff.
  """
  ratio, advantage = jnp.exp(log_ratio), packed.advantages(x)
  tau = jnp.where(advantage > 0, tau_positive, tau_negative)
  value = 4.0 / tau * jax.nn.sigmoid(tau * (ratio - 1.0)) * advantage
  return value, jnp.zeros_like(value)


def likelihood(log_ratio: jax.Array, x: PackedTokens) -> Surrogate:
  """Computes REINFORCE: `A log pi`; the ratio is not read."""
  value = packed.advantages(x) * packed.logprobs(x)
  return value, jnp.zeros_like(log_ratio)
