"""Learns from messages: packs them into mini-batches, scores them and updates the policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from agent_gspo import streams
from agent_gspo.algorithms.advantages.inputs import Advantage
from agent_gspo.algorithms.objectives import spans
from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.config import Config
from agent_gspo.packing import train_batches
from agent_gspo.plugins import PluginError, is_plugin
from agent_gspo.teams.sharing import Sharing
from agent_gspo.training import host_memory
from agent_gspo.training import state as state_lib
from agent_gspo.training.policy_loss import (
  NonFiniteLossError,
  PolicyParams,
  Programs,
  UncountedLossError,
)
from agent_gspo.training.progress import Progress
from agent_gspo.training.state import TrainState
from agent_gspo.types import Message, RolloutBatch, TrainBatch

Minibatch = Sequence[TrainBatch]
"""Micro-batches of one optimizer step, packed rows of one shape `[R, T]`."""


@dataclasses.dataclass(frozen=True)
class Learner:
  """Packs messages, scores them and updates a state that is passed in.

  Attributes:
    programs: Compiled programs of the policy.
    config: Resolved run configuration: row shape, mini-batches, objective.
    sharing: Adapter of each agent, and the agents that are trained.
    name: Name of the model in the state, see `Team.trained`; '' for that of `model.source`.
    others: Learners of the other models that learn.
    frozen_answers: Scores gold answers, see `score`, by the frozen model of the answering agent;
      None if that agent's model learns.
  """

  programs: Programs
  config: Config
  sharing: Sharing
  name: str = ''
  others: Sequence[Learner] = ()
  frozen_answers: Callable[[Sequence[Message]], list[np.ndarray]] | None = None

  @property
  def models(self) -> tuple[Learner, ...]:
    """Returns the learner of each model."""
    return (self, *self.others)

  def author(self, agent: int) -> Learner:
    """Returns the learner of the model that writes for an agent, which must learn."""
    return next((one for one in self.others if agent in (one.sharing.trained or ())), self)

  def rows(
    self,
    messages: Sequence[Message],
    index: Collection[int] | None = None,
    *,
    train: bool = True,
  ) -> list[TrainBatch]:
    """Packs messages into micro-batches `[R, T]`, see `train_batches.pack_messages`.

    Args:
      messages: Messages; shared prompts are computed once.
      index: Indices of the messages to pack, by default all.
      train: Leave out the messages of agents that are not trained.
    """
    return train_batches.pack_messages(
      messages,
      index,
      pack_length=self.config.learner.pack_length,
      micro_batch_size=self.config.learner.micro_batch_size,
      adapters=self.sharing.adapters,
      trained=self.sharing.trained if train else None,
    )

  def score(
    self,
    policy: TrainState | PolicyParams,
    messages: Sequence[Message],
    any_of: Sequence[int] = (),
  ) -> list[np.ndarray]:
    """Returns log-probs of each message's sampled tokens, `M` float64 arrays, nats.

    The ids `any_of` count as one token: each has their total probability.
    """
    if not messages:
      return []
    micro_batches = self.rows(messages, train=False)
    if any_of:
      ids = np.tile(np.asarray(any_of, np.int32), (self.config.learner.micro_batch_size, 1))
      micro_batches = [dataclasses.replace(b, loss_any=ids) for b in micro_batches]
    scored = [x.astype(np.float64) for x in self.programs.logprobs(policy, micro_batches)]
    return train_batches.message_tokens(micro_batches, scored, len(messages))

  def score_authors(
    self,
    policy: Callable[[str], TrainState | PolicyParams],
    messages: Sequence[Message],
    any_of: Sequence[int] = (),
  ) -> list[np.ndarray]:
    """Returns `score` of each message by the model that wrote it, which must learn.

    Args:
      policy: Maps the name of a model in the state to the parameters that score.
      messages: `M` messages.
      any_of: See `score`.
    """
    found = dict[int, np.ndarray]()
    for one in self.models:
      own = [i for i, m in enumerate(messages) if self.author(m.agent) is one]
      scored = one.score(policy(one.name), [messages[i] for i in own], any_of)
      found |= zip(own, scored, strict=True)
    return [found[i] for i in range(len(messages))]

  def pack(self, rollout: RolloutBatch, advantages: Advantage, step: int) -> list[Minibatch]:
    """Returns the non-empty mini-batches of a rollout in training order.

    The list is empty if every message was dropped: ngrpo drops groups that are all correct.

    Args:
      rollout: Messages to learn from, `M`.
      advantages: Advantages of the messages, and which of them are kept.
      step: Finished training steps; seeds the order of questions.
    """
    indices = self._indices(rollout, advantages.kept > 0, step)  # int [m] each
    packed = [self.rows(rollout.messages, index) for index in indices]
    values = advantages.values  # [M]
    return [train_batches.with_values(x, advantages=values) for x in packed if x]

  def update(
    self,
    state: TrainState,
    minibatches: Sequence[Minibatch],
    rollout: RolloutBatch,
    progress: Progress,
  ) -> tuple[TrainState, list[dict[str, float]]]:
    """Takes one optimizer step of the model on each mini-batch.

    Args:
      state: Training state; the model's trainable buffers are donated.
      minibatches: Mini-batches in training order; without any the state is unchanged.
      rollout: `M` messages.
      progress: Display, updated after each optimizer step.

    Returns:
      The state after the last step, and the metrics of each step.

    Raises:
      NonFiniteLossError: Non-finite loss; names the mini-batch, the step and the questions.
      PluginError: A custom objective returned no count.
    """
    found, team, state = [], state, state_lib.of_model(state, self.name)
    multipliers = ORDERS[self.config.learner.order].multipliers
    progress.phase('update', 0, len(minibatches))
    if self.config.learner.old_logprobs == 'trainer':  # else the sampler's, as packed
      scored = self.programs.scored
      minibatches = [train_batches.with_old_logprobs(x, scored(state, x)) for x in minibatches]
    ratio = np.ones(len(rollout.episode))  # [M] pi_new / pi_old, 1 for turns not yet finished
    factors = ratio.astype(np.float32)  # [M] of the advantages
    turn, of_turn = -1, list[Minibatch]()  # the turn being trained, and its mini-batches so far
    for number, minibatch in enumerate(minibatches, 1):
      host_memory.give_back()
      micro_batches = minibatch
      if multipliers:
        first = train_batches.messages_in(minibatch)[0]
        if rollout.turn[first] != turn:
          # After the whole turn: each step changes the ratios of its other mini-batches.
          for over in of_turn:
            total, tokens = self._log_ratios(state, over, len(ratio))  # float64 [M]
            packed = tokens > 0
            ratio[packed] = np.exp(total[packed] / tokens[packed])
          factors = multipliers(ratio, rollout.episode, rollout.turn)
          turn, of_turn = int(rollout.turn[first]), []
        of_turn.append(minibatch)
        micro_batches = train_batches.with_factors(minibatch, factors)
      if self.config.objective.ratio_span != 'message':
        micro_batches = self._with_spans(state, micro_batches, rollout)
      try:
        state, metrics = self.programs.optimizer_step(state, micro_batches)
      except (UncountedLossError, NonFiniteLossError) as error:
        asked = dict.fromkeys(rollout.question[train_batches.messages_in(minibatch)].tolist())
        where = (
          f'mini-batch {number} of {len(minibatches)} of step {int(state.step) + 1}, '
          f'{f"model of {self.name}, " * bool(self.name)}'
          f'questions {", ".join(rollout.questions[q].id for q in asked)}'
        )
        raise self._explained(error, where) from None
      found.append(metrics)
      progress.phase('update', number, len(minibatches))
    return state_lib.with_model(team, self.name, state), found

  def _explained(self, error: Exception, where: str) -> Exception:
    """Returns the error of an optimizer step with its place and a remedy."""
    name = self.config.objective.name
    if isinstance(error, UncountedLossError):
      return PluginError(f'objective.name={name!r} returned {error}; must return a count above 0.')
    own = f'Fix objective.name={name!r}, lower' if is_plugin(name) else 'Lower'
    return NonFiniteLossError(
      f'{error} in {where}. {own} {self.config.policy.rate_field} or inspect these questions.'
    )

  def _indices(self, rollout: RolloutBatch, kept: np.ndarray, step: int) -> Iterator[np.ndarray]:
    """Yields the messages of each mini-batch, int `[m]`: split by question, maybe by turn."""
    options = self.config.learner
    rng = streams.generator(self.config.seed, streams.MINIBATCH_ORDER, step)
    questions = rng.permutation(np.unique(rollout.question))
    by_turn = ORDERS[options.order].by_turn
    for turn in np.unique(rollout.turn)[::-1].tolist() if by_turn else [None]:
      of_turn = kept if turn is None else kept & (rollout.turn == turn)
      for some in np.array_split(questions, options.minibatches):
        yield np.flatnonzero(of_turn & np.isin(rollout.question, some))

  def _with_spans(
    self, state: TrainState, micro_batches: Minibatch, rollout: RolloutBatch
  ) -> list[TrainBatch]:
    """Adds the ratio of each message's span."""
    span = self.config.objective.ratio_span
    span_ids = spans.span_ids(span, rollout.episode, rollout.agent)  # [M]
    total, tokens = self._log_ratios(state, micro_batches, len(span_ids))
    log_ratio, share = spans.span_statistics(total, tokens, span_ids)
    return train_batches.with_values(micro_batches, span_log_ratio=log_ratio, span_share=share)

  def _log_ratios(
    self, state: TrainState, micro_batches: Minibatch, count: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns sums of `log pi - log pi_old`, and tokens, per message: float64 `[count]` each."""
    scored = self.programs.logprobs(state, micro_batches)
    changes = [new - b.old_logprobs for new, b in zip(scored, micro_batches, strict=True)]
    total = train_batches.message_sums(micro_batches, changes, count)
    tokens = train_batches.message_sums(
      micro_batches, [np.asarray(b.loss_mask) for b in micro_batches], count
    )
    return total, tokens


def reference_nll(learner: Learner, state: TrainState, batch: RolloutBatch) -> np.ndarray:
  """Returns the highest mean NLL of an episode's messages under the reference policy.

  This is the readability term of Optima (arXiv 2410.08115). Leaves out silent messages,
  and those of opponents and frozen models.

  Returns:
    float64 `[E]`, nats per token; infinite for an episode without others.
  """

  def first(name: str) -> PolicyParams:
    own = state_lib.of_model(state, name)
    return PolicyParams(own.reference, own.frozen)

  said = [m for m in batch.messages if not m.silent and m.learns]
  mean = [-x.sum() / len(x) for x in learner.score_authors(first, said)]
  highest = np.full(batch.num_episodes, -np.inf)
  np.maximum.at(highest, np.asarray([m.episode for m in said], int), np.asarray(mean, float))
  return np.where(np.isneginf(highest), np.inf, np.maximum(highest, 0.0))
