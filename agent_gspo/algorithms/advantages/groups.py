"""Statistics of messages within groups.

`M` messages. A group is any set of messages that share an id in `0 .. M-1`, see `group_ids`
and `joint_ids`. Statistics are over messages: an episode that has several messages in a
group counts once for each. `solve_rate` is the exception, it counts episodes.

All in numpy: the number of messages differs from step to step, and JAX would compile for each.
"""

from __future__ import annotations

import chex
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
  return joint_ids(*columns)


def joint_ids(*columns: chex.Array) -> np.ndarray:
  """Int `[M]`, dense ids `0 .. M-1`: messages share one iff they agree in all `columns`.

  Args:
    *columns: int `[M]`, below 2^31.
  """
  order = np.lexsort(columns)
  table = np.stack([np.asarray(column)[order] for column in columns])
  ids = np.zeros(len(order), int)
  ids[order[1:]] = np.cumsum(np.any(table[:, 1:] != table[:, :-1], axis=0))
  return ids


def total(values: chex.Array, groups: chex.Array) -> np.ndarray:
  """Each message's group sum, `[M]`."""
  chex.assert_rank([values, groups], 1)
  chex.assert_equal_shape([values, groups])
  values = np.asarray(values)
  sums = np.bincount(groups, weights=values, minlength=len(values))
  return sums.astype(np.result_type(values, np.float32))[groups]


def size(groups: chex.Array) -> np.ndarray:
  """Messages in each message's group, float32 `[M]`, at least 1."""
  return total(np.ones(len(groups), np.float32), groups)


def mean(values: chex.Array, groups: chex.Array, weights: chex.Array | None = None) -> np.ndarray:
  """Each message's group mean, `[M]`; plain where the `weights` of a group are all 0."""
  if weights is None:
    return total(values, groups) / size(groups)
  weights = np.asarray(weights, np.float32)
  weights = np.where(total(weights, groups) > 0, weights, np.float32(1))
  return total(values * weights, groups) / total(weights, groups)


def centred(
  values: chex.Array, groups: chex.Array, weights: chex.Array | None = None
) -> np.ndarray:
  """Returns `values - mean of the group`, `[M]`: exactly 0 where a group's values are equal."""
  values = np.asarray(values)
  one = np.zeros(len(values), int)
  one[groups] = np.arange(len(values))
  # Relative to one of the group, in float64: equal values leave no rounding error, which division
  # by a tiny deviation would blow up, and which a clip would count as a message.
  apart = values.astype(np.float64) - values[one[groups]]
  return (apart - mean(apart, groups, weights)).astype(np.result_type(values, np.float32))


def deviation(values: chex.Array, groups: chex.Array) -> np.ndarray:
  """Each message's group standard deviation (population, ddof 0), `[M]`."""
  return np.sqrt(mean(centred(values, groups) ** 2, groups))


def whitened(values: chex.Array, *, eps: float = 1e-6) -> np.ndarray:
  """`(values - mean) / max(standard deviation, eps)` over all messages, `[M]`."""
  return scaled(centred(values, np.zeros(len(values), int)), eps=eps)


def scaled(values: chex.Array, *, eps: float = 1e-6) -> np.ndarray:
  """Returns `values / max(root of their mean square, eps)` over all messages, `[M]`.

  Whitens values that add up to 0 in each group: to subtract their mean, which is a rounding error,
  would move those that are 0.
  """
  square = mean(values**2, np.zeros(len(values), int))
  return values / np.maximum(np.sqrt(square), eps)


def episodes(groups: chex.Array, episode: chex.Array) -> np.ndarray:
  """Number of different episodes in each message's group, float32 `[M]`."""
  return np.round(total(1.0 / size(joint_ids(groups, episode)), groups))


def solve_rate(task: chex.Array, groups: chex.Array, episode: chex.Array) -> np.ndarray:
  """Mean task score of the episodes of each message's group, float32 `[M]`.

  One entry an episode, however many messages it has in the group.

  Args:
    task: float32 `[M]`, task score of the message's episode.
    groups, episode: int `[M]`.
  """
  return mean(task, groups, 1.0 / size(joint_ids(groups, episode)))


def to_go(values: chex.Array, groups: chex.Array, when: chex.Array) -> np.ndarray:
  """Sum of `values` over a message and those after it in its group, float32 `[M]`.

  In float64 a running sum over all groups can be cut between them.

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
  return out


def tied_groups(values: chex.Array, groups: chex.Array) -> float:
  """Share of groups whose values are all equal (no task signal)."""
  one_a_group = np.unique(groups, return_index=True)[1]
  return float(np.mean(spread(values, groups)[one_a_group] < 1e-9))


def spread(values: chex.Array, groups: chex.Array) -> np.ndarray:
  """Largest less smallest value of each message's group, `[M]`."""
  low = np.full(len(values), np.inf, np.asarray(values).dtype)
  high = -low
  np.minimum.at(low, groups, values)
  np.maximum.at(high, groups, values)
  return (high - low)[groups]
