"""The communication-aware reward of Agent-GSPO (Fan et al. 2025, arXiv 2510.22477).

`r = task - lambda_tok * cost - lambda_turn * turns - lambda_rep * repetition`, kept as
named terms, one value a message. `M` messages, `E` episodes.
"""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.teams.accountant import Ledger
from agent_gspo.teams.team import Team

COSTS = ('tokens', 'critical_path', 'money')
GATES = ('always', 'correct', 'group_accuracy')
CREDITS = ('own_cost', 'episode')


@dataclasses.dataclass(frozen=True)
class RewardOptions:
  """What is charged for, and when.

  Attributes:
    cost: 'tokens' (`p_write * written + p_read * written * readers`), 'critical_path'
      (only the longest message of each layer pays) or 'money' (`p_write` and `p_read`
      are prices per million tokens written and read).
    p_write: price of a written token.
    p_read: price of a token each time it is read.
    lambda_turn: price of a message that is not silent.
    lambda_rep: price of repetition, see `repetition`.
    gate: where the price is charged: 'always', 'correct' (episodes that solved the
      task) or 'group_accuracy' (questions whose group reaches `gate_accuracy`).
    gate_accuracy: share of right answers that opens the gate, 0 to 1.
    credit: 'own_cost' (the team's task score, a message's own cost) or 'episode' (every
      message is credited with the whole episode).
  """

  cost: str = 'tokens'
  p_write: float = 1.0
  p_read: float = 0.0
  lambda_turn: float = 0.0
  lambda_rep: float = 0.0
  gate: str = 'always'
  gate_accuracy: float = 0.0
  credit: str = 'own_cost'

  def __post_init__(self):
    for field, known in (('cost', COSTS), ('gate', GATES), ('credit', CREDITS)):
      value = getattr(self, field)
      if value not in known:
        raise ValueError(f'reward.{field}={value!r} is unknown; use one of {", ".join(known)}.')
    for field in ('p_write', 'p_read', 'lambda_turn', 'lambda_rep'):
      if getattr(self, field) < 0:
        raise ValueError(f'reward.{field}={getattr(self, field)} is negative; prices are not.')
    if not 0 <= self.gate_accuracy <= 1:
      raise ValueError(f'reward.gate_accuracy={self.gate_accuracy} is not between 0 and 1.')


@dataclasses.dataclass(frozen=True)
class RewardTerms:
  """Weighted terms, float32 `[M]` each; costs are >= 0 and to be subtracted.

  Attributes:
    task: task score of the message's episode.
    token_cost: `lambda_tok * cost`.
    turn_cost: `lambda_turn * turns`.
    repetition_cost: `lambda_rep * repetition`.
  """

  task: np.ndarray
  token_cost: np.ndarray
  turn_cost: np.ndarray
  repetition_cost: np.ndarray

  @property
  def costs(self) -> np.ndarray:
    return self.token_cost + self.turn_cost + self.repetition_cost

  @property
  def total(self) -> np.ndarray:
    return self.task - self.costs


def reward_terms(
  options: RewardOptions,
  ledger: Ledger,
  task_scores: np.ndarray,
  lambda_tok: float,
  texts: Sequence[str],
) -> RewardTerms:
  """Rewards of all messages of a rollout.

  Args:
    options: what is charged.
    ledger: counts of the messages.
    task_scores: float `[E]`, in `[0, 1]`.
    lambda_tok: price of a unit of cost.
    texts: `M` texts of the messages; read only if repetition costs something.
  """
  task = np.asarray(task_scores, np.float32)[ledger.episode]
  charged = _gate(options, ledger, np.asarray(task_scores)).astype(np.float32)

  def credited(own: np.ndarray) -> np.ndarray:
    if options.credit == 'episode':
      own = np.bincount(ledger.episode, weights=own, minlength=ledger.num_episodes)[ledger.episode]
    return (own * charged).astype(np.float32)

  repeated = repetition(texts) if options.lambda_rep else np.zeros(len(task))
  return RewardTerms(
    task=task,
    token_cost=credited(lambda_tok * message_costs(options, ledger)),
    turn_cost=credited(options.lambda_turn * ~ledger.silent),
    repetition_cost=credited(options.lambda_rep * repeated),
  )


