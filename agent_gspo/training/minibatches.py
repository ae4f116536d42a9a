"""Which messages share an optimiser step, in what order, packed into rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.packing import train_batches
from agent_gspo.teams.counts import MessageCounts
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import RolloutBatch, TrainBatch


@dataclasses.dataclass(frozen=True)
class Minibatch:
  """The messages of one optimiser step.

  Attributes:
    index: int `[m]`, which of the `M` messages of the rollout they are.
    question_ids: of the questions that they are about.
    micro_batches: the messages in packed rows of one shape.
  """

  index: np.ndarray
  question_ids: tuple[str, ...]
  micro_batches: Sequence[TrainBatch]


def pack_minibatches(
  setup: Setup,
  state: TrainState,
  batch: RolloutBatch,
  counts: MessageCounts,
  kept: np.ndarray,
) -> list[Minibatch]:
  """All mini-batches of a rollout in the order in which they are trained; none without a token.

  Args:
    setup: says how many there are, in which order, and how wide a packed row is.
    state: whose step the order of questions depends on.
    batch: the conversations, `M` messages.
    counts: of the messages.
    kept: bool `[M]`, messages that are trained on at all.

  Raises:
    ValueError: no message is left to learn from.
  """
  options, step = setup.config['learner'], int(state.step)
  minibatches = []
  for index in _indices(setup, step, counts, kept):
    micro_batches = train_batches.pack_messages(
      [batch.messages[m] for m in index],
      pack_length=options['pack_length'],
      micro_batch_size=options['micro_batch_size'],
      adapters=setup.sharing.adapters,
      trained=setup.sharing.trained,
    )
    if micro_batches:
      asked = dict.fromkeys(batch.questions[q].id for q in counts.question[index])
      minibatches.append(Minibatch(index, tuple(asked), micro_batches))
  if not minibatches:
    raise ValueError(
      f'step {step + 1}: no message is left to learn from (advantage.name='
      f'{setup.config["advantage"]["name"]!r} dropped all). Use another or more rollout.group_size.'
    )
  return minibatches


def _indices(
  setup: Setup, step: int, counts: MessageCounts, kept: np.ndarray
) -> Iterator[np.ndarray]:
  """Messages of each mini-batch: cut between questions, and between turns if the order says so."""
  options = setup.config['learner']
  rng = np.random.default_rng((setup.config['seed'], 2, step))
  questions = rng.permutation(counts.question.max() + 1)
  turns = np.unique(counts.turn)[::-1] if ORDERS[options['order']].by_turn else [counts.turn]
  for turn in turns:
    for some in np.array_split(questions, options['minibatches']):
      yield np.flatnonzero(kept & (counts.turn == turn) & np.isin(counts.question, some))
