"""Defines the policies that write messages: a model behind the sampler, or a script."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import ArrayLike

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import Params
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.teams.topology import MAX_TURNS
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
    silence_ids: Those of them that leave it empty if they come first.
    left: Remaining tokens, see `Team.told_left`.
    end_id: Token that ends a message given as text: the separator in plain prompts.
    offset: Tokens of this message at the end of `prompt_ids`, after a tool call; 0 at its start.
    told: New texts of the environment.
    state: State of the environment, for demonstrations; None without one.
    branch: Index among the candidates for this turn, see `Conversation.candidates`.
    model: Model of the author, see `Role.model`.
  """

  question: Question
  sample: int
  agent: int
  round: int
  prompt_ids: np.ndarray
  delivered: dict[int, str]
  limit: int
  stop_ids: tuple[int, ...]
  silence_ids: tuple[int, ...] = ()
  left: int = 0
  end_id: int = -1
  offset: int = 0
  told: tuple[str, ...] = ()
  state: Any = None
  branch: int = 0
  model: str = ''

  @property
  def begun(self) -> np.ndarray:
    """Returns the tokens of this message so far, up to a tool's result, int32 `[offset]`."""
    return self.prompt_ids[len(self.prompt_ids) - self.offset :]


class Reply(NamedTuple):
  """Message of one turn.

  Attributes:
    token_ids: Tokens, the stop token included if there is one, int32 `[W]`.
    logprobs: Log-probs under the sampling distribution, float32 `[W]`.
    ended: Whether a stop token was sampled; False if truncated at the limit.
    inserted: Mask of tokens that a tool wrote (log-prob 0), bool `[W]`; None without any.
    usage: Tokens `(read, written)` as counted by an endpoint; None if counted from the ids.
    learns: False for a message of an opponent.
    log_speak: Log-prob that the message is not silent, see `exploration`; None if not measured.
    experts: See `Message.experts`.
    version: See `Message.version`.
  """

  token_ids: np.ndarray
  logprobs: np.ndarray
  ended: bool
  inserted: np.ndarray | None = None
  usage: tuple[int, int] | None = None
  learns: bool = True
  log_speak: float | None = None
  experts: np.ndarray | None = None
  version: int = -1

  @classmethod
  def given(cls, ids: ArrayLike, ended: bool, **fields: Any) -> Reply:
    """Returns a message that was not sampled; its log-probs are 0."""
    token_ids = np.asarray(ids, np.int32)
    return cls(token_ids, np.zeros(len(token_ids), np.float32), ended, **fields)

  @classmethod
  def silence(cls, stop_id: int) -> Reply:
    """Returns a stop token alone, without a model call."""
    return cls.given([stop_id], True, usage=(0, 0))

  @property
  def inserted_mask(self) -> np.ndarray:
    """Returns `inserted`, all False without any."""
    return np.zeros(len(self.token_ids), bool) if self.inserted is None else self.inserted


def divided(
  turns: Sequence[Turn],
  author: Callable[[Turn], Hashable],
  policies: Mapping[Any, Policy],
) -> list[Reply]:
  """Returns the replies of several policies, called in their order, each once if it has a turn.

  `author` maps a turn to the key of the policy that takes it.
  """
  places: dict[Hashable, list[int]] = {}
  for i, turn in enumerate(turns):
    places.setdefault(author(turn), []).append(i)
  replies: dict[int, Reply] = {}
  for key, policy in policies.items():
    if own := places.get(key):
      replies |= zip(own, policy([turns[i] for i in own]), strict=True)
  return [replies[i] for i in range(len(turns))]


def muted(policy: Policy, agents: Collection[int], stop_ids: Sequence[int]) -> Policy:
  """Returns a policy under which some agents are silent, without notice to the others.

  Args:
    policy: Policy of the other agents.
    agents: Muted agents: their messages are a stop token alone, without a prefill.
    stop_ids: A stop token of each agent, such as the EOS of its vocabulary.
  """
  silent = lambda turns: [Reply.silence(stop_ids[turn.agent]) for turn in turns]
  policies = {False: policy, True: silent}
  return functools.partial(divided, author=lambda turn: turn.agent in agents, policies=policies)


class EndpointError(ConnectionError):
  """Endpoint error: no answer, or one that violates the protocol."""


class RefusedError(EndpointError):
  """Endpoint error: a reply withheld in accordance with the protocol."""


