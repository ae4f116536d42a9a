"""Computes the learning signal of groups with tied task scores.

In such a group only the other reward terms differ. Divided by the group's spread, they have full
strength at any price above 0: all-wrong groups then push a team into silence. The effect is
computed on one small batch with the run's own reward and advantage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import chex
import numpy as np

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.rewards.communication import RewardTerms, reward_terms
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.rewards.scores import scored
from agent_gspo.teams import batches
from agent_gspo.types import Message, Question, RolloutBatch

Estimate = Callable[[RewardTerms, RolloutBatch], chex.Array]
"""Maps reward terms and their rollout to the advantage of each message, `[M]`."""

_SCORES = {'all right': (1, 1, 1, 1), 'all wrong': (0, 0, 0, 0), 'mixed': (1, 0, 1, 0)}
_NEGLIGIBLE = 1e-5


@dataclasses.dataclass(frozen=True)
class Ties:
  """Gradient signals of groups with tied task scores, and of a mixed group.

  Attributes:
    silence: Advantage of silent episodes over talkative ones, by kind of group.
    right: Advantage of right episodes over wrong ones in a mixed group, half of each silent.
    text: Summary for the user. Teams collapse, that is fall silent for good, if all-wrong groups
      teach silence more than half as strongly as `right`, independent of the price.
  """

  silence: dict[str, float]
  right: float
  text: str


def estimator(name: str, *, costs: str = 'inside', **options: Any) -> Estimate:
  """Returns `estimators.advantage` for a batch of one message per episode."""

  def estimate(terms: RewardTerms, rollout: RolloutBatch) -> chex.Array:
    question, ones = rollout.question, np.ones(len(rollout.question))
    inputs = estimators.AdvantageInputs(
      task=terms.task,
      costs=terms.costs,
      reward=terms.task,
      groups=question,
      question=question,
      episode=rollout.episode,
      agent=rollout.agent,
      turn=rollout.round,
      lengths=rollout.written + 1,
      silent=rollout.silent,
      observation=question,
      history=np.stack([question] * 3),
      taken=ones.astype(bool),
      probability=ones / 2,
      **dict.fromkeys(
        ('gain', 'plain_gain', 'plain_costs', 'silence_costs'), np.full(len(ones), np.nan)
      ),
      gold=np.zeros(len(ones), bool),
      role=rollout.episode,  # a running baseline is of earlier episodes: here there are none
      baselines=0 * ones,
    )
    found = estimators.advantage(inputs, name, costs=costs, **options)
    return found.values * found.kept

  return estimate


def what_ties_teach(
  options: RewardOptions,
  estimate: Estimate,
  *,
  lambda_tok: float,
  length: int,
  lambda_turn: float = 0.0,
) -> Ties:
  """Computes the signal of tied groups under a reward and an advantage, printed at the start.

  Args:
    options: Reward options.
    estimate: Advantage from reward terms and their rollout, see `estimator`.
    lambda_tok: Price of a unit of cost; under a controller a typical one.
    length: Tokens written in a talkative episode.
    lambda_turn: Price of a message that is not silent.
  """
  options = dataclasses.replace(options, payers=(), prices={})  # as for an agent that pays
  rollout = _rollout(length)
  if options.score == 'tournament':  # other rules give answers such scores
    rollout = scored(options, rollout, str)

  def signals(price: float) -> tuple[dict[str, float], float]:
    """Computes the advantage of silence over talk by kind of group, and of right over wrong."""
    terms = reward_terms(
      options,
      rollout,
      price,
      lambda_turn=lambda_turn,
      budgets=np.full(rollout.num_episodes, length / 2),  # read with budget conditioning only
    )
    found = np.asarray(estimate(terms, rollout), float).reshape(len(_SCORES), 4)
    mixed = found[-1]
    silence = found[:, :2].mean(axis=1) - found[:, 2:].mean(axis=1)
    right = mixed[[0, 2]].mean() - mixed[[1, 3]].mean()
    return dict(zip(_SCORES, silence.tolist(), strict=True)), float(right)

  (silence, right), (at_twice, _) = signals(lambda_tok), signals(2 * lambda_tok)
  priced = {
    kind: abs(gap - at_twice[kind]) > _NEGLIGIBLE + 0.1 * abs(gap) for kind, gap in silence.items()
  }
  texts = []
  for kind in ('all right', 'all wrong'):
    if abs(gap := silence[kind]) <= _NEGLIGIBLE:
      texts.append(f'A group of answers {kind} teaches nothing about talk.')
      continue
    price = f'at lambda_tok={lambda_tok:g} (it depends on the price)'
    texts.append(
      f'A group of answers {kind} favors {"silence" if gap > 0 else "talk"} by {abs(gap):.3g} '
      f'{price if priced[kind] else "whatever lambda_tok is"}.'
    )
  if not priced['all wrong'] and silence['all wrong'] > max(right / 2, _NEGLIGIBLE):
    texts.append('Teams collapse into silence this way: see reward.gate, advantage.name.')
  texts.append(f'A right answer has {right:.3g} more than a wrong one.')
  return Ties(silence, right, ' '.join(texts))


def _rollout(length: int) -> RolloutBatch:
  """Returns three questions, each with two silent and two talkative episodes of one message."""
  scores = np.asarray(list(_SCORES.values()), float)  # [B, G]
  episode = np.arange(scores.size)
  written = np.tile([0, 0, length, length], len(_SCORES))
  return batches.from_messages(
    [
      Message(
        episode=e,
        agent=0,
        round=0,
        layer=0,
        prompt_ids=np.zeros(length, np.int32),
        token_ids=np.zeros(tokens + 1, np.int32),
        logprobs=np.zeros(tokens + 1, np.float32),
        ended=True,
        text='',
        readers=int(tokens > 0),
      )
      for e, tokens in enumerate(written)
    ],
    questions=[Question(id=kind, text='', answer='') for kind in _SCORES],
    agent_names=('agent',),
    episode_question=episode // scores.shape[1],
    sample=episode % scores.shape[1],
    answers=[''] * len(episode),
    task_scores=scores.reshape(-1),
  )
