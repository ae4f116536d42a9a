"""Computes statistics of a rollout's messages: tokens (`Ctok`, `Ptok`), silence, edges."""

from __future__ import annotations

from typing import Any

import numpy as np

from agent_gspo.types import RolloutBatch, is_for


def per_question(batch: RolloutBatch, values: np.ndarray, where: np.ndarray | None = None) -> float:
  """Returns the mean over episodes of the sum of `values` `[M]` over the messages `where`."""
  chosen = values if where is None else values[where]
  return float(chosen.sum()) / max(batch.num_episodes, 1)


def tools(batch: RolloutBatch) -> dict[str, float]:
  """Returns calls of tools and tokens that they inserted per question; {} without a call."""
  if not batch.tool_calls.any():
    return {}
  return {
    'tools/calls_per_question': per_question(batch, batch.tool_calls),
    'tools/tokens_per_question': per_question(batch, batch.tool_tokens),
  }


def silence_rates(batch: RolloutBatch, where: np.ndarray) -> dict[str, float | None]:
  """Returns shares of silent messages among those `where`; None if there are none.

  Args:
    batch: Episodes with `M` messages.
    where: Messages that count, bool `[M]`.

  Returns:
    `silence_rate` of all, and those of authors with a relevant and with an irrelevant note.
  """
  parts = {'': where, '_relevant': batch.relevant == 1, '_irrelevant': batch.relevant == 0}
  silent = {name: batch.silent[where & part] for name, part in parts.items()}
  return {f'silence_rate{k}': float(x.mean()) if x.size else None for k, x in silent.items()}


def by_episode(batch: RolloutBatch, values: np.ndarray) -> np.ndarray:
  """Sums `values` `[M]` over the messages of each episode, float64 `[E]`."""
  return np.bincount(batch.episode, weights=values, minlength=batch.num_episodes)


def critical_path(batch: RolloutBatch) -> np.ndarray:
  """Returns a message's tokens if it is the longest of its layer, else 0; int `[M]`.

  Agents of a layer write in parallel, so a layer takes as long as its longest message.
  """
  if not len(batch.written):
    return batch.written
  order = np.lexsort((-batch.written, batch.layer, batch.round, batch.episode))
  key = np.stack([batch.episode, batch.round, batch.layer], axis=1)[order]
  longest = order[np.r_[True, (key[1:] != key[:-1]).any(axis=1)]]
  out = np.zeros_like(batch.written)
  out[longest] = batch.written[longest]
  return out


def agents(batch: RolloutBatch) -> list[dict[str, float | str | None]]:
  """Returns per-agent tokens and calls per question and silence rates, for `eval.jsonl`."""
  rows: list[dict[str, float | str | None]] = []
  for index, name in enumerate(batch.agent_names):
    own = batch.agent == index
    rows.append(
      {
        'name': name,
        'written_per_question': per_question(batch, batch.written, own),
        'read_per_question': per_question(batch, batch.read, own),
        'calls_per_question': per_question(batch, np.ones_like(batch.written), own),
        **silence_rates(batch, own),
      }
    )
  return rows


def edges(batch: RolloutBatch) -> list[dict[str, Any]]:
  """Returns one row for each (author, reader) edge, with means per question.

  `turns` counts the messages readable over the edge, `said` those that are not silent, `told`
  those also addressed to the reader; `tokens` counts the tokens of the last, those that tools wrote
  among them.
  """
  place = zip(batch.episode.tolist(), batch.agent.tolist(), batch.round.tolist(), strict=True)
  number = {where: m for m, where in enumerate(place)}
  rows: dict[tuple[int, int], np.ndarray] = {}
  for m, heard in enumerate(batch.read_from):
    episode, reader = int(batch.episode[m]), int(batch.agent[m])
    for author, round_ in heard:
      said = number[episode, author, round_]
      spoke = not batch.silent[said]
      told = spoke and is_for(batch.addressees[said], reader)
      row = rows.setdefault((author, reader), np.zeros(4))
      row += (1, spoke, told, told * (batch.written[said] + batch.tool_tokens[said]))
  fields = ('turns', 'said', 'told', 'tokens')
  return [
    {
      'author': batch.agent_names[author],
      'reader': batch.agent_names[reader],
      **dict(zip(fields, (row / max(batch.num_episodes, 1)).tolist(), strict=True)),
    }
    for (author, reader), row in sorted(rows.items())
  ]


def rounds(batch: RolloutBatch) -> list[dict[str, float]]:
  """Returns written and read tokens per question for each round."""
  return [
    {
      'round': r,
      'written_per_question': per_question(batch, batch.written, batch.round == r),
      'read_per_question': per_question(batch, batch.read, batch.round == r),
    }
    for r in range(int(batch.round.max(initial=-1)) + 1)
  ]
