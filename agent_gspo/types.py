"""Defines the records shared by all packages.

`B` questions, `G` episodes per question, `E = B * G` episodes, `M` messages, `R` rows,
`T` tokens per row, `L` loss tokens per row, `S` message slots per row.
"""

from __future__ import annotations

import dataclasses

import chex
import numpy as np


@dataclasses.dataclass(frozen=True)
class Terms:
  """Price or budget conditioning of one question, shown to the team.

  Attributes:
    kind: 'price' (task score per unit of cost) or 'budget' (target cost of an episode).
    value: Price or budget.
    words: Text that agents read.
  """

  kind: str
  value: float
  words: str


@dataclasses.dataclass(frozen=True)
class Question:
  """One question of a task, with the private notes of each agent.

  Attributes:
    id: Identifier, unique within the task and stable across runs and machines.
    text: Text visible to every agent.
    answer: Gold answer, in the form that the task's grader reads.
    notes: Private notes: agent `i` alone sees `notes[i]` ("" for none). Empty for tasks without
      private knowledge. Agents beyond the end of the tuple have no note.
    relevant: Relevance flag of each note, as long as `notes`; empty if unknown.
    derivation: Derivation of the answer from the official files: an equation such as
      '( 6 - ( 3 + 2 ) )' or a rationale; "" if they have none. No agent sees it.
    terms: Price or budget conditioning; None without.
    documents: Texts that the tool `retriever` searches; without any, the notes. No prompt has them.
    story: Id of the question that this one augments with other numbers; "" for an original.
  """

  id: str
  text: str
  answer: str
  notes: tuple[str, ...] = ()
  relevant: tuple[bool, ...] = ()
  derivation: str = ''
  terms: Terms | None = None
  documents: tuple[str, ...] = ()
  story: str = ''

  def __post_init__(self):
    if len(self.relevant) not in (0, len(self.notes)):
      raise ValueError(
        f'question {self.id!r}: relevant={self.relevant!r}, but it has {len(self.notes)} notes; '
        'mark every note, or none if relevance is unknown.'
      )

  def note(self, agent: int) -> str:
    """Returns the private note of an agent, "" for none."""
    return self.notes[agent] if agent < len(self.notes) else ''

  def is_relevant(self, agent: int) -> bool | None:
    """Returns whether an agent's note is relevant; None if it has none, or that is unknown."""
    return self.relevant[agent] if agent < len(self.relevant) else None


def is_for(addressees: frozenset[int] | None, agent: int) -> bool:
  """Returns whether an agent is among a message's addressees (None: all agents)."""
  return addressees is None or agent in addressees


def runs(mask: np.ndarray) -> int:
  """Counts the runs of True in a bool mask `[W]`."""
  return int(np.count_nonzero(np.diff(mask, prepend=False) & mask))


