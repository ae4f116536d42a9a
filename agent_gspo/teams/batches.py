"""Builds, joins and splits rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.types import Message, Question, RolloutBatch

_INTEGERS = (
  'episode', 'agent', 'round', 'layer', 'written', 'read', 'readers', 'tool_calls', 'tool_tokens'
)  # fmt: skip
_SEQUENCES = ('text', 'read_from', 'addressees')
_EPISODES = (
  'questions', 'agent_names', 'episode_question', 'sample', 'answers', 'task_scores', 'sides',
  'drawn',
)  # fmt: skip


def from_messages(
  messages: Sequence[Message],
  *,
  questions: Sequence[Question],
  agent_names: Sequence[str],
  episode_question: Sequence[int] | np.ndarray,
  sample: Sequence[int] | np.ndarray,
  answers: Sequence[str],
  task_scores: Sequence[float] | np.ndarray,
  sides: Sequence[str] = (),
  drawn: Sequence[int] | np.ndarray = (),
) -> RolloutBatch:
  """Builds the table of `M` messages.

  Args:
    messages: Messages in the order in which they were written.
    questions, agent_names, episode_question, sample, answers, task_scores, sides, drawn: Fields of
      `RolloutBatch` that no message has.
  """
  rows = []
  for message in messages:
    question = int(episode_question[message.episode])
    rows.append(
      {
        **{f: getattr(message, f) for f in (*_INTEGERS, *_SEQUENCES, 'silent', 'ended', 'taken')},
        'question': question,
        'relevant': questions[question].is_relevant(message.agent),
      }
    )
  return RolloutBatch(
    questions=tuple(questions),
    agent_names=tuple(agent_names),
    episode_question=np.asarray(episode_question, int),
    sample=np.asarray(sample, int),
    answers=tuple(answers),
    task_scores=np.asarray(task_scores, float),
    messages=tuple(messages),
    sides=tuple(sides),
    drawn=np.asarray(drawn, int),
    **columns(rows),
  )


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the columns `[M]` of `RolloutBatch` by name, from a row per message.

  Args:
    rows: Values by column, with agents as indices; but `ended` in place of `truncated`, and
      `relevant` as a bool, or None without a note.
  """
  column = lambda field, dtype: np.asarray([row[field] for row in rows], dtype)
  relevant = [-1 if row['relevant'] is None else row['relevant'] for row in rows]
  return {
    **{field: column(field, np.int64) for field in (*_INTEGERS, 'question')},
    'silent': column('silent', bool),
    'truncated': ~column('ended', bool),
    'taken': column('taken', bool),
    'relevant': np.asarray(relevant, np.int64),
    **{field: tuple(row[field] for row in rows) for field in _SEQUENCES},
  }


def join(batches: Sequence[RolloutBatch], *, as_one: bool = False) -> RolloutBatch:
  """Concatenates rollouts of one team, questions in the order given.

  Args:
    batches: Rollouts.
    as_one: Order messages as in a single rollout of all questions; by default rollout by rollout.
  """
  if len(batches) == 1:
    return batches[0]
  questions: list[Question] = []
  episode_question: list[np.ndarray] = []
  messages: list[Message] = []
  episodes = 0
  for batch in batches:
    messages += [dataclasses.replace(m, episode=m.episode + episodes) for m in batch.messages]
    episode_question.append(batch.episode_question + len(questions))
    questions += batch.questions
    episodes += batch.num_episodes
  return from_messages(
    in_order(messages) if as_one else messages,
    questions=questions,
    agent_names=batches[0].agent_names,
    episode_question=np.concatenate(episode_question),
    sample=np.concatenate([batch.sample for batch in batches]),
    answers=[answer for batch in batches for answer in batch.answers],
    task_scores=np.concatenate([batch.task_scores for batch in batches]),
    sides=batches[0].sides,
    drawn=np.concatenate([batch.drawn for batch in batches]),
  )


def in_order(messages: Iterable[Message]) -> tuple[Message, ...]:
  """Sorts messages by round, layer and episode; agents of a layer are in order already."""
  return tuple(sorted(messages, key=lambda m: (m.round, m.layer, m.episode)))


def select(
  batch: RolloutBatch, questions: Sequence[int], episodes: Collection[int] | None = None
) -> RolloutBatch:
  """Returns the rollout of some questions, in the order given; if given, only these episodes."""
  place = {int(q): i for i, q in enumerate(questions)}
  asked = batch.episode_question.tolist()
  among = range(len(asked)) if episodes is None else sorted(episodes)
  kept = sorted((e for e in among if asked[e] in place), key=lambda e: place[asked[e]])
  number = {e: i for i, e in enumerate(kept)}
  messages = [m for m in batch.messages if m.episode in number]
  return _changed(
    batch,
    [dataclasses.replace(m, episode=number[m.episode]) for m in messages],
    questions=[batch.questions[q] for q in place],
    episode_question=[place[asked[e]] for e in kept],
    sample=batch.sample[kept],
    answers=[batch.answers[e] for e in kept],
    task_scores=batch.task_scores[kept],
    drawn=batch.drawn[list(place)] if len(batch.drawn) else (),
  )


def taken(batch: RolloutBatch) -> RolloutBatch:
  """Returns the conversations, without the candidates that were not taken."""
  if batch.taken.all():
    return batch
  return _changed(batch, [message for message in batch.messages if message.taken])


def _changed(batch: RolloutBatch, messages: Sequence[Message], **fields: Any) -> RolloutBatch:
  """Returns the table of other messages, with those fields that no message has."""
  return from_messages(messages, **{name: getattr(batch, name) for name in _EPISODES} | fields)


def written_and_read(batch: RolloutBatch) -> tuple[int, int]:
  """Counts the tokens that all agents wrote, and those that they read."""
  return int(batch.written.sum()), int(batch.read.sum())
