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


def init(num_questions: int, prior: float = 1.0) -> SelectionState:
  """Returns the initial state: Beta(prior, prior) for every question, and no question drawn."""
  posterior = Posterior(
    a=jnp.full(num_questions, prior, jnp.float32), b=jnp.full(num_questions, prior, jnp.float32)
  )
  return SelectionState(posterior=posterior, drawn=jnp.int32(0))


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


def spo_weights(probability: np.ndarray, floor: float = 0.05) -> np.ndarray:
  """Computes `sqrt(p (1 - p)) + floor`, so that every question keeps a chance."""
  return np.sqrt(probability * (1 - probability)) + floor


# `rule(state, free [Q] bool, count, seed)` returns distinct free questions.
SELECTIONS: dict[str, Callable[[SelectionState, np.ndarray, int, int], np.ndarray]] = {
  'uniform': uniform,
  'spo': spo,
}


def observe(
  state: SelectionState, question: np.ndarray, task: np.ndarray, *, divergence: float
) -> SelectionState:
  """Updates the posterior after a rollout, as SPO does.

  Args:
    state: Selection state.
    question: Question of each episode, int `[E]`.
    task: Task scores in `[0, 1]`, float `[E]`.
    divergence: Mean `abs(log pi - log pi_old)` over the mini-batches of the last update, each
      before its own step; sets SPO's decay.
  """
  rho = spo_decay(divergence)
  new = observe_spo(state.posterior, question, task, rho=rho)
  return dataclasses.replace(state, posterior=new)


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
  chex.assert_equal_shape([question, task])
  count = lambda values: jax.ops.segment_sum(values, question, len(state.a))
  task = jnp.asarray(task, jnp.float32)
  keep = jnp.where(count(jnp.ones_like(task)) > 0, rho, 1.0)
  return Posterior(a=keep * state.a + count(task), b=keep * state.b + count(1.0 - task))


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
