"""Learns from remembered episodes where the task scores of new groups tie.

A group whose scores tie has no task advantage. It borrows episodes with other scores that were
remembered of the same question (R3, arXiv 2601.19620), at most half a group. If there are none, a
remembered group whose scores differ is added to the update (the Selective Sample Buffer of Skywork
R1V2, arXiv 2504.16656, here newest first). Tied groups stay, since their costs still differ.
Scores that compare the episodes of a group (`reward.score`) are not mixed with those of another
group: remembered groups are then only added whole.

Remembered messages keep the log-probs of the weights that wrote them, so that ratios, TIS and the
off-policy mask correct for their age, as for rollouts ahead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from agent_gspo.algorithms import selection as selection_lib
from agent_gspo.config import Config
from agent_gspo.rewards.communication import RewardTerms
from agent_gspo.teams import batches
from agent_gspo.teams.options import RolloutOptions
from agent_gspo.types import RolloutBatch

Memory = tuple[RolloutBatch, ...]
"""Groups of one question each, whose task scores differ, newest first."""


def extended(config: Config, memory: Memory, rollout: RolloutBatch, step: int) -> RolloutBatch:
  """Appends to a rollout the remembered episodes that its tied groups get.

  Args:
    config: Run configuration.
    memory: Groups of earlier steps.
    rollout: New episodes about `B` questions, with the scores that training sees.
    step: Finished training steps.
  """
  tied = np.flatnonzero(~_differ(rollout)).tolist()  # questions, below B
  options, mixed = config.rollout, config.reward.score == 'task'
  known = dict(enumerate(_recent(options, memory, step)))
  added: list[RolloutBatch] = []
  group = [*range(len(rollout.questions))]  # question of each question in the joined table
  alone = []  # tied questions of which nothing is remembered
  for question in tied:
    score = rollout.task_scores[rollout.episode_question == question][0]
    same = [i for i, x in known.items() if x.questions[0] == rollout.questions[question]]
    if not (mixed and same):
      alone.append(question)
      continue
    found = known.pop(same[0])
    others = np.flatnonzero(found.task_scores != score)[: max(options.group_size // 2, 1)]
    added.append(batches.select(found, [0], others.tolist()))
    group.append(question)
  for _, found in zip(alone, known.values(), strict=False):
    group.append(len(group))
    added.append(found)
  if not added:
    return rollout
  joined = batches.join([rollout, *added])
  place = np.asarray(group)
  return dataclasses.replace(
    joined,
    question=place[joined.question],
    episode_question=place[joined.episode_question],
  )


def remembered(options: RolloutOptions, memory: Memory, rollout: RolloutBatch, step: int) -> Memory:
  """Returns the memory after a step, at most `rollout.replay` groups; see `extended`."""
  if not options.replay:
    return ()
  differ = np.flatnonzero(_differ(rollout))[: options.replay]
  new = [batches.select(rollout, [q]) for q in differ.tolist()]
  return (*new, *_recent(options, memory, step))[: options.replay]


def of_rollout(rewards: RewardTerms, rollout: RolloutBatch) -> RewardTerms:
  """Returns the terms of the `M` messages of a rollout, which come first in `extended`."""
  count = len(rollout.messages)
  return RewardTerms(**{name: values[:count] for name, values in vars(rewards).items()})


def metrics(rollout: RolloutBatch, learned: RolloutBatch, step: int) -> dict[str, float]:
  """Returns the share of tied groups, and number, share and mean age of borrowed episodes.

  `learned` is the result of `extended` for the new episodes, `rollout`.
  """
  borrowed = learned.num_episodes - rollout.num_episodes
  found = {
    'replay/tied_groups': float(1 - _differ(rollout).mean()),
    'replay/episodes': float(borrowed),
    'replay/share': borrowed / learned.num_episodes,
  }
  versions = learned.version[learned.learns][rollout.learns.sum() :]
  if versions.size:
    found['replay/age'] = float(step - versions.mean())
  return found


def _differ(rollout: RolloutBatch) -> np.ndarray:
  """Returns whether the task scores of each question differ, bool `[B]`."""
  return selection_lib.informative(
    rollout.task_scores, rollout.episode_question, len(rollout.questions)
  )


def _recent(options: RolloutOptions, memory: Memory, step: int) -> Iterator[RolloutBatch]:
  """Yields the groups whose weights are at most `rollout.replay_age` steps old."""
  for group in memory:
    if step - group.version[group.learns].min(initial=step) <= options.replay_age:
      yield group
