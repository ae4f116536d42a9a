"""Splits a rollout into mini-batches and takes an optimizer step on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from agent_gspo.algorithms.advantages.down_sampling import d3s_token_weights
from agent_gspo.algorithms.objectives import spans
from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.packing import train_batches
from agent_gspo.plugins import PluginError, is_plugin
from agent_gspo.teams.counts import MessageCounts
from agent_gspo.training.advantages import MessageAdvantages
from agent_gspo.training.programs import NonFiniteLossError, Programs, UncountedLossError
from agent_gspo.training.progress import Progress
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import Question, TrainBatch


@dataclasses.dataclass(frozen=True)
class Minibatch:
  """The `m` messages of one optimizer step.

  Attributes:
    index: Indices into the `M` messages of the rollout, int `[m]`.
    turn: Turn of all messages; None if the order does not split by turn.
    question_ids: Ids of the questions of the messages.
    micro_batches: The messages in packed rows of one shape `[R, T]`.
  """

  index: np.ndarray
  turn: int | None
  question_ids: tuple[str, ...]
  micro_batches: Sequence[TrainBatch]


def pack_minibatches(
  setup: Setup,
  state: TrainState,
  questions: Sequence[Question],
  counts: MessageCounts,
  advantages: MessageAdvantages,
) -> list[Minibatch]:
  """Returns the non-empty mini-batches of a rollout in training order.

  The list is empty if every message was dropped: ngrpo drops groups that are all correct.

  Args:
    setup: Run setup, with the number and order of mini-batches and the packed row length.
    state: Training state; its step seeds the order of questions.
    questions: Of the rollout.
    counts: Message counts.
    advantages: What is learned of the `M` messages.
  """
  options, step = setup.config.learner, int(state.step)
  minibatches = []
  for turn, index in _indices(setup, step, counts, advantages.kept):  # index: int [m]
    # Each micro-batch: R = micro_batch_size rows of T = pack_length tokens, [R, T].
    micro_batches = train_batches.pack_messages(
      [advantages.messages[m] for m in index],
      pack_length=options.pack_length,
      micro_batch_size=options.micro_batch_size,
      adapters=setup.sharing.adapters,
      trained=setup.sharing.trained,
    )
    if micro_batches:
      asked = dict.fromkeys(questions[q].id for q in counts.question[index])
      minibatches.append(Minibatch(index, turn, tuple(asked), micro_batches))
  return minibatches


def update_on_minibatches(
  setup: Setup,
  programs: Programs,
  state: TrainState,
  minibatches: Sequence[Minibatch],
  counts: MessageCounts,
  advantages: MessageAdvantages,
  progress: Progress,
) -> tuple[TrainState, list[dict[str, float]]]:
  """Takes one optimizer step on each mini-batch.

  Args:
    setup: Run setup, with the old log-probs, ratio spans and token weights to use.
    programs: Compiled programs.
    state: Training state; its trainable buffers are donated.
    minibatches: Mini-batches in training order; without any the state is unchanged.
    counts: Counts of the `M` messages of the rollout.
    advantages: Advantages of the messages.
    progress: Display, updated after each optimizer step.

  Returns:
    The state after the last step, and the metrics of each step.

  Raises:
    NonFiniteLossError: Non-finite loss; names the mini-batch, the step and the questions.
    PluginError: A custom objective returned no count.
  """
  config, found = setup.config, []
  name = config.objective.name
  order = ORDERS[config.learner.order]
  progress.phase('update', 0, len(minibatches))
  minibatches = [_with_old_logprobs(setup, programs, state, m) for m in minibatches]
  ratio = np.ones(len(counts.episode))  # [M] pi_new / pi_old, 1 for turns not yet finished
  values = advantages.values  # [M]
  turn: int | None = None  # of the previous mini-batch
  for number, minibatch in enumerate(minibatches, 1):
    if order.multipliers and minibatch.turn != turn:
      # Only once a turn is finished: each of its steps also changes the other mini-batches' ratios.
      for over in (m for m in minibatches if m.turn == turn):
        # total, tokens: float64 [m]
        total, tokens = _log_ratios(programs, state, over.micro_batches, len(over.index))
        ratio[over.index] = np.exp(total / np.maximum(tokens, 1))
      values = advantages.values * order.multipliers(ratio, counts.episode, counts.turn)
      turn = minibatch.turn
    micro_batches = train_batches.with_values(
      minibatch.micro_batches,
      advantages=values[minibatch.index],
      clip_scale=advantages.clip_scale[minibatch.index],
    )
    if config.advantage.token_share < 1:
      share = config.advantage.token_share
      micro_batches = _with_token_weights(programs, state, micro_batches, share)
    if config.objective.ratio_span != 'message':
      ids = spans.span_ids(
        config.objective.ratio_span,
        counts.episode[minibatch.index],
        counts.agent[minibatch.index],
      )
      micro_batches = _with_spans(programs, state, micro_batches, ids)
    try:
      state, metrics = programs.optimizer_step(state, micro_batches)
    except UncountedLossError as error:
      raise PluginError(
        f'objective.name={name!r} returned {error}; must return a count above 0.'
      ) from None
    except NonFiniteLossError as error:
      own = f'Mend objective.name={name!r}, if it is that, or lower' if is_plugin(name) else 'Lower'
      raise NonFiniteLossError(
        f'{error} in mini-batch {number} of {len(minibatches)} of step {int(state.step) + 1}, '
        f'questions {", ".join(minibatch.question_ids)}. {own} '
        f'{config.policy.rate_field} or look at these questions.'
      ) from None
    found.append(metrics)
    progress.phase('update', number, len(minibatches))
  return state, found


def _indices(
  setup: Setup, step: int, counts: MessageCounts, kept: np.ndarray
) -> Iterator[tuple[int | None, np.ndarray]]:
  """Yields turn and message indices `[m]` of each mini-batch, split by question, maybe by turn."""
  options = setup.config.learner
  rng = np.random.default_rng((setup.config.seed, 2, step))
  questions = rng.permutation(counts.question.max() + 1)
  by_turn = ORDERS[options.order].by_turn
  for turn in np.unique(counts.turn)[::-1].tolist() if by_turn else [None]:
    of_turn = kept if turn is None else kept & (counts.turn == turn)
    for some in np.array_split(questions, options.minibatches):
      yield turn, np.flatnonzero(of_turn & np.isin(counts.question, some))


def _with_old_logprobs(
  setup: Setup, programs: Programs, state: TrainState, minibatch: Minibatch
) -> Minibatch:
  """Replaces the sampler's old log-probs by the trainer's, if configured."""
  if setup.config.learner.old_logprobs == 'sampler':  # as packed
    return minibatch
  scored = programs.logprobs(state, minibatch.micro_batches)
  micro_batches = train_batches.with_old_logprobs(minibatch.micro_batches, scored)
  return dataclasses.replace(minibatch, micro_batches=micro_batches)


def _with_spans(
  programs: Programs,
  state: TrainState,
  micro_batches: Sequence[TrainBatch],
  span_ids: np.ndarray,
) -> list[TrainBatch]:
  """Adds the ratio of each message's span to micro-batches; `span_ids` is int `[m]`."""
  total, tokens = _log_ratios(programs, state, micro_batches, len(span_ids))
  log_ratio, share = spans.span_statistics(total, tokens, span_ids)
  return train_batches.with_values(micro_batches, span_log_ratio=log_ratio, span_share=share)


