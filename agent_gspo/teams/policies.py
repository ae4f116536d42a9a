"""Defines the policies that write messages: a model behind the sampler, or a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import Params
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler, Samples
from agent_gspo.types import Question


@dataclasses.dataclass(frozen=True)
class Turn:
  """One agent's turn in one episode, ready to be sampled.

  Attributes:
    question: Question of the episode.
    sample: Index of the episode in the question's group.
    agent: Index of the agent in the team.
    round: Round of the conversation.
    prompt_ids: Prompt tokens, int32 `[P]`.
    delivered: New messages by author, as text without addressees; "" for silent messages and
      those addressed to others.
    limit: Maximum number of sampled tokens.
    stop_ids: Tokens that end the message.
    left: Remaining tokens, see `Team.told_left`.
    end_id: Token that ends a message given as text: the separator in plain prompts.
    offset: Tokens of this message at the end of `prompt_ids`, after a tool call; 0 at its start.
  """

  question: Question
  sample: int
  agent: int
  round: int
  prompt_ids: np.ndarray
  delivered: dict[int, str]
  limit: int
  stop_ids: tuple[int, ...]
  left: int = 0
  end_id: int = -1
  offset: int = 0


class Reply(NamedTuple):
  """Message sampled for one turn; see `Samples` for its fields."""

  token_ids: np.ndarray
  logprobs: np.ndarray
  ended: bool
  inserted: np.ndarray | None
  usage: tuple[int, int] | None


def replies(samples: Samples) -> list[Reply]:
  """Returns the reply to each of `N` turns."""
  nothing: list[Any] = [None] * len(samples.token_ids)
  columns = (samples.inserted or nothing, samples.usage or nothing)
  return [
    Reply(ids, logprobs, bool(ended), inserted, usage)
    for ids, logprobs, ended, inserted, usage in zip(
      samples.token_ids, samples.logprobs, samples.ended, *columns, strict=True
    )
  ]


class EndpointError(ConnectionError):
  """Endpoint error: no answer, or one that violates the protocol."""


class RefusedError(EndpointError):
  """Endpoint error: a reply withheld in accordance with the protocol."""


class Policy(Protocol):
  """Writes a message for each of `N` turns of one layer."""

  def __call__(self, turns: Sequence[Turn]) -> Samples: ...


@dataclasses.dataclass(frozen=True)
class ModelPolicy:
  """Policy that samples all agents from one model, with or without adapters.

  Attributes:
    sampler: Sampler of the model.
    params: Model parameters.
    root: Key of this random stream (see `keys.stream`).
    step: Training step, folded into every row's key.
    temperature: Sampling temperature; 0 is greedy.
    adapters: Adapter index of each agent, -1 for none; None: the only adapter, if any.
  """

  sampler: Sampler
  params: Params
  root: jax.Array
  step: int
  temperature: float
  adapters: tuple[int, ...] | None = None

  def __call__(self, turns: Sequence[Turn]) -> Samples:
    stop_ids = turns[0].stop_ids
    if any(t.stop_ids != stop_ids for t in turns):
      return self._by_stop_ids(turns)
    adapters = None
    if self.adapters is not None:
      adapters = np.asarray([self.adapters[t.agent] for t in turns])
    return self.sampler(
      self.params,
      [t.prompt_ids for t in turns],
      self.row_keys(turns),
      temperature=self.temperature,
      stop_ids=stop_ids,
      limits=np.asarray([t.limit for t in turns]),
      adapters=adapters,
    )

  def row_keys(self, turns: Sequence[Turn]) -> jax.Array:
    """Returns the PRNG key of each turn's message, `[N]`."""
    rows = np.asarray(
      [(self.step, keys.question_number(t.question.id), t.sample, t.agent, t.round) for t in turns]
    )
    offsets = np.asarray([t.offset for t in turns])
    if not offsets.any():
      return keys.row_keys(self.root, rows)
    assert offsets.all(), 'turns that begin and turns that go on are sampled apart'
    return keys.row_keys(self.root, np.column_stack([rows, offsets]))

  def _by_stop_ids(self, turns: Sequence[Turn]) -> Samples:
    """Samples turns with different stop tokens separately."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, turn in enumerate(turns):
      groups.setdefault(turn.stop_ids, []).append(i)
    token_ids: list[np.ndarray] = [np.zeros(0, np.int32)] * len(turns)
    logprobs: list[np.ndarray] = [np.zeros(0, np.float32)] * len(turns)
    ended, positions = np.zeros(len(turns), bool), 0
    for members in groups.values():
      part = self([turns[i] for i in members])
      positions += part.prefill_positions
      for j, i in enumerate(members):
        token_ids[i], logprobs[i], ended[i] = part.token_ids[j], part.logprobs[j], part.ended[j]
    return Samples(token_ids=token_ids, logprobs=logprobs, ended=ended, prefill_positions=positions)


@dataclasses.dataclass(frozen=True)
class ScriptedPolicy:
  """Policy that follows a script; its log-probs are 0.

  Attributes:
    script: Maps a turn to the text of its message, "" for silence.
    tokenizer: Tokenizer of the team.
    inserted: Maps a turn and its message's ids to the tokens inserted by tools, bool like the
      ids; None without tools.
  """

  script: Callable[[Turn], str]
  tokenizer: Tokenizer
  inserted: Callable[[Turn, np.ndarray], np.ndarray] | None = None

  def __call__(self, turns: Sequence[Turn]) -> Samples:
    token_ids, ended = [], []
    for turn in turns:
      text = self.script(turn)
      ids = [*self.tokenizer.encode(text, special=False), self.tokenizer.eos_id]
      if len(ids) > turn.limit:
        raise ValueError(
          f'the script of agent {turn.agent} writes {len(ids)} tokens ({text!r}); its cap is '
          f'{turn.limit}. Raise team.max_message_tokens.'
        )
      token_ids.append(np.asarray(ids, np.int32))
      ended.append(True)
    inserted = None
    if self.inserted is not None:
      inserted = [self.inserted(t, ids) for t, ids in zip(turns, token_ids, strict=True)]
    return Samples(
      token_ids=token_ids,
      logprobs=[np.zeros(len(ids), np.float32) for ids in token_ids],
      ended=np.asarray(ended),
      prefill_positions=0,
      inserted=inserted,
    )
