"""Computes the advantages of a rollout's messages under the config's estimator."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable

import numpy as np

from agent_gspo.algorithms import selection as selection_lib
from agent_gspo.algorithms.advantages import estimators, groups
from agent_gspo.algorithms.advantages.inputs import Advantage, AdvantageInputs
from agent_gspo.config import Config
from agent_gspo.rewards.communication import RewardTerms
from agent_gspo.rewards.returns import paid_episodes
from agent_gspo.training.message_worth import MessageWorth
from agent_gspo.types import RolloutBatch

# Longest history that is compared (HGPO's K).
HISTORY = 3


def message_advantages(
  config: Config,
  rollout: RolloutBatch,
  rewards: RewardTerms,
  selection: selection_lib.SelectionState,
  baselines: np.ndarray | None = None,
  worth: MessageWorth | None = None,
) -> Advantage:
  """Returns the advantages of `M` messages under the config's estimator.

  Messages of opponents are dropped, and do not enter baselines.

  Args:
    config: Resolved run configuration.
    rollout: Episodes, `M` messages.
    rewards: Reward terms of each message.
    selection: State of the selection rule, with the success probability of each question.
    baselines: Running baseline of each role, for estimators that read them.
    worth: Gains of each message, for estimators that read them.
  """
  options = config.advantage
  inputs = estimator_inputs(
    rollout,
    rewards,
    grouping=options.grouping,
    probability=np.asarray(selection_lib.probability(selection.posterior))[rollout.drawn],
  )
  more = {'baselines': baselines}
  if worth is not None:
    measured = 'gain', 'plain_gain', 'plain_costs', 'silence_costs'
    more |= {field: getattr(worth, field) for field in measured}
    more['gold'] = np.isin(np.arange(len(rollout.messages)), [*worth.gold])
  inputs = dataclasses.replace(inputs, **more)
  own = rollout.learns
  found = estimators.advantage(
    inputs if own.all() else _selected(inputs, own),
    options.name,
    costs=options.costs,
    **options.options,
  )
  values, kept = np.zeros((2, len(own)), np.float32)
  values[own], kept[own] = found.values, 1.0 if config.objective.teacher else found.kept
  # Objectives are linear in positive factors of the advantage.
  weights = np.asarray([m.weight for m in rollout.messages], np.float32)
  return dataclasses.replace(found, values=values * weights, kept=kept)


def _selected(inputs: AdvantageInputs, own: np.ndarray) -> AdvantageInputs:
  """Returns the inputs of the messages where `own`, bool `[M]`."""
  fields = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
  del fields['baselines']
  some = {name: value[..., own] for name, value in fields.items() if value is not None}
  some['groups'] = groups.joint_ids(some['groups'])  # ids below the number of messages
  return dataclasses.replace(inputs, **some)


def estimator_inputs(
  rollout: RolloutBatch,
  rewards: RewardTerms,
  *,
  grouping: str,
  probability: np.ndarray,
) -> AdvantageInputs:
  """Returns the inputs of estimators, one entry per message.

  Args:
    rollout: Episodes about `B` questions, `M` messages.
    rewards: Reward terms of each message.
    grouping: Rule by which rewards are compared, see `groups.group_ids`.
    probability: Success probability of each question before this rollout, float `[B]`.
  """
  observation, history = _what_was_seen(rollout)
  return AdvantageInputs(
    task=rewards.task,
    costs=rewards.costs,
    groups=group_ids(grouping, rollout),
    role=rollout.role,
    question=rollout.question,
    episode=rollout.episode,
    agent=rollout.agent,
    turn=rollout.turn,
    lengths=np.asarray([int(m.sampled.sum()) for m in rollout.messages]),
    silent=rollout.silent,
    observation=observation,
    history=history,
    reward=_earned(rollout),
    taken=rollout.taken,
    probability=np.asarray(probability, np.float32)[rollout.question],
  )


def group_ids(grouping: str, rollout: RolloutBatch) -> np.ndarray:
  """Returns the group of each message, int `[M]`, see `groups.group_ids`."""
  return groups.group_ids(
    grouping, rollout.question, rollout.agent, rollout.turn, rollout.episode, rollout.role
  )


def _what_was_seen(rollout: RolloutBatch) -> tuple[np.ndarray, np.ndarray]:
  """Returns ids of equal observations `[M]` and of equal histories `[K, M]`.

  In an environment that pays, what an author observes takes the place of the prompt, and its
  history is of its observations. Else a step of its history is what it observed, a message that it
  wrote, or the tokens of a teammate's message that its prompt shows: none where that message was
  silent or addressed to others.
  """
  acts = bool(paid_episodes(rollout))
  said = {(m.episode, m.agent, m.round): m for m in rollout.messages}
  steps: dict[tuple[int, int], list[Hashable]] = {}
  histories: list[list[Hashable]] = [[] for _ in range(HISTORY)]
  for m in rollout.messages:
    own = steps.setdefault((m.episode, m.agent), [])
    if acts or m.told:
      own.append(m.told)
    for author, round_ in () if acts else m.read_from:
      heard = said[m.episode, author, round_]
      handed = heard.said if heard.reaches(m.agent) else heard.said[:0]
      own.append((author, handed.tobytes()))
    for k in range(HISTORY):
      histories[k].append((m.agent, *own[-(k + 1) :]))
    if not acts:
      own.append((m.agent, m.token_ids.tobytes()))
  seen = [(m.agent, m.told) if acts else m.prompt_ids.tobytes() for m in rollout.messages]
  return _ids(seen), np.stack([_ids(h) for h in histories])


def _earned(rollout: RolloutBatch) -> np.ndarray | None:
  """Returns what each message alone earned, float32 `[M]`; None if none has a reward of its own.

  In an episode without rewards each author's last message earns the task score.
  """
  paid = paid_episodes(rollout)
  if not paid:
    return None
  last = {(m.episode, m.agent): i for i, m in enumerate(rollout.messages)}
  earned = [m.reward or 0.0 for m in rollout.messages]
  for (episode, _), i in last.items():
    if episode not in paid:
      earned[i] = rollout.task_scores[episode]
  return np.asarray(earned, np.float32)


def _ids(values: Iterable[Hashable]) -> np.ndarray:
  """Returns int64 `[n]`: equal ids for equal values, in order of first occurrence."""
  numbers: dict[Hashable, int] = {}
  return np.asarray([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