@dataclasses.dataclass(frozen=True)
class Message:
  """Message of one agent in one turn: one *sequence* in GSPO's sense.

  Attributes:
    episode: Index of the episode in its `RolloutBatch`.
    agent: Index of the author in the team.
    round: Round of the conversation, from 0.
    layer: Index of the author's layer in that round; a layer writes in parallel.
    prompt_ids: Context the message was sampled from, int32 `[P]`.
    token_ids: Sampled tokens and stop token, int32 `[W + 1]`; `[W]` if truncated at the cap
      (then `ended` is False).
    logprobs: Log-probs under the sampling distribution, float32 like `token_ids`.
    ended: True if a stop token was sampled.
    text: Decoded tokens without the stop token, but with its `tail`.
    readers: Number of later turns whose prompt contains this message, the author's own turns
      included; 0 for a silent message.
    read_from: `(author, round)` of each message that the topology adds to this prompt. Silent
      messages and messages addressed to others are listed but were not delivered.
    addressees: Agents that the message is addressed to; None for all readers in the topology.
    inserted: Mask of tokens that a tool wrote and that were not sampled, bool like `token_ids`;
      None without any.
    usage: Tokens `(read, written)` as counted by an endpoint, or zeros for a muted agent; None if
      counted from the ids.
    tail: Ids of the text in the stop token before its separator: those of "." if it is ".\\n".
    told: New texts of the environment in this prompt; they carry no loss.
    reward: Environment reward of the author for this message; None without one.
    learns: False for a message of an opponent, which carries no loss and enters no baseline.
    taken: False for a candidate that the episode discards, see `rollout.branches`.
    log_speak: Log-prob that the message is not silent; None if not measured, see `exploration`.
    weight: Importance weight of the episode, see `exploration`.
    version: Finished training steps of its weights; -1 for an opponent's message.
    experts: Experts of the tokens of `path` that a mixture read as it sampled in training, all but
      the last or a tool's last result, int8 or int16 `[n, num_layers, k]`; None if unknown.
  """

  episode: int
  agent: int
  round: int
  layer: int
  prompt_ids: np.ndarray
  token_ids: np.ndarray
  logprobs: np.ndarray
  ended: bool
  text: str
  readers: int = 0
  read_from: tuple[tuple[int, int], ...] = ()
  addressees: frozenset[int] | None = None
  inserted: np.ndarray | None = None
  usage: tuple[int, int] | None = None
  tail: tuple[int, ...] = ()
  told: tuple[str, ...] = ()
  reward: float | None = None
  learns: bool = True
  taken: bool = True
  log_speak: float | None = None
  weight: float = 1.0
  version: int = -1
  experts: np.ndarray | None = None

  @property
  def length(self) -> int:
    """Counts content tokens: those before the stop token, and that one if it has a tail."""
    return len(self.token_ids) - int(self.ended and not self.tail)

  @property
  def said(self) -> np.ndarray:
    """Returns the ids delivered to readers, int32: tokens before the stop token, and its tail."""
    before = self.token_ids[: len(self.token_ids) - int(self.ended)]
    return np.concatenate([before, np.asarray(self.tail, np.int32)])

  @property
  def sampled(self) -> np.ndarray:
    """Returns the mask of tokens that carry loss, bool like `token_ids`."""
    return np.ones(len(self.token_ids), bool) if self.inserted is None else ~self.inserted

  @property
  def written(self) -> int:
    """Counts sampled content tokens (`w_m`), which `Ctok` sums."""
    return self.length - self.tool_tokens if self.usage is None else self.usage[1]

  @property
  def read(self) -> int:
    """Counts prompt tokens, template included, and tool tokens, which `Ptok` sums."""
    return len(self.prompt_ids) + self.tool_tokens if self.usage is None else self.usage[0]

  @property
  def spent(self) -> int:
    """Counts tokens charged to the episode's cap, the stop token included."""
    return len(self.token_ids) if self.usage is None else self.usage[1]

  @property
  def tool_tokens(self) -> int:
    """Counts the tokens that tools wrote."""
    return 0 if self.inserted is None else int(self.inserted.sum())

  @property
  def tool_calls(self) -> int:
    """Counts the results that tools wrote."""
    return 0 if self.inserted is None else runs(self.inserted)

  @property
  def silent(self) -> bool:
    """Returns whether nothing was written, so that nothing is delivered."""
    return self.length == self.tool_tokens

  def reaches(self, agent: int) -> bool:
    """Returns whether the message is delivered to an agent that reads its author."""
    return not self.silent and is_for(self.addressees, agent)

  @property
  def path(self) -> np.ndarray:
    """Concatenates context and sampled tokens, int32 `[P + W (+ 1)]`."""
    return np.concatenate([self.prompt_ids, self.token_ids])


@dataclasses.dataclass(frozen=True)
class RolloutBatch:
  """`E` finished episodes about `B` questions: one table with a row per message.

  Attributes:
    questions: Questions, `[B]`.
    agent_names: Name of each team member.
    episode_question: Question of each episode, int `[E]`.
    sample: Index of each episode in its question's group, int `[E]`.
    answers: Answer of each episode by the team's decision rule, `[E]`.
    task_scores: Score of each answer by the task's grader, in `[0, 1]`, float `[E]`.
    messages: Token ids of each message, in the order in which they were written, `[M]`; empty in
      a table read from records.
    episode, question, agent, round, layer: Indices of each message's turn, int `[M]`.
    written: Sampled content tokens (`Ctok`), int `[M]`.
    read: Prompt tokens, template included, and tool tokens (`Ptok`), int `[M]`.
    readers: Later turns whose prompt contains the message, its author's included, int `[M]`.
    tool_calls, tool_tokens: Results of tools in the message, and their tokens, int `[M]`.
    silent: True for empty messages, bool `[M]`.
    truncated: True for messages cut off by the cap, bool `[M]`.
    taken: False for candidates that the episode discards, bool `[M]`.
    relevant: 1 for authors with a relevant note, 0 with an irrelevant one, -1 with none, int `[M]`.
    text: Text of each message, `[M]`.
    read_from: `(author, round)` of the messages readable in each turn, `[M]`.
    addressees: Agents addressed by each message, None for all readers, `[M]`.
    drawn: Index of each question among the training questions, int `[B]`; empty outside
      of training.
    sides: Side of each team member, `[N]`; empty without `team.sides`.
  """

  questions: tuple[Question, ...]
  agent_names: tuple[str, ...]
  episode_question: np.ndarray
  sample: np.ndarray
  answers: tuple[str, ...]
  task_scores: np.ndarray
  messages: tuple[Message, ...]
  episode: np.ndarray
  question: np.ndarray
  agent: np.ndarray
  round: np.ndarray
  layer: np.ndarray
  written: np.ndarray
  read: np.ndarray
  readers: np.ndarray
  tool_calls: np.ndarray
  tool_tokens: np.ndarray
  silent: np.ndarray
  truncated: np.ndarray
  taken: np.ndarray
  relevant: np.ndarray
  text: tuple[str, ...]
  read_from: tuple[tuple[tuple[int, int], ...], ...]
  addressees: tuple[frozenset[int] | None, ...]
  drawn: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
  sides: tuple[str, ...] = ()

  @property
  def num_episodes(self) -> int:
    """Counts the episodes `E`, those without a message included."""
    return len(self.task_scores)

  @property
  def turn(self) -> np.ndarray:
    """Returns the index of each message's layer in the conversation, int `[M]`."""
    return self.round * (self.layer.max(initial=0) + 1) + self.layer

  @property
  def role(self) -> np.ndarray:
    """Returns the index of each author's side, or of the author without sides, int `[M]`."""
    names = self.sides or self.agent_names
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.asarray([number[name] for name in names])[self.agent]

  @property
  def learns(self) -> np.ndarray:
    """Returns False for messages of opponents, bool `[M]`."""
    return np.asarray([message.learns for message in self.messages], bool)

  @property
  def version(self) -> np.ndarray:
    """Returns the finished steps of each message's weights, -1 for opponents', int32 `[M]`."""
    return np.asarray([message.version for message in self.messages], np.int32)

  @property
  def terms(self) -> list[Terms | None]:
    """Returns the price or budget terms of each of `E` episodes."""
    return [self.questions[question].terms for question in self.episode_question]


