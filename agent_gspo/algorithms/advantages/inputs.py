"""Defines inputs and outputs of advantage estimators."""

from __future__ import annotations

import chex
import numpy as np

from agent_gspo.algorithms.advantages import groups as group_lib


@chex.dataclass(frozen=True)
class AdvantageInputs:
  """Inputs of an estimator, unpadded; `M` messages, `K` lengths of history.

  Fields that default to None are read by some estimators only (see `advantages.fields_of`).

  Attributes:
    task: Task score credited to the message, float32 `[M]`.
    costs: Sum of all weighted costs, float32 `[M]`.
    groups: Group ids `0 .. M-1` for comparing rewards (`groups.group_ids`), int `[M]`.
    question, episode, agent, turn: int `[M]`; one message per episode, agent and turn, or
      `rollout.branches` candidates.
    lengths: Sampled tokens, the stop token included (silence has 1), int `[M]`.
    silent: True if nothing was written, bool `[M]`.
    observation: Id, equal iff the prompt ids (the visible transcript) are equal, in an environment
      iff the author observes the same, int `[M]`.
    history: Ids, equal in row `k` iff the last `k + 1` transcript steps are equal, int `[K, M]`.
    reward: Environment reward of the message alone, float32 `[M]`; in an episode without rewards,
      the task score for each author's last message. None without an environment.
    taken: False for a candidate that the episode discards (`rollout.branches`), bool `[M]`.
    probability: Success probability of the question before this rollout
      (`selection.probability`), float32 `[M]`.
    gain: Nats that the answering agent gained by the message (`training.message_worth`), float32
      `[M]`; NaN if not measured.
    plain_gain: Nats gained by the author's plain note instead, float32 `[M]`; NaN likewise.
    plain_costs: Weighted costs of the plain note, float32 `[M]`.
    silence_costs: Weighted costs of silence in the message's place, float32 `[M]`.
    gold: True where the gold answer can be the training target in the message's place, bool `[M]`.
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
  reward: chex.Array | None = None
  taken: chex.Array | None = None
  probability: chex.Array | None = None
  gain: chex.Array | None = None
  plain_gain: chex.Array | None = None
  plain_costs: chex.Array | None = None
  silence_costs: chex.Array | None = None
  gold: chex.Array | None = None
  role: chex.Array | None = None
  baselines: chex.Array | None = None

  @property
  def rewards(self) -> chex.Array:
    """Returns `task - costs`, float32 `[M]`."""
    return self.task - self.costs

  @property
  def own_rewards(self) -> chex.Array:
    """Returns what each message alone earned minus `costs`, float32 `[M]`.

    Without an environment the author's last message earns the task score.
    """
    if self.reward is not None:
      return self.reward - self.costs
    left = group_lib.to_go(np.ones(len(self.task)), self._authors, self.turn)
    return np.where(left == 1, self.task, np.float32(0)) - self.costs

  @property
  def episode_rewards(self) -> chex.Array:
    """Returns what the author earned in the whole episode minus `costs`, float32 `[M]`."""
    if self.reward is None:
      return self.rewards
    return group_lib.total(self.reward, self._authors) - self.costs

  @property
  def _authors(self) -> np.ndarray:
    return group_lib.joint_ids(self.episode, self.agent)


@chex.dataclass(frozen=True)
class Advantage:
  """Advantages of a rollout's messages.

  Attributes:
    values: Advantages, float32 `[M]`.
    kept: 1, or 0 for a message dropped from the update and from the objective's count, float32
      `[M]`.
    baselines: Running baseline of each role after the rollout, float32 `[S]`; None for those before
      it, if there are any.
  """

  values: np.ndarray
  kept: np.ndarray
  baselines: np.ndarray | None = None