class Policy(Protocol):
  """Writes a message for each of `N` turns of one layer."""

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]: ...


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
    listener: Called after each token with a turn and the ids `[W]` of its message so far, see
      `Sampler`.
    must_speak: Returns whether a turn's message may not be silent; None: all may.
    experts: Include the experts of a mixture in replies.
    others: Policies of the other models that write for some roles, by `Turn.model`.
  """

  sampler: Sampler
  params: Params
  root: jax.Array
  step: int
  temperature: float
  adapters: tuple[int, ...] | None = None
  listener: Callable[[Turn, np.ndarray], None] | None = None
  must_speak: Callable[[Turn], bool] | None = None
  experts: bool = False
  others: Mapping[str, Policy] = dataclasses.field(default_factory=dict)

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]:
    if self.others:
      own = dataclasses.replace(self, others={})
      return divided(turns, lambda turn: turn.model, {'': own, **self.others})
    stops = lambda turn: (turn.stop_ids, turn.silence_ids)  # one call of the sampler for equal ones
    return divided(turns, stops, dict.fromkeys(map(stops, turns), self._sample))

  def _sample(self, turns: Sequence[Turn]) -> list[Reply]:
    adapters = None
    if self.adapters is not None:
      adapters = np.asarray([self.adapters[t.agent] for t in turns])
    tell, listener = self.listener, None
    if tell is not None:
      listener = lambda n, ids: tell(turns[n], np.concatenate([turns[n].begun, ids]))
    first: dict[str, Any] = {}
    if self.must_speak and not turns[0].offset:  # not the first token after a tool's result
      flags = np.asarray([self.must_speak(turn) for turn in turns])
      first = {'must_speak': flags, 'silence_ids': turns[0].silence_ids}
    samples = self.sampler(
      self.params,
      [t.prompt_ids for t in turns],
      self.row_keys(turns),
      temperature=self.temperature,
      stop_ids=turns[0].stop_ids,
      limits=np.asarray([t.limit for t in turns]),
      adapters=adapters,
      listener=listener,
      experts=self.experts,
      **first,
    )
    columns = (samples.token_ids, samples.logprobs, samples.ended.tolist())
    unmeasured = [None] * len(turns)
    log_speak = unmeasured if samples.log_speak is None else samples.log_speak.tolist()
    experts = samples.experts or unmeasured
    return [
      Reply(ids, logprobs, ended, log_speak=p, experts=chosen)
      for ids, logprobs, ended, p, chosen in zip(*columns, log_speak, experts, strict=True)
    ]

  def row_keys(self, turns: Sequence[Turn]) -> jax.Array:
    """Returns the PRNG key of each turn's message, `[N]`."""
    rows = np.asarray(
      [(self.step, keys.question_number(t.question.id), t.sample, t.agent, t.round) for t in turns]
    )
    # The first candidate for a turn has the key of a turn without others.
    rows[:, -1] += MAX_TURNS * np.asarray([t.branch for t in turns])
    offsets = np.asarray([t.offset for t in turns])
    if not offsets.any():
      return keys.row_keys(self.root, rows)
    assert offsets.all(), 'turns that begin and turns that go on are sampled apart'
    return keys.row_keys(self.root, np.column_stack([rows, offsets]))


@dataclasses.dataclass(frozen=True)
class ScriptedPolicy:
  """Policy that follows a script; its log-probs are 0.

  Attributes:
    script: Maps a turn to the text of its message, "" for silence.
    tokenizer: Tokenizer of the team.
    inserted: Maps a turn and its message's ids to the tokens inserted by tools, bool like the
      ids; None without tools.
    tokenizers: Tokenizers of other models, see `Team.tokenizers`.
  """

  script: Callable[[Turn], str]
  tokenizer: Tokenizer
  inserted: Callable[[Turn, np.ndarray], np.ndarray] | None = None
  tokenizers: Mapping[str, Tokenizer] = dataclasses.field(default_factory=dict)

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]:
    replies = []
    for turn in turns:
      text, own = self.script(turn), self.tokenizers.get(turn.model, self.tokenizer)
      ids = [*own.encode(text, special=False), own.eos_id]
      if len(ids) > turn.limit:
        raise ValueError(
          f'the script of agent {turn.agent} writes {len(ids)} tokens ({text!r}); its cap is '
          f'{turn.limit}. Raise team.max_message_tokens.'
        )
      inserted = self.inserted(turn, np.asarray(ids, np.int32)) if self.inserted else None
      replies.append(Reply.given(ids, True, inserted=inserted))
    return replies
