"""Computes the advantages of a rollout's messages under the config's estimator."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from agent_gspo.algorithms import selection
from agent_gspo.algorithms.advantages import estimators, groups
from agent_gspo.algorithms.advantages.inputs import AdvantageInputs
from agent_gspo.config import Config
from agent_gspo.rewards.communication import RewardTerms
from agent_gspo.teams.counts import MessageCounts
from agent_gspo.training.collect import CollectedRollout
from agent_gspo.training.message_worth import MessageWorth
from agent_gspo.types import Message, RolloutBatch

# Longest history that is compared (HGPO's K).
HISTORY = 3


@dataclasses.dataclass(frozen=True)
class MessageAdvantages:
  """Advantages of the `M` messages of a rollout.

  Attributes:
    messages: What is learned with these advantages: the messages of the rollout, or gold answers
      in the place of the answering agent's.
    values: Advantages, float32 `[M]`.
    kept: Messages that are trained on at all, bool `[M]`.
    tied_groups: Share of groups without task-score variance.
  """

  messages: Sequence[Message]
  values: np.ndarray
  kept: np.ndarray
  tied_groups: float


def message_advantages(
  config: Config,
  rollout: CollectedRollout,
  counts: MessageCounts,
  rewards: RewardTerms,
  worth: MessageWorth | None = None,
) -> MessageAdvantages:
  """Returns the advantages of `M` messages under the config's estimator.

  Args:
    config: Resolved run configuration.
    rollout: Collected episodes.
    counts: Message counts, `M` messages.
    rewards: Reward terms of each message.
    worth: Gains of each message, for estimators that read them.
  """
  options = config.advantage
  inputs = estimator_inputs(
    rollout.batch,
    counts,
    rewards,
    grouping=options.grouping,
    probability=np.asarray(selection.probability(rollout.selection.posterior))[
      rollout.question_index
    ],
  )
  messages = rollout.batch.messages
  if worth is not None:
    fields = ('gain', 'plain_gain', 'plain_costs')
    gold = np.isin(np.arange(len(messages)), [*worth.gold])
    inputs = dataclasses.replace(
      inputs, gold=gold, **{field: getattr(worth, field) for field in fields}
    )
    known = {**estimators.options_of(options.name), **options.options}
    if known.get('imitation'):
      messages = tuple(worth.gold.get(m, message) for m, message in enumerate(messages))
  found = estimators.advantage(
    inputs,
    options.name,
    costs=options.costs,
    **options.options,
  )
  return MessageAdvantages(
    messages=messages,
    values=np.asarray(found.values),
    kept=np.asarray(found.kept) > 0,
    tied_groups=groups.tied_groups(rewards.task, inputs.groups),
  )


def estimator_inputs(
  batch: RolloutBatch,
  counts: MessageCounts,
  rewards: RewardTerms,
  *,
  grouping: str,
  probability: np.ndarray,
) -> AdvantageInputs:
  """Returns the inputs of estimators, one entry per message.

  Args:
    batch: Episodes about `B` questions.
    counts: Message counts, `M` messages.
    rewards: Reward terms of each message.
    grouping: Rule by which rewards are compared, see `groups.group_ids`.
    probability: Success probability of each question before this rollout, float `[B]`.
  """
  observation, history = _what_was_seen(batch)
  return AdvantageInputs(
    task=rewards.task,
    costs=rewards.costs,
    groups=groups.group_ids(grouping, counts.question, counts.agent, counts.turn),
    question=counts.question,
    episode=counts.episode,
    agent=counts.agent,
    turn=counts.turn,
    lengths=np.asarray([int(m.sampled.sum()) for m in batch.messages]),
    silent=counts.silent,
    observation=observation,
    history=history,
    probability=np.asarray(probability, np.float32)[counts.question],
  )


def _what_was_seen(batch: RolloutBatch) -> tuple[np.ndarray, np.ndarray]:
  """Returns ids of equal observations `[M]` and of equal histories `[K, M]`.

  A step of an agent's history is a message that it wrote, a text of the environment, or the tokens
  of a teammate's message that its prompt shows: none where that message was silent or addressed to
  others. In an environment an observation takes the place of the prompt.
  """
  said = {(m.episode, m.agent, m.round): m for m in batch.messages}
  steps: dict[tuple[int, int], list[Hashable]] = {}
  histories: list[list[Hashable]] = [[] for _ in range(HISTORY)]
  for m in batch.messages:
    own = steps.setdefault((m.episode, m.agent), [])
    for author, round_ in m.read_from:
      heard = said[m.episode, author, round_]
      handed = heard.said if heard.reaches(m.agent) else heard.said[:0]
      own.append((author, handed.tobytes()))
    own += m.told
    for k in range(HISTORY):
      histories[k].append((m.agent, *own[-(k + 1) :]))
    own.append((m.agent, m.token_ids.tobytes()))
  seen = [m.prompt_ids.tobytes() if m.reward is None else (m.agent, m.told) for m in batch.messages]
  return _ids(seen), np.stack([_ids(h) for h in histories])


def _ids(values: Iterable[Hashable]) -> np.ndarray:
  """Returns int64 `[n]`: equal ids for equal values, in order of first occurrence."""
  numbers: dict[Hashable, int] = {}
  return np.asarray([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
