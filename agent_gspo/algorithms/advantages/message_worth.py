"""Advantages from what the answering agent gained by each message.

`M` messages. A gain is in nats of the gold answer, see `training.message_worth`.
"""

from __future__ import annotations

import chex
import numpy as np

from agent_gspo.algorithms.advantages import groups as group_lib
from agent_gspo.algorithms.advantages.group_baselines import per_component


def worth(
  task: chex.Array,
  costs: chex.Array,
  groups: chex.Array,
  gain: chex.Array,
  plain_gain: chex.Array,
  plain_costs: chex.Array,
  *,
  nats: float = 10.0,
  outcome: float = 0.0,
  virtual: bool = True,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Returns what a message gained its reader, less its cost and less the group's baseline.

  `r = clip(gain / nats, -1, 1) + outcome * task - costs`, and `A = r - b`, where `b` is the mean of
  `r` over the group and, with `virtual`, over two actions that nobody need have taken: silence
  (gain and costs 0) and the plain note. They keep a group that is silent altogether, or never
  silent, from teaching nothing. Where nothing was measured (NaN, such as the answering agent's own
  messages) the advantage is that of `per_component`.

  In nats gains add up: of two messages that are of use only together, the first pays already. In
  probabilities it would not.

  Args:
    task: float32 `[M]`, task score of the message's episode.
    costs: float32 `[M]`, each message's own costs, weights applied.
    groups: int `[M]`.
    gain: float32 `[M]`, nats; NaN where it was not measured.
    plain_gain: float32 `[M]`, what the author's plain note gains in the same place; NaN likewise.
    plain_costs: float32 `[M]`, costs of that note.
    nats: Nats that are worth one unit of task score.
    outcome: Weight of the episode's task score.
    virtual: Whether the baseline includes silence and the plain note.
    std_floor: Passed to `per_component`.
    eps: Passed to `per_component`.
  """
  measured = ~np.isnan(gain)
  paid = lambda gained: np.clip(np.nan_to_num(gained) / nats, -1.0, 1.0)
  rewards = np.where(measured, paid(gain) + outcome * task - costs, 0.0).astype(np.float64)
  total = lambda values: group_lib.total(np.asarray(values, np.float64), groups)
  sums, count = total(rewards), np.maximum(total(measured), 1.0)
  if virtual:
    # With the outcome in the rewards, both have that of the group on average.
    mean_outcome = outcome * total(np.where(measured, task, 0.0)) / count
    has_plain = ~np.isnan(plain_gain)
    plains = total(has_plain)
    plain = total(np.where(has_plain, paid(plain_gain) - plain_costs, 0.0)) / np.maximum(plains, 1)
    sums += mean_outcome + (plains > 0) * (plain + mean_outcome)
    count += 1 + (plains > 0)
  credited = rewards - sums / count
  others = per_component(task, costs, groups, std_floor=std_floor, eps=eps)
  return np.where(measured, credited, others).astype(np.float32)
