"""Computes the scores that training sees in place of the task's (`reward.score`).

Every function scores the `G` episodes of one question by comparison, whatever their order. Only
the tournament reads labels. Evaluations always read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from agent_gspo.rewards import communication
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.types import RolloutBatch


def vote(answers: Sequence[str | None], weights: np.ndarray | None = None) -> np.ndarray:
  """Computes TTRL's reward (arXiv 2504.16084), float64 `[G]`: 1 for the majority's answer, else 0.

  The majority is the answer with most votes. If two have most, nobody is right, so that a gate on
  the group's accuracy does not charge an undecided group.

  Args:
    answers: Answers in canonical form. None, an answer that did not parse, is no vote and scores 0.
    weights: Weight of each vote, float `[G]`, as in SCOPE (arXiv 2512.15146); None for 1.
  """
  same = _same(answers)
  votes = same @ (np.ones(len(answers)) if weights is None else weights)
  rival = np.where(same, 0.0, votes).max(axis=1)
  return (votes > rival).astype(float)


def consistency(answers: Sequence[str | None]) -> np.ndarray:
  """Computes EMPO's reward (arXiv 2504.05812): the share of the group with the same answer.

  Float64 `[G]`, 0 for None. The mean over the group is high where answers agree, as COPO's global
  reward (arXiv 2508.04138), which also reads labels.
  """
  return _same(answers).mean(axis=1)


def collective_vote(answers: Sequence[str | None], authors: np.ndarray) -> np.ndarray:
  """Computes RLCCF's reward (arXiv 2508.12338): `vote` over the answers of all authors, `[M]`.

  An author's votes weigh its self-consistency, the share of its most common answer.

  Args:
    answers: Answers about one question in canonical form, `[M]`.
    authors: Author of each answer, int `[M]`.
  """
  weights = np.zeros(len(answers))
  for author in np.unique(authors):
    own = np.flatnonzero(authors == author)
    weights[own] = consistency([answers[m] for m in own.tolist()]).max()
  return vote(answers, weights)


def tournament(scores: np.ndarray, costs: np.ndarray) -> np.ndarray:
  """Computes the share of its round robin that each episode wins, float64 `[G]`.

  The higher task score wins, of equal ones the lower cost, so no price is needed; a tie is half a
  win. ArenaRL (arXiv 2601.06487) compares by a judge model instead. The share ranks *episodes*:
  all messages of one, silent ones included, have the same score under any `reward.credit`.

  Args:
    scores: Task scores, float `[G]`.
    costs: Costs where they count, float `[G]`.
  """
  equal = scores[:, None] == scores
  wins = (scores[:, None] > scores) | equal & (costs[:, None] < costs)  # [G, G]
  return (1 + (wins.sum(axis=1) - wins.sum(axis=0)) / (len(scores) - 1)) / 2


def scored(
  options: RewardOptions, rollout: RolloutBatch, canonical: Callable[[str], str | None]
) -> RolloutBatch:
  """Returns the rollout with the scores of `reward.score` as its task scores.

  Args:
    options: Reward options. In a tournament costs count only where their gate is open; elsewhere
      groups of wrong answers would teach silence.
    rollout: Episodes with the task's scores.
    canonical: Normalizes answers, see `Task.canonical`.
  """
  if options.score == 'task':
    return rollout
  if options.score == 'collective_vote':
    return _collectively_scored(rollout, canonical)
  if options.score == 'tournament':
    costs = communication.gate(options, rollout) * communication.episode_costs(options, rollout)
    of_group = lambda group: tournament(rollout.task_scores[group], costs[group])
  else:
    answers = [canonical(answer) for answer in rollout.answers]
    weighted = options.score == 'weighted_vote'
    weights = _confidence(rollout) if weighted else np.ones(rollout.num_episodes)
    own = lambda group: [answers[e] for e in group]
    of_group = lambda group: vote(own(group), weights[group])
    if options.score == 'consistency':
      of_group = lambda group: consistency(own(group))
  scores = np.zeros(rollout.num_episodes)
  for question in range(len(rollout.questions)):
    group = np.flatnonzero(rollout.episode_question == question)
    scores[group] = of_group(group)
  return dataclasses.replace(rollout, task_scores=scores)


def _collectively_scored(
  rollout: RolloutBatch, canonical: Callable[[str], str | None]
) -> RolloutBatch:
  """Returns the rollout with `collective_vote` of each message as its author's reward.

  Each agent writes one message, its answer. The team's answer scores as an equal one of an agent.
  """
  said = [canonical(message.text) for message in rollout.messages]
  rewards, scores = np.zeros(len(said)), np.zeros(rollout.num_episodes)
  for question in range(len(rollout.questions)):
    own = np.flatnonzero(rollout.question == question)
    rewards[own] = collective_vote([said[m] for m in own], rollout.agent[own])
    right = {said[m] for m in own if rewards[m]}
    for episode in np.flatnonzero(rollout.episode_question == question):
      scores[episode] = canonical(rollout.answers[episode]) in right
  messages = tuple(
    dataclasses.replace(message, reward=float(reward))
    for message, reward in zip(rollout.messages, rewards, strict=True)
  )
  return dataclasses.replace(rollout, messages=messages, task_scores=scores)


def label_agreement(
  options: RewardOptions, labels: np.ndarray, scores: np.ndarray
) -> dict[str, float]:
  """Returns the share of `E` episodes on which label and score agree; {} where scores are labels.

  Args:
    options: Reward options.
    labels: Task scores, float `[E]`.
    scores: Scores that training sees, float `[E]`; from 0.5 an answer counts as right.
  """
  if options.score in ('task', 'tournament'):
    return {}
  return {'reward/label_agreement': float(((labels >= 0.5) == (scores >= 0.5)).mean())}


def _same(answers: Sequence[str | None]) -> np.ndarray:
  """Returns whether two answers are given and equal, bool `[G, G]`."""
  number = {answer: i for i, answer in enumerate(answers)}
  ids = np.asarray([-1 if answer is None else number[answer] for answer in answers])
  return (ids[:, None] == ids) & (ids >= 0)


def _confidence(rollout: RolloutBatch) -> np.ndarray:
  """Returns `exp(mean log-prob)` of each episode's answer, float64 `[E]`."""
  found, answering = np.ones(rollout.num_episodes), len(rollout.agent_names) - 1
  for message in rollout.messages:
    if message.agent != answering:
      continue
    logprobs = message.logprobs[message.sampled]
    found[message.episode] = np.exp(logprobs.sum() / max(len(logprobs), 1))
  return found
