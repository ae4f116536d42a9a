"""Computes advantages that correct group statistics of small, one-sided or easy groups.

`M` messages; `rewards` and `task` are float32 `[M]`, ids int `[M]`.
"""

from __future__ import annotations

import chex
import numpy as np

from agent_gspo.algorithms.advantages import groups as group_lib
from agent_gspo.algorithms.advantages.group_baselines import group_std
from agent_gspo.algorithms.advantages.inputs import Advantage


def _sorted_places(values, groups, *ties) -> tuple[np.ndarray, np.ndarray]:
  """Returns the order by group and value, and the start of each message's group, both `[M]`."""
  order = np.lexsort((*reversed(ties), values, groups))
  sizes = np.bincount(groups, minlength=len(values))
  return order, (np.cumsum(sizes) - sizes)[groups]


def _median(values, groups) -> np.ndarray:
  """Computes each message's group median (mean of the middle two in even groups), `[M]`."""
  order, start = _sorted_places(values, groups)
  count = group_lib.size(groups).astype(int)
  ranked = np.asarray(values)[order]
  return (ranked[start + (count - 1) // 2] + ranked[start + count // 2]) / 2


def mc_grpo(
  rewards: chex.Array,
  groups: chex.Array,
  episode: chex.Array,
  turn: chex.Array,
  agent: chex.Array,
  *,
  mad_floor: float = 0.1,
  eps: float = 1e-3,
) -> Advantage:
  """Computes median-centered GRPO (arXiv 2601.22582): `(r - median) / (MAD + eps) * n / #nonzero`.

  MAD is the median of `abs(r - median)`, `n` the group's size (odd: the paper draws G + 1).
  The middle sample of an odd group, sorted by reward, episode, turn and agent, is dropped: its
  advantage is 0. An even group drops none.

  Differs from the paper: MAD is at least `mad_floor` times the group's range. Rewards (1, 1, 0)
  have MAD 0, and the paper's formula gives the last one an advantage of -3000.
  """
  difference = rewards - _median(rewards, groups)
  least = mad_floor * group_lib.spread(rewards, groups)
  spread = np.maximum(_median(np.abs(difference), groups), least)
  count = group_lib.size(groups)
  moved = group_lib.total((difference != 0).astype(np.float32), groups)
  values = difference / (spread + eps) * count / np.maximum(moved, 1.0)

  order, start = _sorted_places(rewards, groups, episode, turn, agent)
  middle = order[start + count.astype(int) // 2]
  dropped = (middle == np.arange(len(rewards))) & (count % 2 == 1)
  return Advantage(values=values, kept=1.0 - dropped)


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


def a_grae(
  rewards: chex.Array,
  task: chex.Array,
  groups: chex.Array,
  episode: chex.Array,
  *,
  alpha: float = 1.0,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes asymmetric advantages (arXiv 2602.05548) from `group_std`.

  With `p` the group's solve rate (one entry per episode) and `m` the mean of `p` over groups:
  `hard = 0.5 A / sqrt(p)`, `easy = 0.5 A / (1 - sqrt(p))`,
  `A' = (1 - m) easy + m hard`, times `min(1, m / alpha)` where `A' > 0`.

  Differs from the paper: `p` uses the task score, since a negative mean reward has no root, and is
  clipped to `[1 / (E + 1), E / (E + 1)]` for `E` episodes: if all are wrong (or right) the paper's
  `A` is 0, but a price is not, and would be divided by the paper's epsilon.
  """
  values = group_std(rewards, groups, std_floor=std_floor, eps=eps)
  rate = group_lib.solve_rate(task, groups, episode)
  share = 1.0 / group_lib.size(groups)  # each group counts once
  batch = np.sum(rate * share) / np.sum(share)
  least = 1.0 / (group_lib.episodes(groups, episode) + 1.0)
  root = np.sqrt(np.clip(rate, least, 1.0 - least))
  hard, easy = 0.5 * values / root, 0.5 * values / (1.0 - root)
  mixed = (1.0 - batch) * easy + batch * hard
  ahead = batch / alpha if batch < alpha else 1.0  # alpha may be 0
  return np.where(mixed > 0, mixed * ahead, mixed)
