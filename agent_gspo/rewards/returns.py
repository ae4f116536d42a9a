"""Computes what each message of an environment's episode earned its author."""

from __future__ import annotations

import collections

import numpy as np

from agent_gspo.types import RolloutBatch


def paid_episodes(rollout: RolloutBatch) -> set[int]:
  """Returns the episodes in which some message earned a reward of its own."""
  return {message.episode for message in rollout.messages if message.reward is not None}


def returns_to_go(rollout: RolloutBatch, discount: float) -> np.ndarray:
  """Computes `R_m = r_m + discount * R_m'`, with `m'` the author's next message, float64 `[M]`.

  In an episode without rewards, as without an environment, `R_m` is the episode's task score.

  Args:
    rollout: Episodes, whose `M` messages are in the order in which they were written.
    discount: Factor for each further turn of the author.
  """
  paid = paid_episodes(rollout)
  later: dict[tuple[int, int], float] = collections.defaultdict(float)
  returns = rollout.task_scores[rollout.episode].astype(float)
  for m, message in reversed(list(enumerate(rollout.messages))):
    if message.episode in paid:
      author = message.episode, message.agent
      later[author] = returns[m] = (message.reward or 0.0) + discount * later[author]
  return returns