@chex.dataclass(frozen=True)
class TrainBatch:
  """Messages packed into tree rows (see `agent_gspo.packing.prefix_tree`).

  A loss token is a pair (source position, target id): the hidden state at the source predicts the
  target. Several loss tokens may share a source, so that samples share their context.

  Attributes:
    tokens: Token ids, int32 `[R, T]`.
    positions: Distance from the root along the token's own path, int32 `[R, T]`.
    subtree_end: Mask bounds, int32 `[R, T]`; `i` attends to `j` iff `j <= i < subtree_end[j]`.
    adapters: Adapter of each token, int32 `[R, T]`, -1 for none; None for the model's only
      adapter, if any.
    loss_source: Column of the predicting position, int32 `[R, L]`.
    loss_target: Sampled id, int32 `[R, L]`.
    loss_message: Message slot of the loss token, int32 `[R, L]`, `0 .. S-1`.
    loss_mask: 1 for a loss token, 0 for padding, float32 `[R, L]`.
    sampler_logprobs: Log-probs under the sampling distribution, float32 `[R, L]`.
    old_logprobs: Log-probs in the ratios' denominator at the rollout's temperature, float32
      `[R, L]`; from the sampler or recomputed by the trainer.
    message: Index of the message in each slot, int32 `[R, S]`.
    message_mask: 1 for a message, 0 for padding, float32 `[R, S]`.
    advantages: Advantage of each message, float32 `[R, S]`.
    token_weights: Weight of each loss token, float32 `[R, L]`; None for 1.
    old_experts: Experts of each token under the policy of the trainer's `old_logprobs`, int32
      `[R, T, num_layers, k]`; None for dense models and the sampler's log-probs.
    sampler_experts: Experts of each token in the sampler, int8 or int16 like `old_experts`, -1
      where unknown; None if no message has any.
    span_log_ratio, span_share: float32 `[R, S]`, see `objectives.parts.PackedTokens`; None if
      each message is its own sequence.
    loss_any: Ids that count as one target, int32 `[R, K]`, see `lm_head.any_logprobs`; None
      without.
  """

  tokens: chex.Array  # [R, T]
  positions: chex.Array  # [R, T]
  subtree_end: chex.Array  # [R, T]
  adapters: chex.Array | None  # [R, T]
  loss_source: chex.Array  # [R, L]
  loss_target: chex.Array  # [R, L]
  loss_message: chex.Array  # [R, L]
  loss_mask: chex.Array  # [R, L]
  sampler_logprobs: chex.Array  # [R, L]
  old_logprobs: chex.Array  # [R, L]
  message: chex.Array  # [R, S]
  message_mask: chex.Array  # [R, S]
  advantages: chex.Array  # [R, S]
  token_weights: chex.Array | None = None  # [R, L]
  old_experts: chex.Array | None = None  # [R, T, num_layers, k]
  sampler_experts: chex.Array | None = None  # [R, T, num_layers, k]
  span_log_ratio: chex.Array | None = None  # [R, S]
  span_share: chex.Array | None = None  # [R, S]
  loss_any: chex.Array | None = None  # [R, K]
