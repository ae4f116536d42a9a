"""What estimators of advantages read, and what they return."""

from __future__ import annotations

import chex


@chex.dataclass(frozen=True)
class AdvantageInputs:
  """One entry a message, no padding; `M` messages, `K` lengths of history.

  Fields that default to None are read by some estimators only (see `advantages.fields_of`).

  Attributes:
    task: float32 `[M]`, task score credited to the message.
    costs: float32 `[M]`, everything that is subtracted from it, weights applied.
    groups: int `[M]`, ids `0 .. M-1` of whose rewards are compared (`groups.group_ids`).
    question, episode, agent, turn: int `[M]`; one message an episode, agent and turn.
    lengths: int `[M]`, sampled tokens, the stop token included (silence has 1).
    silent: bool `[M]`, nothing was written.
    roles: int `[M]`, functional group of the author.
    observation: int `[M]`, equal iff the prompt ids are: the same visible transcript.
    path: int `[M]`, equal iff prompt and sampled ids are.
    history: int `[K, M]`, row `k` equal iff the last `k + 1` steps of the transcript are.
    probability: float32 `[M]`, success probability of the question before this rollout
      (`posterior.probability`).
    gain: float32 `[M]`, nats that the answering agent gained by the message
      (`training.message_worth`); NaN where it was not measured.
    plain_gain: float32 `[M]`, nats that the author's plain note would gain; NaN likewise.
    plain_costs: float32 `[M]`, costs of the plain note, weights applied.
  """

  task: chex.Array
  costs: chex.Array
  groups: chex.Array
  question: chex.Array
  episode: chex.Array
  agent: chex.Array
  turn: chex.Array
  lengths: chex.Array | None = None
  silent: chex.Array | None = None
  roles: chex.Array | None = None
  observation: chex.Array | None = None
  path: chex.Array | None = None
  history: chex.Array | None = None
  probability: chex.Array | None = None
  gain: chex.Array | None = None
  plain_gain: chex.Array | None = None
  plain_costs: chex.Array | None = None

  @property
  def rewards(self) -> chex.Array:
    """`task - costs`, float32 `[M]`."""
    return self.task - self.costs


@chex.dataclass(frozen=True)
class Advantage:
  """Attributes:
  values: float32 `[M]`.
  kept: float32 `[M]`, 1, or 0 for a message that is dropped from the update (and from
    the count that the objective is divided by).
  """

  values: chex.Array
  kept: chex.Array
