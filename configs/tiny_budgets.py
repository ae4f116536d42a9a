"""Trains configs/tiny.py with budgets: token counts of the episode, stated in the prompts.

Each question has its own budget, which all agents read; there is no price, the reward subtracts the
deviation of an episode from it.

  python launch/train.py --config=configs/tiny_budgets.py --workdir=runs/tiny_budgets

Figures: docs/prices.md.
"""

from ml_collections import config_dict

from configs import tiny


def get_config() -> config_dict.ConfigDict:
  config = tiny.get_config().unlock()
  config.steps = 2560
  config.budget.mode = 'target'
  config.budget.lambda_tok = 0.0
  config.budget.budget_episode = 20.0
  config.budget.target_low = 7.0
  config.budget.target_high = 45.0
  config.budget.told_words = tiny.marks('token', 12)
  config.reward.length_reward = 'told_budget'
  config.reward.length_reward_options = 'weight=0.9'
  config.sft.follows_terms = 1.0  # demonstrations at small budgets are terse
  # Without it all budgets end at the same few tokens.
  config.objective.kl_coef = 0.01
  config.learner.learning_rate = 2e-4
  config.team.roles.informant.opening = '{budget} : {question} note : {note}'
  config.team.roles.solver.opening = '{budget} : {question}'
  config.team.roles.solver.cue = ' {left} answer :'  # left of the budget after the informants
  config.learner.pack_length = 256

  config.evaluation.told = (8.0, 12.0, 20.0, 40.0)
  config.evaluation.temperature = 0.0  # greedy: sampling errors would miss the budget
  return config.lock()
