"""Computes statistics of messages within groups.

`M` messages. A group is any set of messages that share an id in `0 .. M-1`, see `group_ids`
and `joint_ids`. Statistics are over messages: an episode with several messages in a group counts
once for each.

Uses NumPy: the number of messages differs between steps, and JAX would compile for each.
"""

from __future__ import annotations

import chex
import numpy as np


def group_ids(
  grouping: str,
  question: np.ndarray,
  agent: np.ndarray,
  turn: np.ndarray,
  episode: np.ndarray,
  role: np.ndarray,
) -> np.ndarray:
  """Returns the group of each message, dense ids `0 .. M-1`, int `[M]`.

  'question': all messages about a question (GRPO). 'question_agent': messages of one agent
  (Dr. MAS, arXiv 2602.08847). 'question_turn_agent': messages of one agent in one turn
  (AT-GRPO, arXiv 2510.11062). 'episode_turn_agent': candidates for one turn (AT-GRPO's tree).
  'question_side': messages of one side, which `role` numbers (AdvEvo-MARL, arXiv 2510.01586).
  """
  columns = {
    'question': [question],
    'question_agent': [question, agent],
    'question_turn_agent': [question, turn, agent],
    'question_side': [question, role],
    'episode_turn_agent': [episode, turn, agent],
  }[grouping]
  return joint_ids(*columns)


def joint_ids(*columns: chex.Array) -> np.ndarray:
  """Returns dense ids `0 .. M-1`, int `[M]`: equal iff messages agree in all `columns`.

  Args:
    *columns: int `[M]`, below 2^31.
  """
  order = np.lexsort(columns)
  table = np.stack([np.asarray(column)[order] for column in columns])
  ids = np.zeros(len(order), int)
  ids[order[1:]] = np.cumsum(np.any(table[:, 1:] != table[:, :-1], axis=0))
  return ids


def total(values: chex.Array, groups: chex.Array) -> np.ndarray:
  """Computes each message's group sum, `[M]`."""
  chex.assert_rank([values, groups], 1)
  chex.assert_equal_shape([values, groups])
  values = np.asarray(values)
  sums = np.bincount(groups, weights=values, minlength=len(values))
  return sums.astype(np.result_type(values, np.float32))[groups]


def size(groups: chex.Array) -> np.ndarray:
  """Counts the messages in each message's group, float32 `[M]`, at least 1."""
  return total(np.ones(len(groups), np.float32), groups)


def mean(values: chex.Array, groups: chex.Array, weights: chex.Array | None = None) -> np.ndarray:
  """Computes each message's group mean, `[M]`; unweighted if all `weights` of a group are 0."""
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
  # Relative to one value of the group, in float64: equal values leave no rounding error, which
  # division by a tiny deviation would amplify and which a clip would count as a message.
  apart = values.astype(np.float64) - values[one[groups]]
  return (apart - mean(apart, groups, weights)).astype(np.result_type(values, np.float32))


def deviation(values: chex.Array, groups: chex.Array) -> np.ndarray:
  """Computes each message's group standard deviation (population, ddof 0), `[M]`."""
  return np.sqrt(mean(centred(values, groups) ** 2, groups))


def whitened(values: chex.Array, *, eps: float = 1e-6) -> np.ndarray:
  """Computes `(values - mean) / max(standard deviation, eps)` over all messages, `[M]`."""
  return scaled(centred(values, np.zeros(len(values), int)), eps=eps)


def scaled(values: chex.Array, *, eps: float) -> np.ndarray:
  """Computes `values / max(root mean square, eps)` over all messages, `[M]`.

  Whitens values that sum to 0 in each group: subtracting their mean, which is a rounding error,
  would change values of 0.
  """
  square = mean(values**2, np.zeros(len(values), int))
  return values / np.maximum(np.sqrt(square), eps)


def episodes(groups: chex.Array, episode: chex.Array) -> np.ndarray:
  """Counts the different episodes in each message's group, float32 `[M]`."""
  return np.round(total(1.0 / size(joint_ids(groups, episode)), groups))


def to_go(values: chex.Array, groups: chex.Array, when: chex.Array) -> np.ndarray:
  """Sums `values` over the messages of each one's group from its time on, float32 `[M]`.

  A float64 running sum over all groups is precise enough to be split between them.

  Args:
    values: float32 `[M]`.
    groups: int `[M]`.
    when: Order in time, int `[M]`.
  """
  order = np.lexsort((-np.asarray(when), groups))
  ranked, steps = np.asarray(groups)[order], joint_ids(-np.asarray(when), groups)[order]
  sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64)[order])])
  out = np.zeros(len(order), np.float32)
  out[order] = sums[np.searchsorted(steps, steps, 'right')] - sums[np.searchsorted(ranked, ranked)]
  return out


def tied_groups(values: chex.Array, groups: chex.Array) -> float:
  """Computes the share of groups whose values are all equal (no task signal)."""
  low = np.full(len(values), np.inf)
  high = -low
  np.minimum.at(low, groups, values)
  np.maximum.at(high, groups, values)
  return float(np.mean((high - low)[np.unique(groups)] < 1e-9))
