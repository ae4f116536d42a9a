"""Computes advantages from the answering agent's gain by each message.

`M` messages. Gains are in nats of the gold answer, see `training.message_worth`.
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
  silence_costs: chex.Array,
  gold: chex.Array,
  *,
  nats: float = 10.0,
  outcome: float = 0.0,
  virtual: bool = True,
  imitation: float = 0.0,
  std_floor: float = 0.3,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes a message's gain for its reader minus its cost and the group's baseline.

  `r = clip(gain / nats, -1, 1) + outcome * task - costs`, and `A = (r - b) / max(s, std_floor)`
  with the group's mean `b` and deviation `s`. With `virtual`, silence (gain 0) and the plain note
  count as further samples where their `r` exceeds the group's mean: a group that is always or never
  silent still learns of the better action. A worse one is left out: it would reward whatever the
  group does.

  With `imitation`, the gold answer replaces the answering agent's as training target, with that
  advantage: this ascends the value whose differences are the gains. Otherwise, and without a gold
  answer, its messages get the advantage of `per_component`.

  Nats add up: of two messages useful only together, the first alone already has a gain. In
  probabilities it would have almost none.

  Args:
    task: Task score of the message's episode, float32 `[M]`.
    costs: Each message's own weighted costs, float32 `[M]`.
    groups: int `[M]`.
    gain: Gain in nats, float32 `[M]`; NaN if not measured.
    plain_gain: Gain of the author's plain note in its place, float32 `[M]`; NaN likewise.
    plain_costs: Weighted costs of that note, float32 `[M]`.
    silence_costs: Weighted costs of silence in the message's place, float32 `[M]`.
    gold: Whether the gold answer is learned in the message's place, bool `[M]`.
    nats: Nats that are worth one unit of task score.
    outcome: Weight of the episode's task score.
    virtual: Includes silence and the plain note in the baseline where they are better.
    imitation: Advantage of the gold answer.
    std_floor: Lower bound of the divisor, in units of task score. Near 0, a saved token would weigh
      as much as a lost answer in groups that differ in costs alone, at any price.
    eps: Smallest divisor, also of `per_component`.
  """
  measured = ~np.isnan(gain)
  paid = lambda gained: np.clip(np.nan_to_num(gained) / nats, -1.0, 1.0)
  rewards = np.where(measured, paid(gain) + outcome * task - costs, 0.0).astype(np.float64)
  total = lambda values: group_lib.total(np.asarray(values, np.float64), groups)
  sums, count = total(rewards), np.maximum(total(measured), 1.0)
  squares = total(rewards**2)
  if virtual:
    # Both virtual actions get the group's mean outcome.
    mean, mean_outcome = sums / count, outcome * total(np.where(measured, task, 0.0)) / count
    has_plain = ~np.isnan(plain_gain)
    plains = total(has_plain)
    plain = total(np.where(has_plain, paid(plain_gain) - plain_costs, 0.0)) / np.maximum(plains, 1)
    silence = mean_outcome - total(np.where(measured, silence_costs, 0.0)) / count
    for action, exists in ((silence, True), (plain + mean_outcome, plains > 0)):
      better = exists & (action > mean)
      sums, count = sums + better * action, count + better
      squares = squares + better * action**2
  mean = sums / count
  deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
  credited = (rewards - mean) / np.maximum(deviation, max(std_floor, eps))
  others = per_component(task, costs, groups, eps=eps)
  if imitation:
    others = np.where(gold, imitation, others)
  return np.where(measured, credited, others).astype(np.float32)


