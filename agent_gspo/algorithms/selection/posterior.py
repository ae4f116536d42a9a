"""What is known of how hard each question is: a Beta posterior of its success probability.

`Q` questions of the training split, `E` episodes. Evidence grows old as the policy changes, so
each update first decays what was there.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


@chex.dataclass(frozen=True)
class Posterior:
  """Beta(a, b) of each question; part of the checkpoint.

  Attributes:
    a: float32 `[Q]`, evidence of successes.
    b: float32 `[Q]`, evidence of failures.
  """

  a: chex.Array
  b: chex.Array


def init(num_questions: int, prior: float = 1.0) -> Posterior:
  """Beta(prior, prior) for every question."""
  return Posterior(
    a=jnp.full(num_questions, prior, jnp.float32), b=jnp.full(num_questions, prior, jnp.float32)
  )


def probability(state: Posterior) -> jax.Array:
  """Posterior mean `a / (a + b)`, float32 `[Q]`."""
  return state.a / (state.a + state.b)


def spo_decay(
  divergence: float, *, half: float = 0.06, low: float = 0.875, high: float = 0.96
) -> jax.Array:
  """`rho = clip(2^(-D / half), low, high)` (SPO, arXiv 2509.13232), float32 scalar.

  Args:
    divergence: `D >= 0`, mean `abs(log pi - log pi_old)` of the updates since.
    half: divergence that halves the evidence.
    low, high: bounds of `rho`.
  """
  return jnp.clip(jnp.exp2(-jnp.float32(divergence) / half), low, high)


def observe_spo(
  state: Posterior, question: chex.Array, task: chex.Array, *, rho: chex.Numeric
) -> Posterior:
  """SPO (arXiv 2509.13232): `a <- rho a + sum r`, `b <- rho b + sum (1 - r)`.

  Questions without an episode stay as they are. The paper has one episode a question; the
  sums are over all that were seen.

  Args:
    state: before the rollout.
    question: int `[E]`, index of the question of each episode.
    task: float `[E]`, task scores in `[0, 1]`.
    rho: see `spo_decay`.
  """
  right, wrong, seen = _counts(state, question, task)
  keep = jnp.where(seen, rho, 1.0)
  return Posterior(a=keep * state.a + right, b=keep * state.b + wrong)


def observe_vade(
  state: Posterior,
  question: chex.Array,
  task: chex.Array,
  *,
  slow: float = 0.99,
  fast: float = 0.9,
  prior: float = 1.0,
) -> Posterior:
  """Stand-in for VADE's update (arXiv 2511.18902): evidence decays at two scales.

  Each step, all questions go back to the prior by `slow`, since the policy has moved; those
  that were just rolled out by `fast` as well, since better evidence has come in.

  Args:
    state: before the rollout.
    question: int `[E]`, index of the question of each episode.
    task: float `[E]`, task scores in `[0, 1]`.
    slow, fast: share of the evidence beyond the prior that stays.
    prior: of `init`.
  """
  right, wrong, seen = _counts(state, question, task)
  keep = jnp.where(seen, slow * fast, slow)
  decayed = lambda evidence: prior + keep * (evidence - prior)
  return Posterior(a=decayed(state.a) + right, b=decayed(state.b) + wrong)


def _counts(state, question, task) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Successes, failures and whether there were episodes at all, `[Q]` each."""
  chex.assert_equal_shape([question, task])
  count = lambda values: jax.ops.segment_sum(values, question, len(state.a))
  task = jnp.asarray(task, jnp.float32)
  return count(task), count(1.0 - task), count(jnp.ones_like(task)) > 0
