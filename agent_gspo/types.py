"""The records that travel between rooms.

`B` questions, `G` episodes a question, `E = B * G` episodes, `M` messages, `R` rows,
`T` tokens of a row, `L` loss tokens of a row, `S` messages of a row.
"""

from __future__ import annotations

import dataclasses

import chex
import numpy as np


@dataclasses.dataclass(frozen=True)
class Terms:
  """What a team is told of the cost of talk about a question.

  Attributes:
    kind: 'price', of a unit of cost in units of task score; or 'budget', the cost that an episode
      should have.
    value: of it.
    words: how agents read it.
  """

  kind: str
  value: float
  words: str


@dataclasses.dataclass(frozen=True)
class Question:
  """One question of a task, with what only some agents may see.

  Attributes:
    id: unique within its task, stable across runs and machines.
    text: the part that every agent sees.
    answer: the gold answer, in the form that the task's grader reads.
    notes: what agent `i` alone sees (`notes[i]`, "" for nothing). Empty for tasks
      without private knowledge. Agents beyond the end of the tuple hold nothing.
    relevant: whether `notes[i]` is needed to answer; as long as `notes`, or empty where nobody
      knows.
    derivation: how the answer comes about, as the official files have it: an equation such as
      '( 6 - ( 3 + 2 ) )' or a rationale; "" where they do not say. Nobody in a team sees it.
    terms: of talk about it; None where the team is told none.
    story: id of the question that it tells with other numbers; "" for a question of its own.
  """

  id: str
  text: str
  answer: str
  notes: tuple[str, ...] = ()
  relevant: tuple[bool, ...] = ()
  derivation: str = ''
  terms: Terms | None = None
  story: str = ''

  def __post_init__(self):
    if len(self.relevant) not in (0, len(self.notes)):
      raise ValueError(
        f'question {self.id!r}: relevant={self.relevant!r}, but it has {len(self.notes)} notes; '
        'mark every note, or none where nobody knows.'
      )

  def note(self, agent: int) -> str:
    """What an agent alone sees, "" for nothing."""
    return self.notes[agent] if agent < len(self.notes) else ''


def is_for(addressees: frozenset[int] | None, agent: int) -> bool:
  """Whether a message with these addressees (None: everybody) is for an agent."""
  return addressees is None or agent in addressees


@dataclasses.dataclass(frozen=True)
class Message:
  """What one agent wrote in one turn: one *sequence* in GSPO's sense.

  Attributes:
    episode: index of the episode in its `RolloutBatch`.
    agent: index of the author in the team.
    round: round of the conversation, from 0.
    layer: place of the author's layer in that round; a layer writes in parallel.
    prompt_ids: int32 `[P]`, the context the message was sampled from.
    token_ids: int32 `[W + 1]`, the tokens with the stop token that ended them; `[W]` where the
      cap cut the message off (then `ended` is False).
    logprobs: float32, one a token, under the distribution sampled from.
    ended: whether a stop token was sampled.
    text: the written tokens decoded, without the stop token; with what that one says before the
      separator that it holds (see `tail`).
    readers: number of later turns whose prompt carries this message, its author's own
      included; 0 for a silent one.
    read_from: `(author, round)` of each message that could be new in this prompt; of silent ones
      and of those for others nothing was delivered.
    addressees: agents that it is for; None: all that can hear its author.
    inserted: bool like `token_ids`, tokens that a tool wrote and the author read, none of them
      sampled; None where there are none.
    usage: tokens read and written as an endpoint has counted them, or none of a muted agent; None
      where the ids are what counts.
    tail: ids of what the stop token says before it ends the message: that of "." if it is ".\\n".
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

  @property
  def length(self) -> int:
    """Tokens that say something: those before the stop token, and that one if it has a tail."""
    return len(self.token_ids) - int(self.ended and not self.tail)

  @property
  def said(self) -> np.ndarray:
    """int32, what readers are handed: the tokens before the stop token, and its tail."""
    before = self.token_ids[: len(self.token_ids) - int(self.ended)]
    return np.concatenate([before, np.asarray(self.tail, np.int32)])

  @property
  def sampled(self) -> np.ndarray:
    """Bool like `token_ids`: the tokens that carry loss."""
    return np.ones(len(self.token_ids), bool) if self.inserted is None else ~self.inserted

  @property
  def written(self) -> int:
    """Sampled tokens that say something (`w_m`): what `Ctok` counts."""
    return self.length - self._inserted if self.usage is None else self.usage[1]

  @property
  def read(self) -> int:
    """Tokens of the prompt, template included, and of tools: what `Ptok` counts."""
    return len(self.prompt_ids) + self._inserted if self.usage is None else self.usage[0]

  @property
  def spent(self) -> int:
    """What it takes of an episode's cap: its tokens, the stop token included."""
    return len(self.token_ids) if self.usage is None else self.usage[1]

  @property
  def _inserted(self) -> int:
    return 0 if self.inserted is None else int(self.inserted.sum())

  @property
  def silent(self) -> bool:
    """Nothing was written, hence nothing is delivered."""
    return self.length == self._inserted

  def reaches(self, agent: int) -> bool:
    """Whether an agent that can hear its author is handed it."""
    return not self.silent and is_for(self.addressees, agent)

  @property
  def path(self) -> np.ndarray:
    """int32 `[P + W (+ 1)]`: context and sampled tokens in one piece."""
    return np.concatenate([self.prompt_ids, self.token_ids])


