"""The optimiser steps on the mini-batches of one rollout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from agent_gspo.algorithms.advantages.down_sampling import d3s_token_weights
from agent_gspo.algorithms.objectives import spans
from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.packing import train_batches
from agent_gspo.reporting.progress import Progress
from agent_gspo.teams.counts import MessageCounts
from agent_gspo.training.advantages import MessageAdvantages
from agent_gspo.training.minibatches import Minibatch
from agent_gspo.training.programs import NonFiniteLossError, Programs
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import TrainBatch


def update(
  setup: Setup,
  programs: Programs,
  state: TrainState,
  minibatches: Sequence[Minibatch],
  counts: MessageCounts,
  advantages: MessageAdvantages,
  progress: Progress,
) -> tuple[TrainState, list[dict[str, float]]]:
  """One optimiser step on each mini-batch.

  Args:
    setup: says where ratios begin, what a sequence is and which tokens count.
    programs: the compiled parts.
    state: before; what is trained of it is consumed.
    minibatches: in the order in which they are trained.
    counts: of the `M` messages of the rollout.
    advantages: of the messages.
    progress: is told of each optimiser step.

  Returns:
    The state after the last step, and the metrics of each.

  Raises:
    NonFiniteLossError: names the mini-batch, the step and the questions.
  """
  config, found = setup.config, []
  order = ORDERS[config['learner']['order']]
  progress.phase('update', 0, len(minibatches))
  old_logprobs = [_old_logprobs(setup, programs, state, m.micro_batches) for m in minibatches]
  ratio = np.ones(len(counts.episode))  # new / old of the messages that were updated so far
  for number, (minibatch, old) in enumerate(zip(minibatches, old_logprobs, strict=True), 1):
    values = advantages.values
    if order.multipliers:
      values = values * order.multipliers(ratio, counts.episode, counts.turn)
    micro_batches = train_batches.with_values(
      train_batches.with_old_logprobs(minibatch.micro_batches, old),
      advantages=values[minibatch.index],
      clip_scale=advantages.clip_scale[minibatch.index],
    )
    if config['advantage']['token_share'] < 1:
      share = config['advantage']['token_share']
      micro_batches = _with_token_weights(programs, state, micro_batches, share)
    if config['objective']['ratio_span'] != 'message':
      ids = spans.span_ids(
        config['objective']['ratio_span'],
        counts.episode[minibatch.index],
        counts.agent[minibatch.index],
      )
      micro_batches = _with_spans(programs, state, micro_batches, ids)
    try:
      state, metrics = programs.optimizer_step(state, micro_batches)
    except NonFiniteLossError as error:
      raise NonFiniteLossError(
        f'{error} in mini-batch {number} of {len(minibatches)} of step {int(state.step) + 1}, '
        f'questions {", ".join(minibatch.question_ids)}. Lower learner.learning_rate or look at '
        'these questions.'
      ) from None
    if order.multipliers:
      total, tokens = _log_ratios(programs, state, micro_batches, len(minibatch.index))
      ratio[minibatch.index] = np.exp(total / np.maximum(tokens, 1))
    found.append(metrics)
    progress.phase('update', number, len(minibatches))
  return state, found


def _old_logprobs(
  setup: Setup, programs: Programs, state: TrainState, micro_batches: Sequence[TrainBatch]
) -> list[np.ndarray]:
  """What ratios begin with, float32 `[R, L]` a micro-batch: the sampler's or the trainer's own."""
  if setup.config['learner']['old_logprobs'] == 'trainer':
    return programs.logprobs(state, micro_batches)
  return [np.asarray(batch.sampler_logprobs) for batch in micro_batches]


def _with_spans(
  programs: Programs,
  state: TrainState,
  micro_batches: Sequence[TrainBatch],
  span_ids: np.ndarray,
) -> list[TrainBatch]:
  """The micro-batches with the ratio of each message's span, `span_ids` int `[m]`."""
  total, tokens = _log_ratios(programs, state, micro_batches, len(span_ids))
  log_ratio, share = spans.span_statistics(total, tokens, span_ids)
  return train_batches.with_values(micro_batches, span_log_ratio=log_ratio, span_share=share)


def _with_token_weights(
  programs: Programs, state: TrainState, micro_batches: Sequence[TrainBatch], share: float
) -> list[TrainBatch]:
  """The micro-batches with weights that choose the `share` of tokens of most signal.

  Of all tokens of the mini-batch: those of a micro-batch depend on how rows were cut.
  """
  mask = np.stack([b.loss_mask for b in micro_batches])
  slot = np.stack([b.loss_message for b in micro_batches])
  advantages = np.stack([b.advantages for b in micro_batches])
  row = np.arange(mask.shape[0] * mask.shape[1]).reshape(*mask.shape[:2], 1)
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
  """Sum of `log pi - log pi_old` and tokens of each of `count` messages, float64 `[count]`."""
  total, tokens = np.zeros(count), np.zeros(count)
  for new, b in zip(programs.logprobs(state, micro_batches), micro_batches, strict=True):
    message = np.take_along_axis(np.asarray(b.message), np.asarray(b.loss_message), axis=1)
    np.add.at(total, message, (new - b.old_logprobs) * b.loss_mask)
    np.add.at(tokens, message, b.loss_mask)
  return total, tokens
