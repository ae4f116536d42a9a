"""Selects the questions to roll out next, by a Beta posterior of each one's success probability.

`Q` questions of the training split, `E` episodes. Choices depend only on state and seed, so that a
resumed run repeats them. Evidence ages as the policy changes, so each update first decays it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo import plugins, streams
from agent_gspo.values import shown


@chex.dataclass(frozen=True)
class Posterior:
  """Beta(a, b) of each question; part of the checkpoint.

  Attributes:
    a: Evidence of successes, float32 `[Q]`.
    b: Evidence of failures, float32 `[Q]`.
  """

  a: chex.Array
  b: chex.Array


@chex.dataclass(frozen=True)
class SelectionState:
  """State of question selection; part of the checkpoint.

  Attributes:
    posterior: Posterior of each question's success probability.
    drawn: Number of questions chosen so far, resampled ones included, int32 scalar.
  """

  posterior: Posterior
  drawn: chex.Array


def init(num_questions: int) -> SelectionState:
  """Returns the initial state: Beta(1, 1) for every question, and no question drawn."""
  ones = lambda: jnp.ones(num_questions, jnp.float32)  # apart: an update may donate the buffers
  return SelectionState(posterior=Posterior(a=ones(), b=ones()), drawn=jnp.int32(0))


def choose(
  name: str, state: SelectionState, count: int, *, seed: int, asked: Sequence[int] = ()
) -> tuple[np.ndarray, SelectionState]:
  """Chooses the next questions and advances the state.

  Args:
    name: Key of `SELECTIONS`, or 'module:function' of your own with their arguments.
    state: Selection state.
    count: Number of questions.
    seed: Seed of the run.
    asked: Indices to exclude: questions already rolled out in this step, whose samples would
      repeat the same noise.

  Returns:
    Distinct indices below `Q`, int `[count]`, and the new state.

  Raises:
    ValueError: There are fewer free questions than `count`.
  """
  free = np.ones(len(state.posterior.a), bool)
  free[list(asked)] = False
  if count > free.sum():
    raise ValueError(f'cannot choose {count} different questions of {free.sum()}.')
  rule = plugins.find(SELECTIONS, name, 'selection.name')
  choice = lambda *given: np.asarray(rule(*given))
  chosen = plugins.call('selection.name', name, choice, state, free, count, seed)
  shaped = chosen.shape == (count,) and chosen.dtype.kind in 'iu'
  inside = shaped and (0 <= chosen).all() and (chosen < len(free)).all()
  if not inside or len(np.unique(chosen)) != count or not free[chosen].all():
    raise plugins.PluginError(
      f'selection.name={name!r} chose {shown(chosen.tolist())}, not {count} different free '
      f'questions; must return an index from 0 to {len(free) - 1} for each.'
    )
  return chosen, dataclasses.replace(state, drawn=state.drawn + count)


def uniform(state: SelectionState, free: np.ndarray, count: int, seed: int) -> np.ndarray:
  """Chooses each question once per epoch, in one random order."""
  order = np.roll(_random_order(seed, len(free)), -int(state.drawn))
  return order[free[order]][:count]


@functools.lru_cache(maxsize=1)
def _random_order(seed: int, questions: int) -> np.ndarray:
  return streams.generator(seed, streams.SELECTION_ORDER).permutation(questions)


def spo(state: SelectionState, free: np.ndarray, count: int, seed: int) -> np.ndarray:
  """Samples by SPO (arXiv 2509.13232): without replacement, with weights `spo_weights(p)`."""
  weights = spo_weights(np.asarray(probability(state.posterior), np.float64))
  chances = np.where(free, weights, 0.0) / weights[free].sum()
  rng = streams.generator(seed, streams.SELECTION, int(state.drawn))
  return rng.choice(len(weights), count, replace=False, p=chances)


def spo_weights(probability: np.ndarray) -> np.ndarray:
  """Computes `sqrt(p (1 - p)) + 0.05`, so that every question keeps a chance."""
  return np.sqrt(probability * (1 - probability)) + 0.05


# `rule(state, free [Q] bool, count, seed)` returns distinct free questions.
SELECTIONS: dict[str, Callable[[SelectionState, np.ndarray, int, int], np.ndarray]] = {
  'uniform': uniform,
  'spo': spo,
}


def observe(
  state: SelectionState, question: chex.Array, task: chex.Array, *, divergence: float
) -> SelectionState:
  """Updates the posterior after a rollout, by SPO (arXiv 2509.13232).

  `a <- rho a + sum r`, `b <- rho b + sum (1 - r)`; questions without an episode are unchanged.
  The paper has one episode per question; here the sums are over all of them.

  Args:
    state: State before the rollout.
    question: Question of each episode, int `[E]`.
    task: Task scores in `[0, 1]`, float `[E]`.
    divergence: Mean `abs(log pi - log pi_old)` over the mini-batches of the last update, each
      before its own step; sets `rho`, see `spo_decay`.
  """
  chex.assert_equal_shape([question, task])
  old = state.posterior
  count = lambda values: jax.ops.segment_sum(values, question, len(old.a))
  task = jnp.asarray(task, jnp.float32)
  keep = jnp.where(count(jnp.ones_like(task)) > 0, spo_decay(divergence), 1.0)
  new = Posterior(a=keep * old.a + count(task), b=keep * old.b + count(1.0 - task))
  return dataclasses.replace(state, posterior=new)


def probability(state: Posterior) -> jax.Array:
  """Computes the posterior mean `a / (a + b)`, float32 `[Q]`."""
  return state.a / (state.a + state.b)


def spo_decay(divergence: float) -> jax.Array:
  """Computes `rho = clip(2^(-D / 0.06), 0.875, 0.96)` (SPO, arXiv 2509.13232), float32 scalar."""
  return jnp.clip(jnp.exp2(-jnp.float32(divergence) / 0.06), 0.875, 0.96)


def informative(task: np.ndarray, question: np.ndarray, num_questions: int) -> np.ndarray:
  """Applies DAPO's filter (arXiv 2503.14476): True if a question's task scores differ, bool `[B]`.

  Uses the task score, not the reward, since costs always differ.

  Args:
    task: Task scores, float `[E]`.
    question: Index of the episode's question in the batch, int `[E]`, below `B`.
    num_questions: `B`.
  """
  low, high = np.full(num_questions, np.inf), np.full(num_questions, -np.inf)
  np.minimum.at(low, question, task)
  np.maximum.at(high, question, task)
  return high > low
