"""The optimiser steps on one rollout: mini-batches, their order, spans and what they lead to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.algorithms.advantages.down_sampling import d3s_token_weights
from agent_gspo.algorithms.objectives import spans, turn_multipliers
from agent_gspo.packing import train_batches
from agent_gspo.teams.counts import Ledger
from agent_gspo.training.state import TrainState
from agent_gspo.training.update import Updater
from agent_gspo.types import Message, TrainBatch


@dataclasses.dataclass(frozen=True)
class Lesson:
  """What the messages of a rollout are trained with.

  Attributes:
    messages: `M`.
    ledger: their counts.
    advantages: float32 `[M]`.
    kept: bool `[M]`, those that are trained on at all.
    clip_scale: float32 `[M]`, factor of a message's own clip range.
  """

  messages: Sequence[Message]
  ledger: Ledger
  advantages: np.ndarray
  kept: np.ndarray
  clip_scale: np.ndarray


class Learner:
  """Cuts a lesson into mini-batches and takes an optimiser step on each.

  Args:
    config: resolved, of the run.
    updater: of the model, objective and optimiser.
    adapters: the adapter of each agent, None for one policy.
    trained: agents that learn, None for all.
  """

  def __init__(
    self,
    config: Mapping[str, Any],
    updater: Updater,
    adapters: Sequence[int] | None = None,
    trained: frozenset[int] | None = None,
  ):
    self.options, self.seed = config['learner'], config['seed']
    self.ratio_span = config['objective']['ratio_span']
    self.token_share = config['advantage']['token_share']
    self.updater = updater
    self._pack = functools.partial(
      train_batches.pack_messages,
      row_tokens=self.options['pack_length'],
      rows=self.options['micro_batch_size'],
      adapters=adapters,
      trained=trained,
    )

  def learn(
    self, state: TrainState, step: int, lesson: Lesson
  ) -> Iterator[tuple[TrainState, dict[str, float], list[TrainBatch]]]:
    """Yields the state, the metrics and the micro-batches after each mini-batch.

    Args:
      state: consumed.
      step: finished training steps, which the order of questions depends on.
      lesson: of the rollout.

    Raises:
      NonFiniteLossError: see `Updater.minibatch`.
    """
    backwards = self.options['order'] == 'reverse_turns'
    ledger = lesson.ledger
    ratio = np.ones(len(lesson.messages))  # new / old of the turns that were updated so far
    for part, batches in self._minibatches(state, step, lesson):
      advantages = lesson.advantages
      if backwards:
        advantages = advantages * turn_multipliers.seeupo_multipliers(
          ratio, ledger.episode, ledger.turn
        )
      batches = [
        b.replace(
          advantages=train_batches.by_slot(advantages[part], b),
          clip_scale=train_batches.by_slot(lesson.clip_scale[part], b),
        )
        for b in batches
      ]
      if self.token_share < 1:
        batches = self._with_token_weights(state, batches)
      if self.ratio_span != 'message':
        batches = self._with_spans(state, ledger, part, batches)
      state, metrics = self.updater.minibatch(state, batches)
      if backwards:
        total, tokens = self._log_ratios(state, batches, len(part))
        ratio[part] = np.exp(total / np.maximum(tokens, 1))
      yield state, metrics, batches

  def _minibatches(
    self, state: TrainState, step: int, lesson: Lesson
  ) -> list[tuple[np.ndarray, list[TrainBatch]]]:
    """Messages of each mini-batch and their packed rows, all packed before the first update."""
    found = []
    for part in self._parts(step, lesson):
      messages = [lesson.messages[m] for m in part]
      if batches := self._pack(messages, lesson.advantages[part]):
        found.append((part, batches))
    if self.options['old_logprobs'] == 'trainer':
      found = [(part, self.updater.score(state, batches)) for part, batches in found]
    return found

  def _parts(self, step: int, lesson: Lesson) -> Iterator[np.ndarray]:
    """Indices of the messages of each mini-batch: cut between questions, and between turns."""
    ledger = lesson.ledger
    questions = np.random.default_rng((self.seed, 2, step)).permutation(ledger.question.max() + 1)
    turns = [None]
    if self.options['order'] == 'reverse_turns':
      turns = np.unique(ledger.turn)[::-1]
    for turn in turns:
      inside = lesson.kept if turn is None else lesson.kept & (ledger.turn == turn)
      for some in np.array_split(questions, self.options['minibatches']):
        yield np.flatnonzero(inside & np.isin(ledger.question, some))

  def _with_spans(
    self, state: TrainState, ledger: Ledger, part: np.ndarray, batches: list[TrainBatch]
  ) -> list[TrainBatch]:
    """The batches with the ratio of each message's span under `state`."""
    total, tokens = self._log_ratios(state, batches, len(part))
    ids = spans.span_ids(self.ratio_span, ledger.episode[part], ledger.agent[part])
    log_ratio, share = spans.span_statistics(total, tokens, ids)
    return [
      b.replace(
        span_log_ratio=train_batches.by_slot(log_ratio, b),
        span_share=train_batches.by_slot(share, b),
      )
      for b in batches
    ]

  def _with_token_weights(self, state: TrainState, batches: list[TrainBatch]) -> list[TrainBatch]:
    """The batches with weights that choose the tokens of most signal under `state`.

    Of all tokens of the mini-batch: those of a micro-batch depend on how rows were cut.
    """
    mask, slot = (np.stack([b[k] for b in batches]) for k in ('loss_mask', 'loss_message'))
    advantages = np.stack([b.advantages for b in batches])
    row = np.arange(mask.shape[0] * mask.shape[1]).reshape(*mask.shape[:2], 1)
    weights = d3s_token_weights(
      advantages.reshape(-1),
      np.concatenate(self.updater.entropies(state, batches)).reshape(-1),
      (slot + advantages.shape[2] * row).reshape(-1),
      mask.reshape(-1),
      share=self.token_share,
    )
    weights = np.asarray(weights).reshape(mask.shape)
    return [b.replace(token_weights=w) for b, w in zip(batches, weights, strict=True)]

  def _log_ratios(
    self, state: TrainState, batches: list[TrainBatch], count: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Sum of `log pi - log pi_old` and tokens of each of `count` messages, float64 `[count]`."""
    total, tokens = np.zeros(count), np.zeros(count)
    scored = self.updater.score(state, batches)
    for new, old in zip(scored, batches, strict=True):
      difference = (new.old_logprobs - old.old_logprobs) * old.loss_mask
      message = np.take_along_axis(old.message, old.loss_message, axis=1)
      np.add.at(total, message, difference)
      np.add.at(tokens, message, old.loss_mask)
    return total, tokens
