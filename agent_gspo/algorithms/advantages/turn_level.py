"""Advantages that tell the turns of an episode apart.

`M` messages; `rewards`, `task` and `costs` are float32 `[M]`, ids int `[M]`.
"""

from __future__ import annotations

import chex
import numpy as np

from agent_gspo.algorithms.advantages import groups as group_lib
from agent_gspo.algorithms.advantages.group_baselines import group_mean, group_std

_NO_SIGNAL = 1e-6


def agent_turn(
  task: chex.Array,
  costs: chex.Array,
  episode: chex.Array,
  agent: chex.Array,
  turn: chex.Array,
  *,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """MARS: returns of turns, normalised per agent over the batch.

  `R_m = task - sum of the author's costs from this turn on`: the task score is paid at the
  end, what was spent before is no later message's doing. `A = (R - mu_agent) / sigma_agent`
  over all messages of the agent in the batch; `AdvantageInputs.groups` is not read. `costs` are
  each message's own. As in `group_std`, lambda cancels for an agent whose task scores all tie.
  """
  returns = task - group_lib.to_go(costs, group_lib.joint_ids(episode, agent), turn)
  return group_std(returns, group_lib.joint_ids(agent), std_floor=std_floor, eps=eps)


def gigpo(
  rewards: chex.Array,
  groups: chex.Array,
  question: chex.Array,
  observation: chex.Array,
  *,
  omega: float = 1.0,
  divide: bool = True,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Group-in-group (arXiv 2505.10978): `A = A_episode + omega A_step`.

  `A_episode` compares within `groups`, `A_step` among the question's messages written upon
  the identical visible transcript; a step that no one shares adds 0.

  Args:
    rewards: float32 `[M]`.
    groups, question: int `[M]`.
    observation: int `[M]`, equal iff the prompts are.
    omega: weight of the step.
    divide: by the standard deviation (as in `group_std`), else by 1.
    std_floor, eps: of the division.
  """
  steps = group_lib.joint_ids(question, observation)
  if not divide:
    return group_mean(rewards, groups) + omega * group_mean(rewards, steps)
  normalised = lambda ids: group_std(rewards, ids, std_floor=std_floor, eps=eps)
  return normalised(groups) + omega * normalised(steps)


def hgpo(
  rewards: chex.Array,
  question: chex.Array,
  history: chex.Array,
  *,
  alpha: float = 1.0,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Hierarchy of groups (arXiv 2602.22817): `A = sum_k w_k A_k`, `k = 1 .. K`.

  `A_k` is `group_std` among the question's messages with the identical last-`k` history, and
  `w_k` is proportional to `(k + 1)^alpha` over the `k` where `A_k` is not 0: a long history
  compares like with like, a short one has whom to compare with. All 0 gives 0.

  Args:
    rewards: float32 `[M]`.
    question: int `[M]`.
    history: int `[K, M]`, ids of the last-`k` history in row `k - 1`.
    alpha, std_floor, eps: see above.
  """
  chex.assert_rank(history, 2)
  values, weights = [], []
  for k, ids in enumerate(history, start=1):
    level = group_lib.joint_ids(question, ids)
    values.append(group_std(rewards, level, std_floor=std_floor, eps=eps))
    # A value at the mean is left with the rounding error of the rewards, which is no signal.
    weights.append(np.where(np.abs(values[-1]) > _NO_SIGNAL, (k + 1.0) ** alpha, 0.0))
  weight = np.stack(weights)
  whole = np.sum(weight, axis=0)
  return np.sum(weight * np.stack(values), axis=0) / np.where(whole > 0, whole, 1.0)


def salt(
  rewards: chex.Array,
  groups: chex.Array,
  question: chex.Array,
  path: chex.Array,
  *,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Stand-in for SALT (arXiv 2510.20022): `group_std`, averaged over identical turns.

  The question's episodes form a graph in which identical turns (same transcript, same
  message) are one node. A node has the mean advantage of the messages merged into it; where
  episodes diverge, each keeps its own.
  """
  values = group_std(rewards, groups, std_floor=std_floor, eps=eps)
  return group_lib.mean(values, group_lib.joint_ids(question, path))


def counterfactual(
  rewards: chex.Array,
  groups: chex.Array,
  question: chex.Array,
  agent: chex.Array,
  turn: chex.Array,
  silent: chex.Array,
) -> np.ndarray:
  """Did this message pay? `r - mean reward where its author was silent at this turn`.

  After COMA (arXiv 1705.08926), with silence as the default action. The mean is over the
  question's messages of the same agent and turn that are silent, the message itself included
  if it is; without any, over `groups`. With each message's own cost in the rewards a silent
  one's is its team's task score, so a message must earn its price.

  Args:
    rewards: float32 `[M]`.
    groups, question, agent, turn: int `[M]`.
    silent: bool `[M]`.
  """
  same = group_lib.joint_ids(question, agent, turn)
  silent = np.asarray(silent, np.float32)
  against = group_lib.centred(rewards, same, silent)
  known = group_lib.total(silent, same) > 0
  return np.where(known, against, group_lib.centred(rewards, groups))