@dataclasses.dataclass(frozen=True)
class Episode:
  """One conversation of the team about one question.

  Attributes:
    question: index of the question in its `RolloutBatch`.
    sample: index of the episode within the question's group, `0 .. G-1`.
    answer: the text that the team's decision rule gave as its answer.
    task_score: what the task's grader gave for it, in `[0, 1]`.
  """

  question: int
  sample: int
  answer: str
  task_score: float


@dataclasses.dataclass(frozen=True)
class RolloutBatch:
  """`E` finished conversations about `B` questions.

  Attributes:
    questions: `[B]`.
    episodes: `[E]`, episode `b * G + g` is sample `g` of question `b`.
    messages: `[M]`, in the order in which they were written.
    agent_names: one a team member.
  """

  questions: tuple[Question, ...]
  episodes: tuple[Episode, ...]
  messages: tuple[Message, ...]
  agent_names: tuple[str, ...]


@chex.dataclass(frozen=True)
class TrainBatch:
  """Messages packed into tree rows (see `agent_gspo.packing.prefix_tree`).

  A loss token is a pair (source position, target id): the hidden state at the
  source predicts the target. Several loss tokens may share a source, which is what
  lets samples share their context.

  Attributes:
    tokens: int32 `[R, T]`.
    positions: int32 `[R, T]`, distance from the root of the token's own path.
    subtree_end: int32 `[R, T]`; token `i` sees token `j` iff `j <= i < subtree_end[j]`.
    adapters: int32 `[R, T]`, adapter that each token goes through, -1 for none; None: the one that
      there is, if any.
    loss_source: int32 `[R, L]`, column of the predicting position.
    loss_target: int32 `[R, L]`, the sampled id.
    loss_message: int32 `[R, L]`, message slot of the row, `0 .. S-1`.
    loss_mask: float32 `[R, L]`, 1 for a loss token, 0 for padding.
    sampler_logprobs: float32 `[R, L]`, of the distribution sampled from, as the sampler had it.
    old_logprobs: float32 `[R, L]`, at the rollout's temperature: what ratios begin with, the
      sampler's or the trainer's own.
    message: int32 `[R, S]`, which of the messages that were packed stands in a slot.
    message_mask: float32 `[R, S]`, 1 for a message, 0 for padding.
    advantages: float32 `[R, S]`.
    clip_scale: float32 `[R, S]`, factor of a message's own clip range; None is 1.
    token_weights: float32 `[R, L]`, weight of each loss token; None is 1.
    span_log_ratio, span_share: float32 `[R, S]`, see `objectives.packed.PackedTokens`; None
      where a message is a sequence of its own.
  """

  tokens: chex.Array
  positions: chex.Array
  subtree_end: chex.Array
  adapters: chex.Array | None
  loss_source: chex.Array
  loss_target: chex.Array
  loss_message: chex.Array
  loss_mask: chex.Array
  sampler_logprobs: chex.Array
  old_logprobs: chex.Array
  message: chex.Array
  message_mask: chex.Array
  advantages: chex.Array
  clip_scale: chex.Array | None = None
  token_weights: chex.Array | None = None
  span_log_ratio: chex.Array | None = None
  span_share: chex.Array | None = None
