"""Computes advantages against a baseline: group, batch, length-weighted or posterior.

`M` messages; `rewards` are float32 `[M]`, ids int `[M]`. Statistics are over messages and use
the population variance (ddof 0), so that a group of one has deviation 0 and advantage 0.
"""

from __future__ import annotations

import chex
import numpy as np

from agent_gspo.algorithms.advantages import groups as group_lib
from agent_gspo.algorithms.advantages.groups import centred
from agent_gspo.algorithms.advantages.inputs import Advantage


def group_std(
  rewards: chex.Array, groups: chex.Array, *, std_floor: float = 0.0, eps: float = 1e-6
) -> np.ndarray:
  """Computes GRPO advantages (arXiv 2402.03300): `(r - mu) / max(sigma, std_floor, eps)`.

  In a group with tied task scores, cost differences are divided by their own spread: lambda
  cancels, and the price acts at full strength. `per_component` avoids this.
  """
  scale = np.maximum(group_lib.deviation(rewards, groups), max(std_floor, eps))
  return centred(rewards, groups) / scale


def group_mean(rewards: chex.Array, groups: chex.Array) -> np.ndarray:
  """Computes Dr. GRPO advantages (arXiv 2503.20783): `r - mu`."""
  return centred(rewards, groups)


def batch_std(
  rewards: chex.Array, groups: chex.Array, *, std_floor: float = 0.0, eps: float = 1e-6
) -> np.ndarray:
  """Computes `(r - mu_group) / max(sigma_batch, std_floor, eps)`."""
  scale = np.maximum(np.std(rewards), max(std_floor, eps))
  return centred(rewards, groups) / scale


def per_component(
  task: chex.Array,
  costs: chex.Array,
  groups: chex.Array,
  *,
  std_floor: float = 0.0,
  eps: float = 1e-6,
  whiten: bool = False,
) -> np.ndarray:
  """Normalizes each component separately, after GDPO (arXiv 2601.05242): lambda keeps its meaning.

  `(task - mu) / max(sigma, std_floor, eps) - (cost - mu_cost)`: only the task score is divided by
  its spread. A group with tied task scores has task term 0 and keeps the plain price, not scaled
  to unit size.

  Args:
    task: Task score credited to each message, float32 `[M]`.
    costs: Sum of all weighted costs, float32 `[M]`.
    groups: Group ids, int `[M]`.
    whiten: GDPO's last step, whitening of the sum over the batch. Off by default: in a batch with
      all task scores tied it would divide by the spread of the costs, and lambda cancels.
  """
  values = group_std(task, groups, std_floor=std_floor, eps=eps) - centred(costs, groups)
  return group_lib.scaled(values, eps=eps) if whiten else values


