"""Builds random messages with all inputs of estimators, and loops over their groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from agent_gspo.algorithms.advantages.estimators import AdvantageInputs, advantage
from agent_gspo.algorithms.advantages.groups import group_ids

NORMALIZATIONS = ('group_std', 'group_mean', 'batch_std', 'per_component')
"""Estimators that need no more than rewards and groups."""


def some_inputs(seed: int = 0, grouping: str = 'question', price: float = 0.01) -> AdvantageInputs:
  """Returns uneven, unordered groups: questions 0 to 6, up to 5 episodes, 3 agents and 2 turns.

  Question 4 ties right, question 5 is all silent and wrong, question 6 has one message, and
  agent 2 never speaks about question 0.
  """
  rng = np.random.default_rng(seed)
  rows = np.array(
    [(q, e, a, t) for q in range(6) for e in range(5) for a in range(3) for t in (0, 1)]
  )
  rows = np.concatenate([rows[rng.random(len(rows)) < 0.7], [(6, 0, 1, 0)]])
  rows = rng.permutation(rows)
  question, sample, agent, turn = rows.T
  episode = question * 5 + sample
  scores = rng.integers(0, 2, 35).astype(np.float32)
  scores[20:25], scores[25:30] = 1, 0
  written = rng.integers(0, 12, len(rows)) * (rng.random(len(rows)) < 0.6)
  written[(question == 5) | ((question == 0) & (agent == 2))] = 0
  observation = np.where(turn == 0, question * 3 + agent, 100 + rng.integers(0, 30, len(rows)))
  gain = np.where(agent == 2, np.nan, rng.normal(0, 5, len(rows)) * (written > 0))
  return AdvantageInputs(
    task=scores[episode],
    costs=np.float32(price) * written.astype(np.float32),
    groups=group_ids(grouping, question, agent, turn, episode, agent // 2),
    question=question,
    episode=episode,
    agent=agent,
    turn=turn,
    lengths=written + 1,
    silent=written == 0,
    observation=observation,
    history=np.stack([question * 0 + turn, observation % 7, observation]),
    taken=written >= 0,
    probability=rng.uniform(0.1, 0.9, 7).astype(np.float32)[question],
    gain=gain.astype(np.float32),
    plain_gain=np.where(episode % 5 == 0, gain, np.nan).astype(np.float32),
    gold=np.zeros(len(episode), bool),
    plain_costs=np.full(len(rows), np.float32(price) * 8),
    silence_costs=np.full(len(rows), np.float32(price)),
    role=agent // 2,
    baselines=np.float32([0.3, -0.2]),
  )


def values_of(name: str, x: AdvantageInputs, **options) -> np.ndarray:
  """Returns advantages `[M]`; checks that all messages are kept."""
  found = advantage(x, name, **options)
  np.testing.assert_array_equal(found.kept, 1)
  return np.asarray(found.values)


def exact(x: AdvantageInputs) -> dict[str, np.ndarray]:
  """Returns the fields and `rewards` as NumPy arrays, floats in float64."""
  fields = {k: np.asarray(v) for k, v in {**x, 'rewards': x.rewards}.items() if v is not None}
  return {k: v.astype(np.float64) if v.dtype.kind == 'f' else v for k, v in fields.items()}


def members(*columns: np.ndarray) -> list[list[int]]:
  """Returns groups: the indices of messages that agree in all columns."""
  found: dict[Hashable, list[int]] = {}
  for m, key in enumerate(zip(*(np.asarray(c).tolist() for c in columns), strict=True)):
    found.setdefault(key, []).append(m)
  return list(found.values())


def by_group(
  values: np.ndarray, groups: list[list[int]], function: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
  """Applies `function` to the values `[M]` of each group; returns `[M]`."""
  out = np.zeros(len(values))
  for group in groups:
    out[group] = function(values[group])
  return out


def standardised(values: np.ndarray, floor: float = 1e-6) -> np.ndarray:
  """Returns centered values, divided by the population deviation."""
  values = values - values.mean()
  return values / max(np.sqrt(np.mean(values**2)), floor)


def normalized(name: str, task, costs, groups, **options):
  """Returns advantages under one of `NORMALIZATIONS`, float32 `[M]`."""
  plain = AdvantageInputs(
    task=task,
    costs=costs,
    groups=groups,
    **dict.fromkeys(('question', 'episode', 'agent', 'turn'), np.zeros(len(task), int)),
  )
  return advantage(plain, name, **options).values
