"""Computes advantages that differ between turns of an episode.

`M` messages; `rewards`, `task` and `costs` are float32 `[M]`, ids int `[M]`.
"""

from __future__ import annotations

import functools
import itertools

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
  """Computes turn returns normalized per agent, after MARS (arXiv 2510.15414).

  `R_m = task - sum of the author's costs from this turn on`: the task score is paid at the end,
  and earlier costs do not depend on later messages. `A = (R - mu_agent) / sigma_agent` over all
  messages of the agent in the batch; `AdvantageInputs.groups` is not read. `costs` are each
  message's own. As in `group_std`, lambda cancels for an agent whose task scores all tie.
  """
  returns = task - group_lib.to_go(costs, group_lib.joint_ids(episode, agent), turn)
  return group_std(returns, group_lib.joint_ids(agent), std_floor=std_floor, eps=eps)


def gigpo(
  rewards: chex.Array,
  groups: chex.Array,
  question: chex.Array,
  observation: chex.Array,
  episode_rewards: chex.Array,
  *,
  omega: float = 1.0,
  divide: bool = True,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes GiGPO, group-in-group (arXiv 2505.10978): `A = A_episode + omega A_step`.

  `A_episode` compares the returns of whole episodes within `groups`, `A_step` the returns from here
  on among the question's messages with the same observation (the anchor state); one that occurs
  once adds 0.

  Args:
    rewards: Discounted returns from the message on, float32 `[M]`.
    groups, question: int `[M]`.
    observation: Id, equal iff the environment shows the same, without one iff the prompts are
      equal, int `[M]`.
    episode_rewards: Returns of whole episodes, float32 `[M]`.
    omega: Weight of the step term.
    divide: Divides by the standard deviation (as in `group_std`).
    std_floor, eps: Options of `group_std`.
  """
  steps = group_lib.joint_ids(question, observation)
  if not divide:
    return group_mean(episode_rewards, groups) + omega * group_mean(rewards, steps)
  normalised = functools.partial(group_std, std_floor=std_floor, eps=eps)
  return normalised(episode_rewards, groups) + omega * normalised(rewards, steps)


def hgpo(
  rewards: chex.Array,
  question: chex.Array,
  history: chex.Array,
  *,
  alpha: float = 1.0,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes HGPO, a hierarchy of groups (arXiv 2602.22817): `A = sum_k w_k A_k`, `k = 1 .. K`.

  `A_k` is `group_std` among the question's messages with the same last-`k` history, and `w_k` is
  proportional to `(k + 1)^alpha` over the `k` where `A_k` is not 0: long histories compare similar
  messages, short ones give larger groups. If all are 0, `A` is 0.

  Args:
    rewards: float32 `[M]`.
    question: int `[M]`.
    history: Ids of the last-`k` history in row `k - 1`, int `[K, M]`.
    alpha, std_floor, eps: Exponent of the weights; options of `group_std`.
  """
  values, weights = [], []
  for k, ids in enumerate(history, start=1):
    level = group_lib.joint_ids(question, ids)
    values.append(group_std(rewards, level, std_floor=std_floor, eps=eps))
    # Values at the mean keep a rounding error, which is not a signal.
    weights.append(np.where(np.abs(values[-1]) > _NO_SIGNAL, (k + 1.0) ** alpha, 0.0))
  weight = np.stack(weights)  # [K, M]
  whole = np.sum(weight, axis=0)
  return np.sum(weight * np.stack(values), axis=0) / np.where(whole > 0, whole, 1.0)


def matchtir(
  rewards: chex.Array,
  groups: chex.Array,
  agent: chex.Array,
  turn: chex.Array,
  episode_rewards: chex.Array,
  *,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes the dual-level advantages of MatchTIR (arXiv 2601.10712): `(A_episode + A_turn) / 2`.

  `A_episode` compares what an author earned in whole episodes within `groups`, `A_turn` its returns
  from a turn on with those of other episodes in the same turn; the authors discount
  by 0.9 (`reward.discount`). Formulas are those of their code, but for the population deviation,
  and 0 for a turn without others to compare with, where their code keeps the return.

  Their reward of a turn is the mean similarity of its tool calls to the reference calls that a
  bipartite matching over the whole episode assigns to them. Here the task, which has the
  references, gives rewards: `Environment.act` can match a call to those not yet matched.

  Args:
    rewards: Discounted returns from the message on, float32 `[M]`.
    groups, agent, turn: int `[M]`.
    episode_rewards: Undiscounted returns of whole episodes, float32 `[M]`.
    std_floor, eps: Options of `group_std`.
  """
  normalised = functools.partial(group_std, std_floor=std_floor, eps=eps)
  turns = group_lib.joint_ids(groups, agent, turn)
  return (normalised(episode_rewards, groups) + normalised(rewards, turns)) / 2


def mars2(
  own_rewards: chex.Array,
  question: chex.Array,
  episode: chex.Array,
  agent: chex.Array,
  turn: chex.Array,
  taken: chex.Array,
  *,
  gamma: float = 0.5,
  mix: float = 0.5,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes path-level advantages over a tree of refinements (MARS2, arXiv 2604.14564).

  A message is a node, its reward `r` the quality of the state after it. Its parent is the message
  that was taken in the turn before, its siblings are the author's other candidates for the turn:

    r' = r + gamma (r - b),  b = (1 - mix) r_parent + mix (mean r of the siblings)

  If a node lacks one of the two, `b` is the other, and without both `r' = r`. `A` is `group_std` of
  `r'` over the author's nodes of the tree. Formulas are those of the authors' code, but for the
  population deviation. There Thompson sampling chooses the node to expand; here an episode
  continues from the best candidate of a turn (`rollout.branches`), and the tree of a question
  consists of its episodes, whose first turns are siblings. In a turn of several agents the parent's
  reward is the mean of theirs.

  Args:
    own_rewards: Reward of each message alone minus its own costs, float32 `[M]`.
    question, episode, agent, turn: int `[M]`.
    taken: False for a candidate that the episode discards, bool `[M]`.
    gamma: Weight of the comparison with parent and siblings.
    mix: Part of the siblings in it.
    std_floor, eps: Options of `group_std`.
  """
  own_rewards = np.asarray(own_rewards, np.float64)
  layers = group_lib.joint_ids(turn, episode)  # episode by episode, in order of turns
  earned, episode_of = np.zeros(len(layers)), np.zeros(len(layers), int)
  earned[layers] = group_lib.mean(own_rewards, layers, taken)
  episode_of[layers] = episode
  follows = (layers > 0) & (episode_of[layers - 1] == episode)
  over_parent = own_rewards - earned[layers - 1]
  siblings = group_lib.joint_ids(question, agent, turn, np.where(follows, episode, -1))
  size = group_lib.size(siblings)
  over_siblings = group_lib.centred(own_rewards, siblings) * size / np.maximum(size - 1, 1)
  both = (1 - mix) * over_parent + mix * over_siblings
  gap = np.where(follows, np.where(size > 1, both, over_parent), over_siblings)
  tree = group_lib.joint_ids(question, agent)
  return group_std(own_rewards + gamma * gap, tree, std_floor=std_floor, eps=eps)


def advantage_alignment(
  own_rewards: chex.Array,
  groups: chex.Array,
  episode: chex.Array,
  agent: chex.Array,
  turn: chex.Array,
  role: chex.Array,
  *,
  beta: float = 1.0,
  gamma: float = 0.9,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes Advantage Alignment (arXiv 2406.14662) for agents that earn different rewards.

  With the author's advantages `A_t` and that of others, `B_t`, all `group_std` of returns from
  turn `t` on:

    A_t + beta gamma (sum_{k < t} gamma^(t - k) A_k) B_t

  Actions that help others are reinforced after turns with a positive author's advantage, so that
  others learn to raise it. Others are all agents of another `role`, in place of the paper's one
  opponent; `t` and `k` count the author's messages.

  Args:
    own_rewards: Reward of each message alone minus its own costs, float32 `[M]`.
    groups, episode, agent, turn, role: int `[M]`.
    beta, gamma: Weight of the second term; discount of earlier turns.
    std_floor, eps: Options of `group_std`.
  """
  normalised = functools.partial(group_std, groups=groups, std_floor=std_floor, eps=eps)
  authors = group_lib.joint_ids(episode, agent)
  own = normalised(group_lib.to_go(own_rewards, authors, turn))
  episodes, of_others = group_lib.joint_ids(episode), np.zeros(len(own), np.float32)
  for one in np.unique(role):
    earned = group_lib.to_go(np.where(role == one, own_rewards, 0), episodes, turn)
    of_others += np.where(role == one, 0, earned)
  others = normalised(of_others)
  past = np.zeros(len(own))
  order = np.lexsort((turn, authors))
  for before, m in itertools.pairwise(order):
    if authors[before] == authors[m]:
      past[m] = gamma * (past[before] + own[before])
  return own + beta * gamma * past * others


def counterfactual(
  rewards: chex.Array,
  groups: chex.Array,
  question: chex.Array,
  agent: chex.Array,
  turn: chex.Array,
  silent: chex.Array,
) -> np.ndarray:
  """Computes `r - mean reward with the author silent in this turn`.

  Follows COMA (arXiv 1705.08926), with silence as the default action. The mean is over the silent
  messages of the same question, agent and turn, the message itself included if silent; without
  any, over `groups`. If rewards include each message's own cost, the reward of a silent one is its
  team's task score, so a message must earn its price.

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
