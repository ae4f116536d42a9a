"""Policy objectives on packed messages: pure functions of arrays.

`T` loss tokens, `M` messages. Tokens of all messages stand in one array; `message_ids`
says which message each belongs to. Every function returns an unreduced `(total, count)`:
micro-batches and devices are summed first and divided once, so that the mean does not
depend on how the batch was cut. `total / count` is to be *maximised*.
"""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

# exp(20) is beyond every clip band, so bounding the exponent there never alters a
# clipped value; unbounded, one overflow turns the whole batch into NaN.
_MAX_EXPONENT = 20.0


@chex.dataclass(frozen=True)
class Objective:
  """Sum and count of an objective, and what it did to each message.

  Attributes:
    total: float32 scalar, sum over messages.
    count: float32 scalar, number of messages in it.
    ratio: float32 `[M]`, importance ratio of each message (mean over its tokens for
      token-level objectives), 0 for padding.
    clipped: float32 `[M]`, share of the message whose gradient the clip removed.
  """

  total: chex.Array
  count: chex.Array
  ratio: chex.Array
  clipped: chex.Array


@chex.dataclass(frozen=True)
class PackedTokens:
  """Inputs that all objectives share.

  Attributes:
    logprobs: float32 `[T]`, under the policy that is trained.
    old_logprobs: float32 `[T]`, under the policy that sampled.
    message_ids: int32 `[T]`, `0 .. M-1`.
    token_mask: float32 `[T]`, 0 for padding.
    advantages: float32 `[M]`.
    message_mask: float32 `[M]`, 0 for padding.
  """

  logprobs: chex.Array
  old_logprobs: chex.Array
  message_ids: chex.Array
  token_mask: chex.Array
  advantages: chex.Array
  message_mask: chex.Array


def _check(x: PackedTokens) -> None:
  chex.assert_rank([x.logprobs, x.advantages], 1)
  chex.assert_equal_shape([x.logprobs, x.old_logprobs, x.message_ids, x.token_mask])
  chex.assert_equal_shape([x.advantages, x.message_mask])
  chex.assert_type([x.logprobs, x.old_logprobs, x.advantages], float)


def message_mean(values: jax.Array, x: PackedTokens) -> jax.Array:
  """Mean of `values` `[T]` over the tokens of each message, `[M]`; 0 for empty ones."""
  sum_ = lambda v: jax.ops.segment_sum(v, x.message_ids, x.advantages.shape[0])
  return sum_(values * x.token_mask) / jnp.maximum(sum_(x.token_mask), 1.0)


def _log_ratio(x: PackedTokens) -> jax.Array:
  """`log pi - log pi_old` `[T]`, 0 in the padding."""
  return jnp.where(x.token_mask > 0, x.logprobs - x.old_logprobs, 0.0)


def _clip_surrogate(ratio, advantage, clip_low, clip_high) -> tuple[jax.Array, jax.Array]:
  """PPO's `min(r A, clip(r) A)` for either sign of `A`, and where the clip took over."""
  clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
  took_over = clipped * advantage < ratio * advantage
  return jnp.minimum(ratio * advantage, clipped * advantage), took_over.astype(jnp.float32)


def _finish(x: PackedTokens, per_message, ratio, clipped) -> Objective:
  m = x.message_mask
  return Objective(
    total=jnp.sum(per_message * m), count=jnp.sum(m), ratio=ratio * m, clipped=clipped * m
  )


def gspo(x: PackedTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Objective:
  """Group Sequence Policy Optimization (Zheng et al. 2025, arXiv 2507.18071, eq. 5-7).

  `s_i = exp(mean_t (log pi(y_it) - log pi_old(y_it)))`,
  `J = mean_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)`.
  The mean is over messages, never over tokens.
  """
  _check(x)
  log_s = message_mean(_log_ratio(x), x)
  ratio = jnp.exp(jnp.clip(log_s, -_MAX_EXPONENT, _MAX_EXPONENT))
  surrogate, clipped = _clip_surrogate(ratio, x.advantages, clip_low, clip_high)
  return _finish(x, surrogate, ratio, clipped)


def gspo_token(x: PackedTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Objective:
  """GSPO-token (arXiv 2507.18071, eq. 13-14).

  `s_it = sg[s_i] * pi(y_it) / sg[pi(y_it)]`,
  `J = mean_i mean_t min(s_it A_it, clip(s_it) A_it)`. Here `A_it = A_i`, where value and
  gradient equal those of `gspo`.
  """
  _check(x)
  log_s = jax.lax.stop_gradient(message_mean(_log_ratio(x), x))
  own = jnp.where(x.token_mask > 0, x.logprobs - jax.lax.stop_gradient(x.logprobs), 0.0)
  ratio = jnp.exp(jnp.clip(log_s[x.message_ids] + own, -_MAX_EXPONENT, _MAX_EXPONENT))
  return _token_surrogate(x, ratio, clip_low, clip_high)


def grpo(x: PackedTokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Objective:
  """Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300, eq. 3).

  Token-level ratios, `J = mean_i mean_t min(r_it A_i, clip(r_it) A_i)`.
  """
  _check(x)
  ratio = jnp.exp(jnp.clip(_log_ratio(x), -_MAX_EXPONENT, _MAX_EXPONENT))
  return _token_surrogate(x, ratio, clip_low, clip_high)


def imitation(x: PackedTokens) -> Objective:
  """Mean log-likelihood a token: `J = mean_it log pi(y_it)`; `count` is of tokens.

  For warm starts; advantages and old log-probs are not read. Not the mean over messages,
  in which the one token of a silent message would weigh as much as all of a long one and
  silence would be learnt far more often than it was shown.
  """
  _check(x)
  zeros = jnp.zeros_like(x.message_mask)
  return Objective(
    total=jnp.sum(x.logprobs * x.token_mask),
    count=jnp.sum(x.token_mask),
    ratio=zeros,
    clipped=zeros,
  )


def _token_surrogate(x: PackedTokens, ratio, clip_low, clip_high) -> Objective:
  advantage = x.advantages[x.message_ids]
  surrogate, clipped = _clip_surrogate(ratio, advantage, clip_low, clip_high)
  mean = lambda values: message_mean(values, x)
  return _finish(x, mean(surrogate), mean(ratio), mean(clipped))


OBJECTIVES: dict[str, Callable[..., Objective]] = {
  'gspo': gspo,
  'gspo_token': gspo_token,
  'grpo': grpo,
}