def potential(
  task: chex.Array,
  costs: chex.Array,
  groups: chex.Array,
  gain: chex.Array,
  gold: chex.Array,
  *,
  nats: float = 10.0,
  outcome: float = 0.0,
  imitation: float = 0.0,
  std_floor: float = 0.3,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes `worth` without virtual actions, for gains `v(N) - v(before i)`.

  Silence has the gain of the later messages, which is measured only where a message is silent.

  Args:
    task, costs, groups, gain, gold, nats, outcome, imitation, std_floor, eps: See `worth`.
  """
  columns = task, costs, groups, gain, *[np.full(len(task), np.nan)] * 3, gold
  options = {'nats': nats, 'outcome': outcome, 'imitation': imitation}
  return worth(*columns, virtual=False, std_floor=std_floor, eps=eps, **options)


def replay(
  task: chex.Array,
  costs: chex.Array,
  groups: chex.Array,
  gain: chex.Array,
  plain_gain: chex.Array,
  plain_costs: chex.Array,
  silence_costs: chex.Array,
  *,
  samples: float = 4.0,
  outcome: float = 0.0,
  virtual: bool = True,
  std_floor: float = 0.3,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes `worth` with gains in task score, from answers sampled with and without the message.

  Args:
    task, costs, groups, gain, plain_gain, plain_costs, silence_costs: See `worth`; gains are in
      task score.
    samples: Answers sampled for each prompt.
    outcome, virtual, std_floor, eps: See `worth`.
  """
  del samples  # read where answers are sampled, `training.answer_values`
  notes, nowhere = (plain_gain, plain_costs), np.zeros(len(task), bool)
  columns = task, costs, groups, gain, *notes, silence_costs, nowhere
  return worth(*columns, nats=1.0, outcome=outcome, virtual=virtual, std_floor=std_floor, eps=eps)


def hill(
  task: chex.Array,
  costs: chex.Array,
  groups: chex.Array,
  gain: chex.Array,
  *,
  samples: float = 8.0,
  temperature: float = 0.3,
  std_floor: float = 0.3,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes `per_component` with hint rewards (HiLL, arXiv 2604.00698) in place of task scores.

  Other messages, such as answers, keep the task score and are compared with one another.

  Args:
    task: Task score of the message's episode, float32 `[M]`.
    costs: Each message's own weighted costs, float32 `[M]`.
    groups: int `[M]`.
    gain: Reward of a hint, see `training.hints`, float32 `[M]`; NaN if not measured.
    samples: Answers sampled for each set of messages.
    temperature: A reliance of minus this many nats per token divides a hint's signal by e.
    std_floor: Lower bound of the divisor for hints. Without it rewards of 0.001 would weigh as much
      as rewards of 1.
    eps: See `per_component`.
  """
  del samples, temperature  # read where answers are sampled, `training.hints`
  measured = ~np.isnan(gain)
  kinds = group_lib.joint_ids(groups, measured)
  hints = per_component(np.nan_to_num(gain), costs, kinds, std_floor=std_floor, eps=eps)
  return np.where(measured, hints, per_component(task, costs, kinds, eps=eps))


def spo_segment(
  task: chex.Array,
  costs: chex.Array,
  groups: chex.Array,
  gain: chex.Array,
  *,
  samples: float = 0.0,
) -> np.ndarray:
  """Computes segment advantages (SPO, arXiv 2505.23564) with messages as segments.

  `A_k = V(s_{k+1}) - V(s_k)`, where `s_k` has the first `k` messages that the answering agent
  reads, in reading order, and the value after its answer is the task score. Costs are subtracted,
  centered within `groups`. Messages without a gain have the advantage of `per_component`.

  Where the paper samples whole continuations from `s_k`, here the answer alone follows: `V` is the
  probability of the gold answer, or with `samples` its Monte Carlo estimate, the mean score of
  answers sampled anew. The paper cuts within a message, at tokens of low probability.

  Args:
    task: Task score of the message's episode, float32 `[M]`.
    costs: Each message's own weighted costs, float32 `[M]`.
    groups: int `[M]`.
    gain: `A_k`, float32 `[M]`; NaN if not measured.
    samples: Answers sampled for each value; 0 for the gold answer's probability.
  """
  del samples  # read where prompts are valued, `training.message_worth`
  others = per_component(task, costs, groups)
  return np.where(np.isnan(gain), others, gain - group_lib.centred(costs, groups))
