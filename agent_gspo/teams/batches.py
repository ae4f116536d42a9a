"""Joins and splits rollouts, question by question."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from agent_gspo.types import Episode, Message, Question, RolloutBatch, Terms


def join(batches: Sequence[RolloutBatch]) -> RolloutBatch:
  """Concatenates rollouts of one team, questions in the order given."""
  questions: list[Question] = []
  episodes: list[Episode] = []
  messages: list[Message] = []
  for batch in batches:
    messages += [dataclasses.replace(m, episode=m.episode + len(episodes)) for m in batch.messages]
    episodes += [
      dataclasses.replace(e, question=e.question + len(questions)) for e in batch.episodes
    ]
    questions += batch.questions
  return RolloutBatch(
    questions=tuple(questions),
    episodes=tuple(episodes),
    messages=tuple(messages),
    agent_names=batches[0].agent_names,
  )


def merge(batches: Sequence[RolloutBatch]) -> RolloutBatch:
  """Joins rollouts, with messages in the order of a single rollout of all questions."""
  if len(batches) == 1:
    return batches[0]
  joined = join(batches)
  return dataclasses.replace(joined, messages=in_order(joined.messages))


def in_order(messages: Iterable[Message]) -> tuple[Message, ...]:
  """Sorts messages by round, layer and episode; agents of a layer are in order already."""
  return tuple(sorted(messages, key=lambda m: (m.round, m.layer, m.episode)))


def select(batch: RolloutBatch, questions: Sequence[int]) -> RolloutBatch:
  """Returns the rollout of some questions, in the order given."""
  place = {int(q): i for i, q in enumerate(questions)}
  kept = [e for e, episode in enumerate(batch.episodes) if episode.question in place]
  kept.sort(key=lambda e: place[batch.episodes[e].question])
  number = {e: i for i, e in enumerate(kept)}
  return RolloutBatch(
    questions=tuple(batch.questions[q] for q in place),
    episodes=tuple(
      dataclasses.replace(batch.episodes[e], question=place[batch.episodes[e].question])
      for e in kept
    ),
    messages=tuple(
      dataclasses.replace(m, episode=number[m.episode])
      for m in batch.messages
      if m.episode in number
    ),
    agent_names=batch.agent_names,
  )


def task_scores(batch: RolloutBatch) -> tuple[np.ndarray, np.ndarray]:
  """Returns the episodes' task scores, float `[E]`, and question indices, int `[E]`."""
  return (
    np.asarray([e.task_score for e in batch.episodes], float),
    np.asarray([e.question for e in batch.episodes]),
  )


def written_and_read(batch: RolloutBatch) -> tuple[int, int]:
  """Counts the tokens that all agents wrote, and those that they read."""
  return sum(m.written for m in batch.messages), sum(m.read for m in batch.messages)


def terms(batch: RolloutBatch) -> list[Terms | None]:
  """Returns the price or budget terms of each of `E` episodes."""
  return [batch.questions[episode.question].terms for episode in batch.episodes]
