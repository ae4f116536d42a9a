"""Computes advantages on two time scales: of subgoals, and of the messages that follow them."""

from __future__ import annotations

import chex
import numpy as np

from agent_gspo.algorithms.advantages import groups as group_lib


def hiper(
  own_rewards: chex.Array,
  groups: chex.Array,
  question: chex.Array,
  episode: chex.Array,
  agent: chex.Array,
  turn: chex.Array,
  silent: chex.Array,
  observation: chex.Array,
  *,
  planner: int = 0,
  lam: float = 0.95,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes hierarchical advantages of a planner and its executors, after HiPER.

  HiPER is arXiv 2602.16165; the formulas are those of its authors' code, without discount. A
  message of the planner sets a subgoal, its silence keeps the last one; its first turn always sets
  one. A span lasts until the next subgoal. With the author's rewards `r` from here to the end of
  the span and the planner's `V_high` where the next subgoal is set (0 in the last span):

    U = sum r + V_high(next)
    subgoals:            A_k = d_k + lam A_{k+1},  d_k = U_k - V_high
    executors, silence:  A = U - V_low

  Each kind is divided by its root mean square. Where the paper trains two value heads, `V_high` is
  the planner's mean return from a subgoal on and `V_low` the mean `U`, over the messages about the
  question with the same author and observation; over `groups` for an observation that occurs once.
  Agents must earn the same, as executors inherit the planner's value.

  Args:
    own_rewards: Reward of each message alone minus its own costs, float32 `[M]`.
    groups, question, episode, agent, turn: int `[M]`; the planner writes first in a turn.
    silent: bool `[M]`.
    observation: Id, equal iff the author observes the same, int `[M]`.
    planner: Index of the agent that sets subgoals.
    lam: Weight of later subgoals.
    eps: Smallest root mean square that is divided by.
  """
  plans, authors = np.asarray(agent == planner), group_lib.joint_ids(episode, agent)
  first = group_lib.to_go(np.ones(len(turn)), authors, turn) == group_lib.size(authors)
  sets = plans & (~silent | first)
  order = np.lexsort((agent, turn, episode))
  heads = order[sets[order]]  # all subgoals, episode by episode
  span = np.zeros(len(order), int)
  span[order] = np.cumsum(sets[order])  # the subgoal after this span is `heads[span]`
  after = np.append(heads, -1)[span]
  goes_on = (after >= 0) & (episode[after] == episode)

  states, groups = group_lib.joint_ids(question, agent, observation), np.asarray(groups)
  to_end = group_lib.to_go(own_rewards, authors, turn)
  high = _means(to_end, states, groups, sets)
  to_subgoal = group_lib.to_go(own_rewards, group_lib.joint_ids(authors, span), turn)
  target = to_subgoal + np.where(goes_on, high[after], 0.0)  # U
  values = target - _means(target, states, groups, np.ones(len(sets)))
  for m in heads[::-1]:
    values[m] = target[m] - high[m] + (lam * values[after[m]] if goes_on[m] else 0.0)
  kinds = group_lib.joint_ids(sets, plans)
  return values / np.maximum(np.sqrt(group_lib.mean(values**2, kinds)), eps)


def _means(
  values: np.ndarray, states: np.ndarray, groups: np.ndarray, of: np.ndarray
) -> np.ndarray:
  """Returns means over the messages `of` each state, or of its group if that is only one."""
  recurs = group_lib.total(of, states) > 1
  values = values.astype(np.float64)
  apart = np.where(
    recurs, group_lib.centred(values, states, of), group_lib.centred(values, groups, of)
  )
  return values - apart  # exact where all are equal