def _with_token_weights(
  programs: Programs, state: TrainState, micro_batches: Sequence[TrainBatch], share: float
) -> list[TrainBatch]:
  """Adds weights that select the `share` of tokens with most signal.

  Selects over the whole mini-batch, so that the result does not depend on micro-batch borders.
  """
  # N micro-batches of R rows, L loss tokens and S message slots a row.
  mask = np.stack([b.loss_mask for b in micro_batches])  # [N, R, L]
  slot = np.stack([b.loss_message for b in micro_batches])  # [N, R, L], slot of each loss token
  advantages = np.stack([b.advantages for b in micro_batches])  # [N, R, S]
  row = np.arange(mask.shape[0] * mask.shape[1]).reshape(*mask.shape[:2], 1)  # [N, R, 1]
  weights = d3s_token_weights(
    advantages.reshape(-1),
    np.concatenate(programs.entropies(state, micro_batches)).reshape(-1),
    (slot + advantages.shape[2] * row).reshape(-1),
    mask.reshape(-1),
    share=share,
  )
  chosen = np.asarray(weights).reshape(mask.shape)
  return [
    dataclasses.replace(b, token_weights=w) for b, w in zip(micro_batches, chosen, strict=True)
  ]


def _log_ratios(
  programs: Programs, state: TrainState, micro_batches: Sequence[TrainBatch], count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the sum of `log pi - log pi_old` and the tokens per message, float64 `[count]` each."""
  scored = programs.logprobs(state, micro_batches)
  changes = [new - b.old_logprobs for new, b in zip(scored, micro_batches, strict=True)]
  total = train_batches.message_sums(micro_batches, changes, count)
  tokens = train_batches.message_sums(
    micro_batches, [np.asarray(b.loss_mask) for b in micro_batches], count
  )
  return total, tokens
