"""Trains configs/tiny.py with price conditioning: one policy for all token prices.

Each question of a step has its own price, which all agents read and the reward charges.

  python launch/train.py --config=configs/tiny_prices.py --workdir=runs/tiny_prices

configs/tiny_prices.py:every_other trains with every other price, and launch/evaluate.py
--config=configs/tiny_prices.py tells it the others. Figures: docs/prices.md.
"""

from ml_collections import config_dict

from configs import tiny


def get_config(levels: str = 'all') -> config_dict.ConfigDict:
  if levels not in ('all', 'every_other'):
    raise ValueError(f'configs/tiny_prices.py:{levels}: there are all and every_other.')
  config = tiny.get_config().unlock()
  config.steps = 160

  config.budget.mode = 'conditioned'
  config.budget.lambda_tok = 0.02
  config.budget.price_low = 0.001
  config.budget.lambda_max = 0.06
  step = 1 if levels == 'all' else 2
  config.budget.told_words = ('free', *tiny.marks('price', 12, step))
  config.sft.follows_terms = 0.8  # demonstrations at high prices are terse

  config.team.roles.informant.opening = '{price} : {question} note : {note}'
  config.team.roles.solver.opening = '{price} : {question}'
  config.learner.pack_length = 256

  config.evaluation.told = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)
  return config.lock()
