"""Statistics of messages within groups.

`M` messages. A group is any set of messages that share an id in `0 .. M-1`, see `group_ids`
and `joint_ids`. Statistics are over messages: an episode that has several messages in a
group counts once for each. `solve_rate` is the exception, it counts episodes.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np

GROUPINGS = ('question', 'question_agent', 'question_turn_agent')


def group_ids(
  grouping: str, question: np.ndarray, agent: np.ndarray, turn: np.ndarray
) -> np.ndarray:
  """Int `[M]`, dense ids `0 .. M-1` of the group of each message.

  'question': all messages about a question (GRPO). 'question_agent': those of one agent
  (Dr. MAS, arXiv 2602.08847). 'question_turn_agent': those of one agent in one turn
  (AT-GRPO, arXiv 2510.11062).

  Args:
    question, agent, turn: int `[M]`.
  """
  columns = {
    'question': [question],
    'question_agent': [question, agent],
    'question_turn_agent': [question, turn, agent],
  }[grouping]
  return np.asarray(joint_ids(*columns))


def joint_ids(*columns: chex.Array) -> jax.Array:
  """Int `[M]`, dense ids `0 .. M-1`: messages share one iff they agree in all `columns`.

  Args:
    *columns: int `[M]`, below 2^31.
  """
  order = jnp.lexsort(columns)
  table = jnp.stack([jnp.asarray(column)[order] for column in columns])
  first = jnp.any(table[:, 1:] != table[:, :-1], axis=0)
  dense = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(first)])
  return jnp.zeros_like(dense).at[order].set(dense)


def total(values: chex.Array, groups: chex.Array) -> jax.Array:
  """Each message's group sum, `[M]`."""
  chex.assert_rank([values, groups], 1)
  chex.assert_equal_shape([values, groups])
  return jax.ops.segment_sum(jnp.asarray(values), groups, len(values))[groups]


def size(groups: chex.Array) -> jax.Array:
  """Messages in each message's group, float32 `[M]`, at least 1."""
  return total(jnp.ones(len(groups), jnp.float32), groups)


def mean(values: chex.Array, groups: chex.Array, weights: chex.Array | None = None) -> jax.Array:
  """Each message's group mean, `[M]`; plain where the `weights` of a group are all 0."""
  if weights is None:
    return total(values, groups) / size(groups)
  weights = jnp.asarray(weights, jnp.float32)
  weights = jnp.where(total(weights, groups) > 0, weights, 1.0)
  return total(values * weights, groups) / total(weights, groups)


def centred(values: chex.Array, groups: chex.Array, weights: chex.Array | None = None) -> jax.Array:
  """`values - mean of the group`, float32 `[M]`."""
  # Twice, since the first mean is off by a rounding error: in a group of equal values that
  # is all that is left, and division by the (tiny) deviation would blow it up.
  deviation = values - mean(values, groups, weights)
  return deviation - mean(deviation, groups, weights)


def deviation(values: chex.Array, groups: chex.Array) -> jax.Array:
  """Each message's group standard deviation (population, ddof 0), `[M]`."""
  return jnp.sqrt(mean(centred(values, groups) ** 2, groups))


def whitened(values: chex.Array, *, eps: float = 1e-6) -> jax.Array:
  """`(values - mean) / max(standard deviation, eps)` over all messages, `[M]`."""
  everyone = jnp.zeros(len(values), int)
  return centred(values, everyone) / jnp.maximum(deviation(values, everyone), eps)


def episodes(groups: chex.Array, episode: chex.Array) -> jax.Array:
  """Number of different episodes in each message's group, float32 `[M]`."""
  return jnp.round(total(1.0 / size(joint_ids(groups, episode)), groups))


def solve_rate(task: chex.Array, groups: chex.Array, episode: chex.Array) -> jax.Array:
  """Mean task score of the episodes of each message's group, float32 `[M]`.

  One entry an episode, however many messages it has in the group.

  Args:
    task: float32 `[M]`, task score of the message's episode.
    groups, episode: int `[M]`.
  """
  return mean(task, groups, 1.0 / size(joint_ids(groups, episode)))


def to_go(values: chex.Array, groups: chex.Array, when: chex.Array) -> jax.Array:
  """Sum of `values` over a message and those after it in its group, float32 `[M]`.

  Runs on the host: in float64 a running sum over all groups can be cut between them.

  Args:
    values: float32 `[M]`.
    groups: int `[M]`.
    when: int `[M]`, place in time, different within a group.
  """
  order = np.lexsort((-np.asarray(when), groups))
  ranked = np.asarray(groups)[order]
  sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64)[order])])
  out = np.zeros(len(order), np.float32)
  out[order] = sums[1:] - sums[np.searchsorted(ranked, ranked)]
  return jnp.asarray(out)


def tied_groups(values: np.ndarray, groups: np.ndarray) -> float:
  """Share of groups whose values are all equal (no task signal)."""
  low = np.full(groups.max() + 1, np.inf)
  high = -low
  np.minimum.at(low, groups, values)
  np.maximum.at(high, groups, values)
  return float(np.mean(high - low < 1e-9))
