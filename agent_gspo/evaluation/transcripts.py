"""Turns episodes into JSON records for human readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from agent_gspo.types import RolloutBatch


def records(
  batch: RolloutBatch,
  episodes: Iterable[int],
  *,
  step: int,
  split: str,
  label: str = 'train',
  rewards: np.ndarray | None = None,
  advantages: np.ndarray | None = None,
  gains: np.ndarray | None = None,
) -> list[dict[str, Any]]:
  """Returns the records of some episodes for `transcripts.jsonl`.

  Args:
    batch: All episodes.
    episodes: Indices of the episodes to record.
    step: Finished training steps of the policy.
    split: Split of the questions.
    label: Label of the evaluation, or 'train'.
    rewards: Reward of each message, float `[M]`, or None.
    advantages: Advantage of each message, float `[M]`, or None.
    gains: Nats that the answering agent gained by each message, float `[M]`, NaN if unknown.
  """
  kept: dict[int, list[int]] = {e: [] for e in episodes}
  for m, message in enumerate(batch.messages):
    if message.episode in kept:
      kept[message.episode].append(m)
  return [
    _record(batch, episode, members, step, split, label, rewards, advantages, gains)
    for episode, members in kept.items()
  ]


def _record(
  batch, index, members, step, split, label, rewards, advantages, gains
) -> dict[str, Any]:
  episode = batch.episodes[index]
  question = batch.questions[episode.question]
  messages = []
  for m in members:
    message = batch.messages[m]
    holds = message.agent < len(question.notes)
    addressees = None
    if message.addressees is not None:
      addressees = [batch.agent_names[agent] for agent in sorted(message.addressees)]
    messages.append(
      {
        'agent': batch.agent_names[message.agent],
        'round': message.round,
        'layer': message.layer,
        'text': message.text,
        'written': message.written,
        'read': message.read,
        'readers': message.readers,
        'read_from': [[batch.agent_names[author], round_] for author, round_ in message.read_from],
        'addressees': addressees,
        'silent': message.silent,
        'ended': message.ended,
        'note': question.note(message.agent),
        'relevant': question.relevant[message.agent] if holds and question.relevant else None,
        **({} if rewards is None else {'reward': float(rewards[m])}),
        **({} if advantages is None else {'advantage': float(advantages[m])}),
        **({} if gains is None or np.isnan(gains[m]) else {'worth': float(gains[m])}),
      }
    )
  return {
    'step': step,
    'split': split,
    'label': label,
    'question_id': question.id,
    'question': question.text,
    'gold': question.answer,
    'sample': episode.sample,
    'answer': episode.answer,
    'task_score': episode.task_score,
    'messages': messages,
  }
