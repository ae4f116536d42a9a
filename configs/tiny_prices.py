"""configs/tiny.py with the price told: one policy for all prices of a token.

Each question of a step has a price of its own, which all agents read; the reward charges it. The
trained team is evaluated at the prices of the sweep that it stands for:

  python launch/train.py --config=configs/tiny_prices.py --workdir=runs/tiny_prices
  python launch/sweep.py --config=configs/tiny.py --workdir=runs/prices \
    --lambdas=0,0.002,0.005,0.01,0.02,0.05 --seeds=0,1,2
"""

from ml_collections import config_dict

from configs import tiny

_LEVELS = 12
_MARKS = [f'price{level}' for level in range(_LEVELS)]


def get_config() -> config_dict.ConfigDict:
  config = tiny.get_config().unlock()
  config.steps = 160

  config.budget.mode = 'conditioned'
  config.budget.lambda_tok = 0.02
  config.budget.price_low = 0.001
  config.budget.lambda_max = 0.06
  # A higher price has the marks of all lower ones and one more, so that no level stands alone.
  config.budget.price_words = (
    'free',
    *(' '.join(_MARKS[: level + 1]) for level in range(_LEVELS)),
  )
  config.sft.follows_price = 0.8  # a dear question is answered tersely from the first

  config.evaluation.prices = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)

  config.learner.pack_length = 256

  config.team.roles.informant.opening = '{price} : {question} note : {note}'
  config.team.roles.solver.opening = '{price} : {question}'
  return config.lock()
