"""Computes the communication-aware reward of Agent-GSPO (Fan et al. 2025, arXiv 2510.22477).

`r = task - lambda_tok * cost - lambda_turn * turns - lambda_rep * repetition`, and two terms added
here: `- lambda_message * overshoot of the message budget + length_reward`. Terms are separate,
one value per message. `M` messages, `E` episodes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.rewards import length_rewards
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.teams import counts
from agent_gspo.types import RolloutBatch


@dataclasses.dataclass(frozen=True)
class RewardTerms:
  """Weighted reward terms, float32 `[M]` each; costs are >= 0 and to be subtracted.

  Attributes:
    task: Task score of the message's episode, or its return in an environment.
    token_cost: `lambda_tok * cost`.
    turn_cost: `lambda_turn * turns`.
    repetition_cost: `lambda_rep * repetition`.
    message_cost: `lambda_message * max(0, tokens written - message_limit)`.
    length_reward: Term of `reward.length_reward`, to be added, equal for all messages of an
      episode.
  """

  task: np.ndarray
  token_cost: np.ndarray
  turn_cost: np.ndarray
  repetition_cost: np.ndarray
  message_cost: np.ndarray
  length_reward: np.ndarray

  @property
  def costs(self) -> np.ndarray:
    """Sums what is subtracted from the task score; negative where a length reward is a bonus."""
    costs = self.token_cost + self.turn_cost + self.repetition_cost + self.message_cost
    return costs - self.length_reward

  @property
  def total(self) -> np.ndarray:
    return self.task - self.costs


def reward_terms(
  options: RewardOptions,
  rollout: RolloutBatch,
  lambda_tok: float | np.ndarray,
  *,
  lambda_turn: float = 0.0,
  lambda_rep: float = 0.0,
  lambda_message: float = 0.0,
  message_limit: float = math.inf,
  budgets: np.ndarray | None = None,
  reference_nll: np.ndarray | None = None,
  returns: np.ndarray | None = None,
  new: int | None = None,
) -> RewardTerms:
  """Computes the rewards of all messages of a rollout.

  Args:
    options: Reward options.
    rollout: Episodes with their task scores.
    lambda_tok: Price of a unit of cost; float `[E]` with price conditioning.
    lambda_turn: Price of a message that is not silent.
    lambda_rep: Price of repetition.
    lambda_message: Price of a token of a message beyond `message_limit`.
    message_limit: Free tokens of a message, see `budgets`.
    budgets: Budget of each episode, float `[E]`, for 'told_budget'.
    reference_nll: float `[E]`, for the length reward 'optima', see `length_rewards.term`.
    returns: Return of each message in an environment, float `[M]`, in place of the task score;
      None without an environment. Gates and length rewards read the task score all the same.
    new: Number of new episodes, which come first; None for all, see `gate`.
  """
  scores, episode = rollout.task_scores, rollout.episode
  pays, costs = _pays(options, rollout), message_costs(options, rollout)
  charged = gate(options, rollout, new)[episode] & pays

  def credited(own: np.ndarray) -> np.ndarray:
    own = own * pays
    if options.credit == 'episode':
      own = counts.by_episode(rollout, own)[episode]
    return (own * charged).astype(np.float32)

  silent = np.zeros(len(episode))
  repeated = repetition(rollout.text, episode) if lambda_rep else silent
  over = np.maximum(rollout.written - message_limit, 0.0) if lambda_message else silent
  prices = np.broadcast_to(np.asarray(lambda_tok, np.float64), scores.shape)  # [E]
  # The hinge is priced by lambda_tok itself, which then charges nothing else.
  charges = 0.0 if options.length_reward == 'hinge' else prices[episode]
  added = length_rewards.term(  # [E]
    options.length_reward,
    options.length_reward_arguments,
    scores=scores,
    lengths=counts.by_episode(rollout, costs),
    questions=_questions(rollout),
    price=prices,
    budgets=budgets,
    reference_nll=reference_nll,
  )
  return RewardTerms(
    task=(scores[episode] if returns is None else returns).astype(np.float32),
    token_cost=credited(charges * costs),
    turn_cost=credited(lambda_turn * ~rollout.silent),
    repetition_cost=credited(lambda_rep * repeated),
    message_cost=credited(lambda_message * over),
    length_reward=(added[episode] * charged).astype(np.float32),
  )


def message_costs(options: RewardOptions, rollout: RolloutBatch) -> np.ndarray:
  """Computes the unweighted cost of each message, float64 `[M]`, before any gate."""
  pays, inserted = _pays(options, rollout), options.p_tool * rollout.tool_tokens
  if options.prices:
    factors = [options.prices.get(name, 1.0) for name in rollout.agent_names]
    pays = pays * np.asarray(factors)[rollout.agent]
  if options.cost == 'money':
    money = options.p_write * rollout.written + options.p_read * rollout.read + inserted
    return pays * money / 1e6
  written = counts.critical_path(rollout) if options.cost == 'critical_path' else rollout.written
  return pays * (options.p_write * written + options.p_read * written * rollout.readers + inserted)


def _pays(options: RewardOptions, rollout: RolloutBatch) -> np.ndarray:
  """Returns whether the author of each message pays prices, bool `[M]`."""
  return np.asarray([options.pays(name) for name in rollout.agent_names], bool)[rollout.agent]


def episode_costs(options: RewardOptions, rollout: RolloutBatch) -> np.ndarray:
  """Computes the unweighted cost of each episode, float64 `[E]`, which a budget bounds."""
  return counts.by_episode(rollout, message_costs(options, rollout))


def mean_length(options: RewardOptions, rollout: RolloutBatch) -> float:
  """Returns the mean tokens of the messages whose authors pay, silent ones included."""
  pays = _pays(options, rollout)
  return float(rollout.written[pays].mean()) if pays.any() else 0.0


def _questions(rollout: RolloutBatch) -> np.ndarray:
  """Returns the question of each episode, int `[E]`; -1 for one without messages."""
  question = np.full(rollout.num_episodes, -1)
  question[rollout.episode] = rollout.question
  return question


def gate(options: RewardOptions, rollout: RolloutBatch, new: int | None = None) -> np.ndarray:
  """Returns where prices and the length reward apply, bool `[E]`.

  Args:
    options: Reward options.
    rollout: Episodes with their task scores.
    new: Number of new episodes, which come first; None for all. Others do not count in a group
      that has new ones, but are charged as it is, and they are not ranked by 'top_groups'.
  """
  scores = rollout.task_scores
  if options.gate == 'always':
    return np.ones(len(scores), bool)
  if options.gate == 'correct':
    return scores >= 1.0
  # Over episodes, since a mean over messages would weigh long episodes more.
  question = _questions(rollout)
  spoken, is_new = question >= 0, np.arange(len(question)) < (len(question) if new is None else new)
  groups = np.unique(question[spoken & is_new])
  counted = spoken & (is_new | ~np.isin(question, groups))
  right = np.bincount(question[counted], weights=scores[counted], minlength=1)
  size = np.bincount(question[counted], minlength=1)
  accuracy = right / np.maximum(size, 1)
  if options.gate == 'group_accuracy':
    return spoken & (accuracy[question] >= options.gate_accuracy)
  # GRPO-lambda (arXiv 2505.18086). Groups that tie with the last one are included, but none
  # without a right answer: there the price would only teach silence.
  ranked = np.sort(accuracy[groups])[::-1]
  charged = max(math.ceil(round(options.gate_fraction * len(ranked), 9)), 1)  # .28 * 25 > 7
  last = ranked[charged - 1] if len(ranked) else 0.0
  return spoken & (accuracy[question] >= last) & (accuracy[question] > 0)


def repetition(texts: Sequence[str], episode: np.ndarray) -> np.ndarray:
  """Computes each message's part in the repetition of its episode, float64 `[M]`.

  The repetition of an episode is the share of its word trigrams (within messages) that occurred
  in it before, in message order. It is below 1 and the sum over its messages. The repeating
  message pays, be it its author's own words or a teammate's.

  Args:
    texts: Message texts in the order in which they were written, `[M]`.
    episode: Episode of each message, int `[M]`.
  """
  seen: dict[int, set[tuple[str, ...]]] = {}
  repeated, total = np.zeros(len(texts)), np.zeros(len(texts))
  for m, (text, e) in enumerate(zip(texts, np.asarray(episode).tolist(), strict=True)):
    words, known = text.split(), seen.setdefault(e, set())
    for i in range(len(words) - 2):
      gram = tuple(words[i : i + 3])
      repeated[m] += gram in known
      total[m] += 1
      known.add(gram)
  grams = np.bincount(episode, weights=total, minlength=1)[episode]
  return repeated / np.maximum(grams, 1)


def summary(options: RewardOptions, terms: RewardTerms, rollout: RolloutBatch) -> Mapping[str, Any]:
  """Averages each term over messages (task, length) or episodes (costs), for `metrics.jsonl`.

  Candidates that were not taken count in means over messages, not in costs.
  """
  carriers = np.flatnonzero(rollout.taken)
  if options.credit == 'episode':  # each message of a payer has the episode's whole cost: count one
    payers = np.flatnonzero(_pays(options, rollout))
    carriers = payers[np.unique(rollout.episode[payers], return_index=True)[1]]
  per_episode = lambda x: counts.per_question(rollout, x[carriers])
  return {
    'reward/task': float(terms.task.mean()),
    'reward/token_cost': per_episode(terms.token_cost),
    'reward/turn_cost': per_episode(terms.turn_cost),
    'reward/repetition': per_episode(terms.repetition_cost),
    'reward/message_cost': per_episode(terms.message_cost),
    'reward/shape': float(terms.length_reward.mean()),
    'reward/mean': float(terms.total.mean()),
  }
