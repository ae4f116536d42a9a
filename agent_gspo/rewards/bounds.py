"""Checks before a run whether the reward can prefer a wrong silence to a right answer."""

from __future__ import annotations

import itertools

import numpy as np

from agent_gspo.algorithms.options import BudgetOptions
from agent_gspo.rewards import length_rewards
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.teams.team import Team

_CHARGED = {
  'correct': 'episodes that solved the task',
  'group_accuracy': 'questions of which {0.gate_accuracy:.0%} of the episodes are right',
  'top_groups': 'the best {0.gate_fraction:.0%} of the questions of a step',
}


def max_episode_cost(options: RewardOptions, team: Team) -> float:
  """Computes the highest cost of an episode, in units of `message_costs`.

  Not valid for cost 'money', which depends on prompt lengths.
  """
  factors = [options.prices.get(name, 1.0) * options.pays(name) for name in team.names]
  total, dearest = 0.0, 0.0
  for round_, _, layer in team.turns:
    written = lambda agent, round_=round_: (
      options.p_write + options.p_read * team.topology.readers(agent, round_)
    )
    inserted = lambda agent: options.p_tool if team.roles[agent].tools else 0.0
    prices = [factors[agent] * max(written(agent), inserted(agent)) for agent in layer]
    costs = [team.message_cap(agent) * price for agent, price in zip(layer, prices, strict=True)]
    alone = options.cost == 'critical_path' and not options.p_tool
    total += max(costs) if alone else sum(costs)
    dearest = max(dearest, *prices)
  return min(total, team.max_episode_tokens * dearest or total)


def check_bound(options: RewardOptions, budget: BudgetOptions, team: Team) -> str:
  """Checks whether a wrong and silent episode can outrank (or equal) a right one.

  Compares the rewards, at the highest prices of the run, of the most expensive right episode and of
  a wrong and silent one of the same question. Excludes the loss term of the length reward 'optima',
  unknown before the run, and the price of a cost in money, which depends on prompt lengths. Not
  for environments, where a right episode may earn more or less than 1.

  Args:
    options: Reward options.
    budget: Prices and their bounds.
    team: Team, whose caps bound an episode.

  Returns:
    A warning if only the gate prevents it, else ''.

  Raises:
    ValueError: It can, and the price is always charged; names the fields to change.
  """
  lambda_max, lambda_message = budget.highest_lambda_tok, budget.highest_lambda_message
  dearest = 0.0 if options.cost == 'money' else max_episode_cost(options, team)
  free = options.length_reward_arguments['limit'] if options.length_reward == 'hinge' else 0.0
  cost = max(dearest - free, 0.0)
  turns = [agent for _, _, layer in team.turns for agent in layer]
  caps = np.asarray([team.message_cap(agent) for agent in turns if options.pays(team.names[agent])])
  over = float(np.maximum(caps - budget.message_limit, 0.0).sum())
  tokens = f'lambda_tok={lambda_max:g} times {cost:g}, the highest cost of an episode'
  shape = f'reward.length_reward={options.length_reward!r}'
  charges = {
    tokens: lambda_max * cost,
    f'budget.lambda_turn times its {len(caps)} turns': budget.lambda_turn * len(caps),
    'budget.lambda_rep': budget.lambda_rep,
    f'lambda_message={lambda_message:g} on messages beyond {budget.message_limit:g}': (
      lambda_message * over
    ),
    shape: _length_reward_gap(options, dearest),
  }
  worst = sum(charges.values())
  if worst < 1 - 1e-9:
    return ''
  parts = ' + '.join(f'{charge:.3g} by {what}' for what, charge in charges.items() if charge)
  if options.gate != 'always':
    return (
      f'An episode at all its caps costs {worst:.3g} ({parts}), more than a right answer earns: '
      f'reward.gate={options.gate!r} charges {_CHARGED[options.gate].format(options)} only.'
    )
  others = worst - charges[tokens]
  if charges[shape] >= 1 - 1e-9:
    given = length_rewards.defaults(options.length_reward) | options.length_reward_arguments
    now = ', '.join(f'{key}={value:g}' for key, value in given.items())
    remedy = f'Soften reward.length_reward_options (now {now})'
  elif others < 1 and cost:
    remedy = f'Keep lambda_tok below {(1 - others) / cost:.2g}'
  else:
    remedy = 'Lower budget.lambda_turn, budget.lambda_rep or budget.lambda_max'
  raise ValueError(
    f'{parts}: {worst:.3g} >= 1, so a wrong and silent episode can outrank a right one. {remedy}, '
    'or set reward.gate="correct" or "group_accuracy".'
  )


def _length_reward_gap(options: RewardOptions, cost: float) -> float:
  """Computes how far the length reward can favor a wrong silence over the costliest right answer.

  Tries groups of many compositions, since most length rewards compare episodes of a question.
  """
  short = min(1.0, cost)
  kinds = [(1.0, cost), (0.0, 0.0), (1.0, short), (1.0, cost), (0.0, cost)]  # score, cost
  rows = [
    (question, *kind)
    for question, others in enumerate(itertools.product((0, 1, 4), repeat=3))
    for kind, count in zip(kinds, (1, 1, *others), strict=True)
    for _ in range(count)
  ]
  question, scores, lengths = np.asarray(rows).T
  term = length_rewards.term(
    options.length_reward,
    options.length_reward_arguments,
    scores=scores,
    lengths=lengths,
    questions=question.astype(int),
    budgets=np.full(len(lengths), max(cost, 1.0) / 2),  # read with budget conditioning only
  )
  if options.gate == 'correct':
    term = np.where(scores >= 1, term, 0.0)
  first = np.unique(question, return_index=True)[1]
  return float((term[first + 1] - term[first]).max())
