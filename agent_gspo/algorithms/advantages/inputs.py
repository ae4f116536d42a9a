"""Defines inputs and outputs of advantage estimators."""

from __future__ import annotations

import chex
import numpy as np


@chex.dataclass(frozen=True)
class AdvantageInputs:
  """One entry per message, no padding; `M` messages, `K` lengths of history.

  Fields that default to None are read by some estimators only (see `advantages.fields_of`).

  Attributes:
    task: Task score credited to the message, float32 `[M]`.
    costs: Sum of all weighted costs, float32 `[M]`.
    groups: Group ids `0 .. M-1` for comparing rewards (`groups.group_ids`), int `[M]`.
    question, episode, agent, turn: int `[M]`; one message per episode, agent and turn.
    lengths: Sampled tokens, the stop token included (silence has 1), int `[M]`.
    silent: True if nothing was written, bool `[M]`.
    observation: Id, equal iff the prompt ids (the visible transcript) are equal, in an environment
      iff the author observes the same, int `[M]`.
    history: Ids, equal in row `k` iff the last `k + 1` transcript steps are equal, int `[K, M]`.
    probability: Success probability of the question before this rollout
      (`selection.probability`), float32 `[M]`.
    gain: Nats that the answering agent gained by the message (`training.message_worth`), float32
      `[M]`; NaN if not measured.
    plain_gain: Nats gained by the author's plain note instead, float32 `[M]`; NaN likewise.
    plain_costs: Weighted costs of the plain note, float32 `[M]`.
    gold: Whether the gold answer is known and could be learned in the message's place, bool `[M]`.
    role: Side of the author, without sides the author, int `[M]`.
    baselines: Running baseline of each of `S` roles before this rollout, float32 `[S]`.
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
  observation: chex.Array | None = None
  history: chex.Array | None = None
  probability: chex.Array | None = None
  gain: chex.Array | None = None
  plain_gain: chex.Array | None = None
  plain_costs: chex.Array | None = None
  gold: chex.Array | None = None
  role: chex.Array | None = None
  baselines: chex.Array | None = None

  @property
  def rewards(self) -> chex.Array:
    """Returns `task - costs`, float32 `[M]`."""
    return self.task - self.costs


@chex.dataclass(frozen=True)
class Advantage:
  """Attributes:
  values: Advantages, float32 `[M]`.
  kept: 1, or 0 for a message dropped from the update and from the objective's count, float32
    `[M]`.
  baselines: Running baseline of each role after the rollout, float32 `[S]`; None without any.
  """

  values: np.ndarray
  kept: np.ndarray
  baselines: np.ndarray | None = None