def message_costs(options: RewardOptions, ledger: Ledger) -> np.ndarray:
  """Unweighted cost of each message, float64 `[M]`, before any gate."""
  if options.cost == 'money':
    return (options.p_write * ledger.written + options.p_read * ledger.read) / 1e6
  written = ledger.critical_path() if options.cost == 'critical_path' else ledger.written
  return options.p_write * written + options.p_read * written * ledger.readers


def _gate(options: RewardOptions, ledger: Ledger, scores: np.ndarray) -> np.ndarray:
  """Bool `[M]`: where the price is charged."""
  if options.gate == 'always':
    return np.ones(len(ledger.episode), bool)
  if options.gate == 'correct':
    return scores[ledger.episode] >= 1.0
  # Mean over messages would weigh talkative episodes more: first one entry an episode.
  episodes, first = np.unique(ledger.episode, return_index=True)
  question = ledger.question[first]
  right = np.bincount(question, weights=scores[episodes])
  accuracy = right / np.maximum(np.bincount(question), 1)
  return accuracy[ledger.question] >= options.gate_accuracy


def repetition(texts: Sequence[str], n: int = 3) -> np.ndarray:
  """Share of each text's word `n`-grams that occurred in it before, float64 `[M]`."""
  shares = []
  for text in texts:
    words = text.split()
    grams = collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    total = sum(grams.values())
    shares.append((total - len(grams)) / total if total else 0.0)
  return np.asarray(shares)


def max_episode_cost(options: RewardOptions, team: Team) -> float:
  """Most that the messages of an episode can cost together, in units of `message_costs`.

  Not for cost 'money', which depends on the lengths of the prompts.
  """
  total, dearest = 0.0, 0.0
  for round_, _, layer in team.turns:
    prices = [
      options.p_write + options.p_read * team.topology.readers(agent, round_) for agent in layer
    ]
    costs = [team.message_cap(agent) * price for agent, price in zip(layer, prices, strict=True)]
    total += max(costs) if options.cost == 'critical_path' else sum(costs)
    dearest = max(dearest, *prices)
  return min(total, team.max_episode_tokens * dearest or total)


def check_bound(options: RewardOptions, lambda_max: float, team: Team) -> None:
  """Looks whether a wrong and silent episode can outrank a right one.

  It can where everything that an episode can be charged adds up to 1 or more.

  Args:
    options: what is charged.
    lambda_max: highest price of a unit of cost during the run.
    team: what an episode can write at most.

  Raises:
    ValueError: it can, and the price is always charged.

  Warns:
    it can, but a gate stands before the price.
  """
  if options.cost == 'money':
    return  # depends on prompt lengths, which are not known before the run
  cost = max_episode_cost(options, team)
  turns = sum(len(layer) for _, _, layer in team.turns)
  others = (options.lambda_turn + options.lambda_rep) * turns
  worst = lambda_max * cost + others
  if worst < 1:
    return
  parts = f'lambda_tok={lambda_max:g} times {cost:g}, the highest cost of an episode'
  if others:
    parts += f', and reward.lambda_turn and lambda_rep times its {turns} turns'
  text = f'{parts}: {worst:.3g} >= 1, so a wrong and silent episode can outrank a right one.'
  remedy = ' Lower reward.lambda_turn or lambda_rep'
  if others < 1 and cost:
    remedy = f' Keep lambda_tok below {(1 - others) / cost:.2g}'
  if options.gate == 'always':
    raise ValueError(f'{text}{remedy}, or set reward.gate="correct" or "group_accuracy".')
  warnings.warn(
    f'{text} The gate {options.gate!r} stands before it.{remedy} to be sure.', stacklevel=2
  )


def summary(options: RewardOptions, terms: RewardTerms, num_episodes: int) -> Mapping[str, Any]:
  """The terms apart, for `metrics.jsonl`: means over messages (task) and episodes (costs)."""
  # With credit 'episode' every message carries the costs of all.
  carriers = len(terms.task) if options.credit == 'episode' else num_episodes
  per_episode = lambda x: float(x.sum()) / max(carriers, 1)
  return {
    'reward/task': float(terms.task.mean()),
    'reward/token_cost': per_episode(terms.token_cost),
    'reward/turn_cost': per_episode(terms.turn_cost),
    'reward/repetition': per_episode(terms.repetition_cost),
    'reward/mean': float(terms.total.mean()),
  }
