"""Completes `a op b =` while an agent writes (`Role.calculator`).

Results are inserted into the message, and the agent continues after them. They were not sampled:
they count as read tokens, not as written ones, and the loss masks them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.sampling.sampler import Samples
from agent_gspo.tasks.grading import equations
from agent_gspo.teams.policies import Policy, Turn

_SPELLINGS = ('=', ' =', '2 =', '2=')
_NONE = np.zeros(0, np.int32)


class Calculator:
  """Calculator for messages of one tokenizer."""

  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer

  @functools.cached_property
  def equals_ids(self) -> tuple[int, ...]:
    """Returns ids of tokens that are an equals sign, with or without a space.

    Raises:
      ValueError: if the vocabulary has none.
    """
    known = [text for text in _SPELLINGS if not self._tokenizer.unknown_words(text)]
    last = {self._tokenizer.encode(text)[-1] for text in known}
    found = {i for i in last if self._tokenizer.decode([i]).strip() == '='}
    if not found:
      raise ValueError(
        'team.roles: calculator=True needs a vocabulary with a token for "="; that of the model '
        'has none.'
      )
    return tuple(sorted(found))

  def result(self, ids: np.ndarray) -> np.ndarray:
    """Returns the int32 ids to insert after `ids` `[W]`; empty without an equation to complete."""
    if not len(ids) or int(ids[-1]) not in self.equals_ids:
      return _NONE
    value = equations.completion(self._tokenizer.decode(ids.tolist()))
    if value is None:
      return _NONE
    text = value if self._tokenizer.is_word_level else f' {value}'
    if self._tokenizer.unknown_words(text):
      return _NONE
    return np.asarray(self._tokenizer.encode(text), np.int32)

  def inserted(self, ids: np.ndarray) -> np.ndarray:
    """Marks calculator results in a finished message of a script; bool like `ids`."""
    found = np.zeros(len(ids), bool)
    for place in np.flatnonzero(np.isin(ids, self.equals_ids)):
      result = self.result(ids[: place + 1])
      end = place + 1 + len(result)
      if np.array_equal(ids[place + 1 : end], result):
        found[place + 1 : end] = True
    return found


@dataclasses.dataclass
class _Draft:
  """Unfinished message: its parts so far."""

  ids: list[np.ndarray] = dataclasses.field(default_factory=list)
  logprobs: list[np.ndarray] = dataclasses.field(default_factory=list)
  inserted: list[np.ndarray] = dataclasses.field(default_factory=list)
  ended: bool = False

  def add(self, ids: np.ndarray, logprobs: np.ndarray, inserted: np.ndarray) -> None:
    self.ids.append(np.asarray(ids, np.int32))
    self.logprobs.append(np.asarray(logprobs, np.float32))
    self.inserted.append(np.asarray(inserted, bool))

  @property
  def so_far(self) -> np.ndarray:
    return np.concatenate(self.ids)


def speak(
  policy: Policy, turns: Sequence[Turn], calculates: Callable[[Turn], bool], calculator: Calculator
) -> Samples:
  """Samples the messages of a layer, with calculator results inserted.

  An agent with a calculator stops at each equals sign; the result is inserted, and sampling
  continues after it with a key of its own.
  """
  if not any(map(calculates, turns)):
    return policy(turns)
  drafts = [_Draft() for _ in turns]
  going_on = {i: _stopping_at_equals(turn, calculates, calculator) for i, turn in enumerate(turns)}
  positions = 0
  while going_on:
    out = policy(list(going_on.values()))
    positions += out.prefill_positions
    # Scripts write whole messages, results included.
    scripted = out.inserted or [np.zeros(len(ids), bool) for ids in out.token_ids]
    parts = zip(out.token_ids, out.logprobs, out.ended, scripted, strict=True)
    for i, (ids, logprobs, ended, inserted) in zip(list(going_on), parts, strict=True):
      draft, turn = drafts[i], turns[i]
      draft.add(ids, logprobs, inserted)
      draft.ended = bool(ended) and int(ids[-1]) in turn.stop_ids
      del going_on[i]
      if draft.ended or not ended:
        continue
      room = turn.limit - len(draft.so_far)
      result = calculator.result(draft.so_far)[:room]
      draft.add(result, np.zeros(len(result)), np.ones(len(result)))
      room -= len(result)
      if room:
        going_on[i] = dataclasses.replace(
          _stopping_at_equals(turn, calculates, calculator),
          prompt_ids=np.concatenate([turn.prompt_ids, draft.so_far]),
          limit=room,
          offset=len(draft.so_far),
        )
  return Samples(
    token_ids=[draft.so_far for draft in drafts],
    logprobs=[np.concatenate(draft.logprobs) for draft in drafts],
    ended=np.asarray([draft.ended for draft in drafts]),
    prefill_positions=positions,
    inserted=[np.concatenate(draft.inserted) for draft in drafts],
  )


def _stopping_at_equals(
  turn: Turn, calculates: Callable[[Turn], bool], calculator: Calculator
) -> Turn:
  if not calculates(turn):
    return turn
  return dataclasses.replace(turn, stop_ids=tuple(sorted({*turn.stop_ids, *calculator.equals_ids})))
