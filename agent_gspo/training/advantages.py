"""Advantages of the messages of a rollout: what the estimator reads, and what it says."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from agent_gspo.algorithms.advantages import estimators, groups
from agent_gspo.algorithms.advantages.inputs import AdvantageInputs
from agent_gspo.algorithms.objectives.trust_region import CLIP_SCALES
from agent_gspo.algorithms.selection import posterior
from agent_gspo.rewards.communication import RewardTerms
from agent_gspo.teams.counts import MessageCounts
from agent_gspo.training.collect import CollectedRollout
from agent_gspo.training.message_worth import MessageWorth
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import RolloutBatch

# Longest history that is compared (HGPO's K).
HISTORY = 3


@dataclasses.dataclass(frozen=True)
class MessageAdvantages:
  """What each message of a rollout is trained with.

  Attributes:
    values: float32 `[M]`.
    kept: bool `[M]`, those that are trained on at all.
    clip_scale: float32 `[M]`, factor of a message's own clip range.
    tied_groups: share of groups without task-score variance.
  """

  values: np.ndarray
  kept: np.ndarray
  clip_scale: np.ndarray
  tied_groups: float


def message_advantages(
  setup: Setup,
  state: TrainState,
  rollout: CollectedRollout,
  counts: MessageCounts,
  rewards: RewardTerms,
  worth: MessageWorth | None = None,
) -> MessageAdvantages:
  """Advantages under the config's estimator, of `M` messages.

  Args:
    setup: names the estimator and its groups.
    state: says how much of the run is over, which some options follow.
    rollout: the conversations.
    counts: of their messages.
    rewards: of their messages.
    worth: Of their messages, for estimators that read gains.
  """
  options = setup.config['advantage']
  done = int(state.step) / max(setup.config['steps'], 1)
  inputs = estimator_inputs(
    rollout.batch,
    counts,
    rewards,
    grouping=options['grouping'],
    roles=[role.name for role in setup.team.roles],
    probability=np.asarray(posterior.probability(rollout.selection.posterior))[
      rollout.question_index
    ],
  )
  if worth is not None:
    fields = ('gain', 'plain_gain', 'plain_costs')
    inputs = dataclasses.replace(inputs, **{field: getattr(worth, field) for field in fields})
  found = estimators.advantage(
    inputs,
    options['name'],
    costs=options['costs'],
    **estimators.options_at(options['name'], options['options'], done),
  )
  solve_rate = groups.solve_rate(inputs.task, inputs.groups, inputs.episode)
  return MessageAdvantages(
    values=np.asarray(found.values),
    kept=np.asarray(found.kept) > 0,
    clip_scale=CLIP_SCALES[options['clip_scale']](found.values, solve_rate),
    tied_groups=estimators.tied_groups(rewards.task, inputs.groups),
  )


def estimator_inputs(
  batch: RolloutBatch,
  counts: MessageCounts,
  rewards: RewardTerms,
  *,
  grouping: str,
  roles: Sequence[str],
  probability: np.ndarray,
) -> AdvantageInputs:
  """What estimators read, one entry a message.

  Args:
    batch: the conversations, `B` questions.
    counts: of their messages.
    rewards: of their messages.
    grouping: whose rewards are compared, see `groups.group_ids`.
    roles: name of each agent's role: the functional groups.
    probability: float `[B]`, success probability of each question before this rollout.
  """
  agent_role = _ids(roles)
  observation, path, history = _what_was_seen(batch)
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
    roles=agent_role[counts.agent],
    observation=observation,
    path=path,
    history=history,
    probability=np.asarray(probability, np.float32)[counts.question],
  )


def _what_was_seen(batch: RolloutBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Ids of equal prompts, of equal prompts and messages, and of equal histories `[K, M]`.

  A step of an agent's history is a message that it wrote, or what it was handed of one that could
  be new in its prompt: nothing where that one was silent or for others.
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
    for k in range(HISTORY):
      histories[k].append((m.agent, *own[-(k + 1) :]))
    own.append((m.agent, m.token_ids.tobytes()))
  prompts = [m.prompt_ids.tobytes() for m in batch.messages]
  written = [(p, m.token_ids.tobytes()) for p, m in zip(prompts, batch.messages, strict=True)]
  return _ids(prompts), _ids(written), np.stack([_ids(h) for h in histories])


def _ids(values: Iterable[Hashable]) -> np.ndarray:
  """Int array, equal numbers for equal values, in order of first occurrence."""
  numbers: dict[Hashable, int] = {}
  return np.asarray([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
