"""Tracks a Beta posterior of each question's success probability.

`Q` questions of the training split, `E` episodes. Evidence ages as the policy changes, so each
update first decays it.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


@chex.dataclass(frozen=True)
class Posterior:
  """Beta(a, b) of each question; part of the checkpoint.

  Attributes:
    a: Evidence of successes, float32 `[Q]`.
    b: Evidence of failures, float32 `[Q]`.
  """

  a: chex.Array
  b: chex.Array


def init(num_questions: int, prior: float = 1.0) -> Posterior:
  """Returns Beta(prior, prior) for every question."""
  return Posterior(
    a=jnp.full(num_questions, prior, jnp.float32), b=jnp.full(num_questions, prior, jnp.float32)
  )


def probability(state: Posterior) -> jax.Array:
  """Computes the posterior mean `a / (a + b)`, float32 `[Q]`."""
  return state.a / (state.a + state.b)


def spo_decay(
  divergence: float, *, half: float = 0.06, low: float = 0.875, high: float = 0.96
) -> jax.Array:
  """Computes `rho = clip(2^(-D / half), low, high)` (SPO, arXiv 2509.13232), float32 scalar.

  Args:
    divergence: `D >= 0`, mean `abs(log pi - log pi_old)` of the updates since.
    half: Divergence that halves the evidence.
    low, high: Bounds of `rho`.
  """
  return jnp.clip(jnp.exp2(-jnp.float32(divergence) / half), low, high)


def observe_spo(
  state: Posterior, question: chex.Array, task: chex.Array, *, rho: chex.Numeric
) -> Posterior:
  """Updates by SPO (arXiv 2509.13232): `a <- rho a + sum r`, `b <- rho b + sum (1 - r)`.

  Questions without an episode are unchanged. The paper has one episode per question; here the
  sums are over all of them.

  Args:
    state: Posterior before the rollout.
    question: Question of each episode, int `[E]`.
    task: Task scores in `[0, 1]`, float `[E]`.
    rho: Decay, see `spo_decay`.
  """
  right, wrong, seen = _counts(state, question, task)
  keep = jnp.where(seen, rho, 1.0)
  return Posterior(a=keep * state.a + right, b=keep * state.b + wrong)


def _counts(state, question, task) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Counts successes and failures; returns also whether there were episodes, `[Q]` each."""
  chex.assert_equal_shape([question, task])
  count = lambda values: jax.ops.segment_sum(values, question, len(state.a))
  task = jnp.asarray(task, jnp.float32)
  return count(task), count(1.0 - task), count(jnp.ones_like(task)) > 0
