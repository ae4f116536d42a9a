"""Turns episodes into JSON records for human readers."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.types import Message, RolloutBatch


def records(
  batch: RolloutBatch,
  episodes: Iterable[int],
  tokenizers: Sequence[Tokenizer],
  *,
  step: int,
  split: str,
  label: str = 'train',
  columns: Mapping[str, np.ndarray] = types.MappingProxyType({}),
  learners: Collection[int] = (),
) -> list[dict[str, Any]]:
  """Returns the records of some episodes for `transcripts.jsonl`.

  The `prompt` of a message is the part that its author had not read or written before: prompts are
  append-only, so an author's prompts and `tokens`, in order, are all that the model read.

  Args:
    batch: All episodes.
    episodes: Indices of the episodes to record.
    tokenizers: Tokenizer of each agent, see `Team.tokenizers_of_agents`.
    step, split, label: Head of each record; `step` counts finished training steps.
    columns: Further fields of each message by name, `[M]`; NaN if unknown, then left out.
    learners: In training the agents whose model learns; their messages with `learns` False are
      those of opponents.
  """
  head = {'step': step, 'split': split, 'label': label}
  said: dict[int, list[dict[str, Any]]] = {e: [] for e in episodes}
  known: dict[tuple[int, int], int] = {}  # (episode, agent) -> tokens read and written so far
  for m, message in enumerate(batch.messages):
    if message.episode in said:
      author = message.episode, message.agent
      new = message.prompt_ids[known.get(author, 0) :]
      if message.taken:
        known[author] = len(message.path)
      side = ', opponent' * (message.agent in learners and not message.learns)
      measured = {key: x[m].item() for key, x in columns.items() if not np.isnan(x[m])}
      said[message.episode].append(
        {
          **_message(batch, message, side),
          'prompt': tokenizers[message.agent].decode(new.tolist()),
          **_tokens(message, tokenizers[message.agent]),
          **measured,
        }
      )
  return [{**head, **_episode(batch, e), 'messages': messages} for e, messages in said.items()]


def _message(batch: RolloutBatch, message: Message, side: str) -> dict[str, Any]:
  question = batch.questions[batch.episode_question[message.episode]]
  names, to = batch.agent_names, message.addressees
  environment: dict[str, Any] = {'observed': list(message.told)} if message.told else {}
  if message.reward is not None:
    environment['earned'] = message.reward
  if batch.sides:
    environment['side'] = batch.sides[message.agent] + side
  if not message.taken:
    environment['taken'] = False  # another candidate for the turn
  return {
    'agent': names[message.agent],
    'round': message.round,
    'layer': message.layer,
    'text': message.text,
    'written': message.written,
    'read': message.read,
    'readers': message.readers,
    'read_from': [[names[author], round_] for author, round_ in message.read_from],
    'addressees': None if to is None else [names[agent] for agent in sorted(to)],
    'silent': message.silent,
    'ended': message.ended,
    'note': question.note(message.agent),
    'relevant': question.is_relevant(message.agent),
    **environment,
  }


def _tokens(message: Message, tokenizer: Tokenizer) -> dict[str, Any]:
  """Returns each token with its log-prob, and their sum; None for tokens that a tool wrote.

  Empty for messages of an endpoint, whose tokens are unknown, and of muted agents.
  """
  if message.usage is not None:
    return {}
  texts = [tokenizer.decode([i]) for i in message.token_ids]
  logprobs = np.where(message.sampled, message.logprobs.astype(float), np.nan)
  rounded = [None if np.isnan(x) else round(x, 3) for x in logprobs.tolist()]
  return {
    'logprob': round(float(np.nansum(logprobs)), 3),
    'tokens': [list(pair) for pair in zip(texts, rounded, strict=True)],
  }


def _episode(batch: RolloutBatch, index: int) -> dict[str, Any]:
  question = batch.questions[batch.episode_question[index]]
  return {
    'question_id': question.id,
    'question': question.text,
    'gold': question.answer,
    'sample': int(batch.sample[index]),
    'answer': batch.answers[index],
    'task_score': float(batch.task_scores[index]),
  }