def ngrpo(
  rewards: chex.Array,
  groups: chex.Array,
  episode: chex.Array,
  *,
  best: float = 1.0,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> Advantage:
  """Computes negative-enhanced GRPO (arXiv 2509.18851): group_std with a virtual reward `best`.

  All-wrong groups get negative advantages; groups in which every reward is `best` are dropped
  (unless rewards include a price or bonus, which then acts at full strength, as in `group_std`).
  The virtual sample is an episode: it weighs as many messages as the group's episodes have on
  average. A group of one is compared with it, so its advantage is 0 only at `best`. The paper
  clips at 0.16 / 0.24.
  """
  count = group_lib.size(groups)
  weight = count / group_lib.episodes(groups, episode)
  # Relative to `best`, so that groups at `best` are 0 without rounding.
  gap = rewards - best
  mean = group_lib.total(gap, groups) / (count + weight)
  squares = group_lib.total((gap - mean) ** 2, groups) + weight * mean**2
  scale = np.maximum(np.sqrt(squares / (count + weight)), max(std_floor, eps))
  elsewhere = group_lib.total((gap != 0).astype(np.float32), groups)
  return Advantage(values=(gap - mean) / scale, kept=(elsewhere > 0).astype(np.float32))


def rloo(rewards: chex.Array, groups: chex.Array, episode: chex.Array) -> np.ndarray:
  """Computes leave-one-out advantages (arXiv 2402.14740): `r - mean of the other episodes`.

  With one message per episode this is `G / (G - 1) (r - mu)`. With several, messages of the same
  episode are left out too: they share the task score, and the baseline would depend on the message.
  A group of one episode gives 0.
  """
  difference = centred(rewards, groups)
  own = group_lib.joint_ids(groups, episode)
  others = group_lib.size(groups) - group_lib.size(own)
  # Centered rewards sum to 0 in the group, so those of the other episodes sum to minus its own.
  baseline = -group_lib.total(difference, own) / np.maximum(others, 1.0)
  return np.where(others > 0, difference - baseline, 0.0)


def reinforce_pp(rewards: chex.Array, *, eps: float = 1e-6) -> np.ndarray:
  """Computes REINFORCE++ (arXiv 2501.03262): rewards whitened over the whole batch, no groups.

  A group of one counts like any other: its baseline is the batch.
  """
  return group_lib.whitened(rewards, eps=eps)


def reinforce_pp_baseline(
  rewards: chex.Array, groups: chex.Array, *, eps: float = 1e-6
) -> np.ndarray:
  """Computes REINFORCE++ with baseline (arXiv 2501.03262): `whiten_batch(r - mu_group)`.

  As in `group_std`, lambda cancels in a batch with all task scores tied.
  """
  return group_lib.scaled(centred(rewards, groups), eps=eps)


def seeupo(
  rewards: chex.Array, groups: chex.Array, *, bound: float = 3.0, eps: float = 1e-6
) -> np.ndarray:
  """Computes SeeUPO (arXiv 2602.06554): `clamp(whiten_batch(r - mu_group), -bound, bound)`.

  The objective applies the multipliers of later turns.
  """
  return np.clip(reinforce_pp_baseline(rewards, groups, eps=eps), -bound, bound)


def opo(rewards: chex.Array, groups: chex.Array, lengths: chex.Array) -> np.ndarray:
  """Computes OPO, on-policy RL with optimal baseline (arXiv 2505.23585): `r - sum(l r) / sum(l)`.

  Args:
    rewards: float32 `[M]`.
    groups: int `[M]`.
    lengths: int `[M]`; if all lengths of a group are 0, the baseline is the plain mean.
  """
  return centred(rewards, groups, lengths)


def rae(
  rewards: chex.Array,
  episode: chex.Array,
  role: chex.Array,
  baselines: chex.Array,
  *,
  decay: float = 0.95,
) -> Advantage:
  """Computes role-conditioned advantages (RAE of SPIRAL, arXiv 2506.24119): `r - b_role`.

  `b <- decay b + (1 - decay) R` after each episode, in their order, with `R` the mean reward of the
  role's messages in it: an episode is compared with those before it. No group is needed.

  Args:
    rewards: float32 `[M]`.
    episode, role: int `[M]`.
    baselines: Baseline of each role before the first episode, float32 `[S]`.
    decay: Weight of the old baseline.
  """
  ids = group_lib.joint_ids(role, episode)  # in the order of episodes
  _, first = np.unique(ids, return_index=True)
  returns = group_lib.mean(np.asarray(rewards, np.float64), ids)[first]
  baseline = np.array(baselines, np.float64)
  before = np.zeros(len(first))
  for i, (own, value) in enumerate(zip(np.asarray(role)[first], returns, strict=True)):
    before[i] = baseline[own]
    baseline[own] = decay * baseline[own] + (1 - decay) * value
  return Advantage(
    values=rewards - before[ids],
    kept=np.ones(len(ids), np.float32),
    baselines=baseline.astype(np.float32),
  )


def spo_single(rewards: chex.Array, probability: chex.Array, *, eps: float = 1e-6) -> np.ndarray:
  """Computes single-stream policy optimization (arXiv 2509.13232): `whiten_batch(r - p)`.

  `p`, float32 `[M]`, is the question's success probability from earlier rollouts, see
  `selection.probability`: no group is needed, and a group of one counts like any other.
  """
  return group_lib.whitened(rewards - probability, eps=eps)
