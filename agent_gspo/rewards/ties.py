"""What happens in a group whose task scores tie?

There the task score decides nothing, and whatever else is in the advantage teaches alone.
Under division by the group's spread it does so at full strength for any price above 0:
all-wrong groups then push a team into silence. The answer is computed, not looked up: one
small batch goes through the real reward and the real advantage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import chex
import numpy as np

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.rewards.communication import RewardOptions, RewardTerms, reward_terms
from agent_gspo.teams.counts import MessageCounts

Estimate = Callable[[RewardTerms, MessageCounts], chex.Array]
"""Advantage `[M]` of the messages of a batch: what the trainer does between reward and update."""

_SCORES = {'all right': (1, 1, 1, 1), 'all wrong': (0, 0, 0, 0), 'mixed': (1, 0, 1, 0)}
_NEGLIGIBLE = 1e-5


@dataclasses.dataclass(frozen=True)
class Tie:
  """What a group of one kind teaches.

  Attributes:
    silence: advantage of a silent episode over a talkative one; positive: silence pays.
    priced: whether that depends on `lambda_tok` (by more than a tenth for twice the price).
    text: the same in a sentence.
  """

  silence: float
  priced: bool
  text: str


@dataclasses.dataclass(frozen=True)
class Ties:
  """Attributes:
  all_right, all_wrong: groups whose task scores tie.
  right: advantage of right episodes over wrong ones in a mixed group, half of each silent:
    the yardstick.
  collapse: whether all-wrong groups teach silence at least half as strongly as that,
    whatever the price is: how teams fall silent for good.
  """

  all_right: Tie
  all_wrong: Tie
  right: float
  collapse: bool

  @property
  def text(self) -> str:
    lines = [self.all_right.text, self.all_wrong.text]
    if self.collapse:
      lines.append('Teams collapse into silence this way: see reward.gate, advantage.name.')
    return ' '.join(lines)


def estimator(name: str, *, costs: str = 'inside', **options: Any) -> Estimate:
  """The advantage `name` of `estimators.ADVANTAGES` on a batch of one message an episode.

  Args:
    name, costs, **options: see `estimators.advantage`.
  """

  def estimate(terms: RewardTerms, counts: MessageCounts) -> chex.Array:
    question, ones = counts.question, np.ones(len(counts.question))
    inputs = estimators.AdvantageInputs(
      task=terms.task,
      costs=terms.costs,
      groups=question,
      question=question,
      episode=counts.episode,
      agent=counts.agent,
      turn=counts.round,
      lengths=counts.written + 1,
      silent=counts.silent,
      roles=counts.agent,
      observation=question,
      # Silent episodes of a question are one path, talkative ones differ.
      path=np.where(counts.silent, question - len(ones), counts.episode),
      history=question[None],
      probability=ones / 2,
      **dict.fromkeys(('gain', 'plain_gain', 'plain_costs'), np.full(len(ones), np.nan)),
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
  """The answer for a reward and an advantage, for training to print at start.

  Args:
    options: the reward.
    estimate: from reward terms and counts to the advantage of each message, see
      `estimator`.
    lambda_tok: the price; under a controller a typical one.
    length: tokens that a talkative episode writes.
    lambda_turn: price of a message that is not silent.
  """
  gaps = _gaps(options, estimate, lambda_tok, length, lambda_turn)
  at_another_price = _gaps(options, estimate, 2 * lambda_tok, length, lambda_turn)
  ties = {}
  for kind in ('all right', 'all wrong'):
    change = abs(gaps[kind] - at_another_price[kind])
    priced = change > _NEGLIGIBLE + 0.1 * abs(gaps[kind])
    text = _sentence(kind, gaps[kind], priced, gaps['right'], lambda_tok)
    ties[kind] = Tie(silence=gaps[kind], priced=priced, text=text)
  wrong = ties['all wrong']
  return Ties(
    all_right=ties['all right'],
    all_wrong=wrong,
    right=gaps['right'],
    collapse=not wrong.priced and wrong.silence > max(gaps['right'] / 2, _NEGLIGIBLE),
  )


def _sentence(kind: str, gap: float, priced: bool, right: float, lambda_tok: float) -> str:
  if abs(gap) <= _NEGLIGIBLE:
    return f'A group of answers {kind} teaches nothing about talk.'
  winner = 'silence' if gap > 0 else 'talk'
  price = (
    f'at lambda_tok={lambda_tok:g}, and changes with it' if priced else 'whatever lambda_tok is'
  )
  return (
    f'A group of answers {kind} prefers {winner} by {abs(gap):.3g} {price} '
    f'(a right answer over a wrong one: {right:.3g}).'
  )


def _gaps(
  options: RewardOptions,
  estimate: Estimate,
  lambda_tok: float,
  length: int,
  lambda_turn: float,
) -> dict[str, float]:
  """Advantage of silence over talk in each kind of group, and of right over wrong."""
  counts = _counts(length)
  scores = np.asarray(list(_SCORES.values()), float).reshape(-1)
  terms = reward_terms(
    options,
    counts,
    scores,
    lambda_tok,
    [''] * len(scores),
    lambda_turn=lambda_turn,
    budgets=np.full(len(scores), length / 2),  # where one is told
  )
  found = np.asarray(estimate(terms, counts), float).reshape(len(_SCORES), 4)
  gap = lambda row: float(row[:2].mean() - row[2:].mean())
  gaps = {kind: gap(row) for kind, row in zip(_SCORES, found, strict=True)}
  mixed = found[-1]
  return gaps | {'right': float(mixed[[0, 2]].mean() - mixed[[1, 3]].mean())}


def _counts(length: int) -> MessageCounts:
  """Three questions, four episodes of one message each: two silent ones, two talkative ones."""
  count = 4 * len(_SCORES)
  zeros = np.zeros(count, int)
  written = np.tile([0, 0, length, length], len(_SCORES))
  return MessageCounts(
    episode=np.arange(count),
    question=np.arange(count) // 4,
    agent=zeros,
    round=zeros,
    layer=zeros,
    written=written,
    read=zeros + length,
    readers=(written > 0).astype(int),
    silent=written == 0,
    truncated=zeros.astype(bool),
    relevant=zeros - 1,
    num_episodes=count,
    agent_names=('agent',),
  )
