"""Counts written and read tokens (`Ctok`, `Ptok`) and silence of a team."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.types import RolloutBatch, is_for

_OF_MESSAGES = ('episode', 'agent', 'round', 'layer', 'written', 'read', 'readers')


@dataclasses.dataclass(frozen=True)
class MessageCounts:
  """Token counts and flags of `M` messages; all arrays are `[M]`.

  Attributes:
    episode, question, agent, round, layer: Indices of the message's turn, int.
    written: Tokens before the stop token (`Ctok`), int.
    read: Prompt tokens, template included (`Ptok`), int.
    readers: Later turns whose prompt contains the message, its author's included, int.
    silent: Empty messages, bool.
    truncated: Messages cut off by the cap, bool.
    relevant: 1 for authors with a relevant note, 0 with an irrelevant one, -1 with none; int.
    num_episodes: Number of episodes `E`.
    agent_names: Name of each agent.
    read_from: `(author, round)` of the messages readable in each turn; used by `edges` only.
    addressees: Agents addressed by each message, None for all readers; used by `edges` only.
  """

  episode: np.ndarray
  question: np.ndarray
  agent: np.ndarray
  round: np.ndarray
  layer: np.ndarray
  written: np.ndarray
  read: np.ndarray
  readers: np.ndarray
  silent: np.ndarray
  truncated: np.ndarray
  relevant: np.ndarray
  num_episodes: int
  agent_names: tuple[str, ...]
  read_from: tuple[tuple[tuple[int, int], ...], ...] = ()
  addressees: tuple[frozenset[int] | None, ...] = ()

  @property
  def turn(self) -> np.ndarray:
    """Returns the index of each message's layer in the conversation, int `[M]`."""
    return self.round * (self.layer.max(initial=0) + 1) + self.layer

  def per_question(self, counts: np.ndarray, where: np.ndarray | None = None) -> float:
    """Returns the mean over episodes of the sum of `counts` `[M]` over the messages `where`."""
    chosen = counts if where is None else counts[where]
    return float(chosen.sum()) / max(self.num_episodes, 1)

  def silence_rate(self, where: np.ndarray) -> float | None:
    """Returns the share of silent messages among those `where`; None if there are none."""
    return float(self.silent[where].mean()) if where.any() else None

  def written_per_episode(self) -> np.ndarray:
    """Returns the tokens written in each episode, `[E]`."""
    return np.bincount(self.episode, weights=self.written, minlength=self.num_episodes)

  def critical_path(self) -> np.ndarray:
    """Returns a message's tokens if it is the longest of its layer, else 0; int `[M]`.

    Agents of a layer write in parallel, so a layer takes as long as its longest message.
    """
    if not len(self.written):
      return self.written
    order = np.lexsort((-self.written, self.layer, self.round, self.episode))
    key = np.stack([self.episode, self.round, self.layer], axis=1)[order]
    longest = order[np.r_[True, (key[1:] != key[:-1]).any(axis=1)]]
    out = np.zeros_like(self.written)
    out[longest] = self.written[longest]
    return out

  def agents(self) -> list[dict[str, float | str | None]]:
    """Returns per-agent tokens and calls per question and silence rates, for `eval.jsonl`."""
    rows: list[dict[str, float | str | None]] = []
    for index, name in enumerate(self.agent_names):
      own = self.agent == index
      rows.append(
        {
          'name': name,
          'written_per_question': self.per_question(self.written, own),
          'read_per_question': self.per_question(self.read, own),
          'calls_per_question': self.per_question(np.ones_like(self.written), own),
          'silence_rate': self.silence_rate(own),
          'silence_rate_relevant': self.silence_rate(own & (self.relevant == 1)),
          'silence_rate_irrelevant': self.silence_rate(own & (self.relevant == 0)),
        }
      )
    return rows

  def edges(self) -> list[dict[str, Any]]:
    """Returns one row for each (author, reader) edge, with means per question.

    `turns` counts the messages readable over the edge, `said` those that are not silent, `told`
    those also addressed to the reader; `tokens` counts the tokens of the last.
    """
    place = zip(self.episode.tolist(), self.agent.tolist(), self.round.tolist(), strict=True)
    number = {where: m for m, where in enumerate(place)}
    rows: dict[tuple[int, int], np.ndarray] = {}
    for m, heard in enumerate(self.read_from):
      episode, reader = int(self.episode[m]), int(self.agent[m])
      for author, round_ in heard:
        said = number[episode, author, round_]
        spoke = not self.silent[said]
        told = spoke and is_for(self.addressees[said], reader)
        row = rows.setdefault((author, reader), np.zeros(4))
        row += (1, spoke, told, told * self.written[said])
    fields = ('turns', 'said', 'told', 'tokens')
    return [
      {
        'author': self.agent_names[author],
        'reader': self.agent_names[reader],
        **dict(zip(fields, (row / max(self.num_episodes, 1)).tolist(), strict=True)),
      }
      for (author, reader), row in sorted(rows.items())
    ]

  def rounds(self) -> list[dict[str, float]]:
    """Returns written and read tokens per question for each round."""
    return [
      {
        'round': r,
        'written_per_question': self.per_question(self.written, self.round == r),
        'read_per_question': self.per_question(self.read, self.round == r),
      }
      for r in range(int(self.round.max(initial=-1)) + 1)
    ]


def count_messages(batch: RolloutBatch) -> MessageCounts:
  """Counts the messages of a rollout."""
  rows = []
  for m in batch.messages:
    question = batch.episodes[m.episode].question
    relevant = batch.questions[question].relevant
    rows.append(
      {
        **{field: getattr(m, field) for field in (*_OF_MESSAGES, 'silent', 'ended')},
        'question': question,
        'relevant': relevant[m.agent] if m.agent < len(relevant) else None,
        'read_from': m.read_from,
        'addressees': m.addressees,
      }
    )
  return from_rows(rows, len(batch.episodes), batch.agent_names)


def from_rows(
  rows: Sequence[Mapping[str, Any]], num_episodes: int, agent_names: Sequence[str]
) -> MessageCounts:
  """Builds the counts from a row per message.

  Args:
    rows: Fields of `MessageCounts` by name, with agents as indices; but `ended` in place of
      `truncated`, and `relevant` as a bool, or None without a note.
    num_episodes: Number of episodes `E`.
    agent_names: Name of each agent.
  """
  column = lambda field, dtype: np.asarray([row[field] for row in rows], dtype)
  relevant = [-1 if row['relevant'] is None else row['relevant'] for row in rows]
  return MessageCounts(
    **{field: column(field, np.int64) for field in (*_OF_MESSAGES, 'question')},
    silent=column('silent', bool),
    truncated=~column('ended', bool),
    relevant=np.asarray(relevant, np.int64),
    num_episodes=num_episodes,
    agent_names=tuple(agent_names),
    read_from=tuple(row['read_from'] for row in rows),
    addressees=tuple(row['addressees'] for row in rows),
  )
