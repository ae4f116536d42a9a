"""Advantages of messages from rewards, within groups.

`M` messages, `C` reward components. A group is any set of messages that share an id:
see `group_ids`. Statistics use the population variance (ddof 0), so that a group of one
has deviation 0 and advantage 0.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np

GROUPINGS = ('question', 'question_agent', 'question_turn_agent')
NORMALIZATIONS = ('group_std', 'group_mean', 'batch_std', 'per_component')


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
  return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def centred(values: jax.Array, groups: jax.Array) -> jax.Array:
  """`values - mean of the group`, float32 `[M]`."""
  # Twice, since the first mean is off by a rounding error: in a group of equal values that
  # is all that is left, and division by the (tiny) deviation would blow it up.
  deviation = values - _group_mean(values, groups)
  return deviation - _group_mean(deviation, groups)


def _group_mean(values: jax.Array, groups: jax.Array) -> jax.Array:
  """Each message's group mean, `[M]`."""
  chex.assert_rank([values, groups], 1)
  chex.assert_equal_shape([values, groups])
  total = jax.ops.segment_sum(values, groups, values.shape[0])
  count = jax.ops.segment_sum(jnp.ones_like(values), groups, values.shape[0])
  return (total / jnp.maximum(count, 1.0))[groups]


def _group_std(values: jax.Array, groups: jax.Array) -> jax.Array:
  """Each message's group standard deviation, `[M]`."""
  return jnp.sqrt(_group_mean(centred(values, groups) ** 2, groups))


def group_std(
  rewards: jax.Array, groups: jax.Array, *, std_floor: float = 0.0, eps: float = 1e-6
) -> jax.Array:
  """GRPO (arXiv 2402.03300): `(r - mu) / max(sigma, std_floor, eps)`.

  A group whose task scores tie divides its cost differences by their own spread: lambda
  cancels there, and the price acts at full strength. `per_component` does not do this.
  """
  scale = jnp.maximum(_group_std(rewards, groups), max(std_floor, eps))
  return centred(rewards, groups) / scale


def group_mean(rewards: jax.Array, groups: jax.Array) -> jax.Array:
  """Dr. GRPO (arXiv 2503.20783): `r - mu`."""
  return centred(rewards, groups)


def batch_std(
  rewards: jax.Array, groups: jax.Array, *, std_floor: float = 0.0, eps: float = 1e-6
) -> jax.Array:
  """`(r - mu_group) / max(sigma_batch, std_floor, eps)`."""
  deviation = centred(rewards, groups)
  return deviation / jnp.maximum(jnp.std(rewards), max(std_floor, eps))


def per_component(
  task: jax.Array,
  costs: jax.Array,
  groups: jax.Array,
  *,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> jax.Array:
  """Each component apart, after GDPO (arXiv 2601.05242), so that lambda keeps its meaning.

  `(task - mu) / max(sigma, std_floor, eps) - (cost - mu_cost)`: only the task score is
  divided by its spread. A group whose task scores tie has task term 0 and is left with
  the price as it stands, not blown up to unit size.

  Args:
    task: float32 `[M]`, task score credited to each message.
    costs: float32 `[M]`, everything that is subtracted, weights applied.
    groups: int `[M]`.
  """
  return group_std(task, groups, std_floor=std_floor, eps=eps) - centred(costs, groups)


def advantages(
  normalize: str,
  task: jax.Array,
  costs: jax.Array,
  groups: jax.Array,
  *,
  std_floor: float = 0.0,
) -> jax.Array:
  """Advantage float32 `[M]` of reward `task - costs` under a named normalisation."""
  if normalize == 'per_component':
    return per_component(task, costs, groups, std_floor=std_floor)
  if normalize == 'group_mean':
    return group_mean(task - costs, groups)
  return {'group_std': group_std, 'batch_std': batch_std}[normalize](
    task - costs, groups, std_floor=std_floor
  )


def tied_groups(values: np.ndarray, groups: np.ndarray) -> float:
  """Share of groups whose values are all equal (no task signal)."""
  low = np.full(groups.max() + 1, np.inf)
  high = -low
  np.minimum.at(low, groups, values)
  np.maximum.at(high, groups, values)
  return float(np.mean(high - low < 1e-9))
