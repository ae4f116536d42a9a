"""Trains configs/tiny.py on a complete graph, where messages may begin with their addressees.

Each agent reads all others, in two rounds, and read tokens have a cost. Demonstrations address
random agents: whom to address is learned from the price alone (docs/addressing.md).

  python launch/train.py --config=configs/tiny_addressing.py --workdir=runs/tiny_addressing

configs/tiny_addressing.py:everybody is the same team without addressing.
Figures: docs/addressing.md.
"""

from ml_collections import config_dict

from configs import tiny


def get_config(reach: str = 'addressed') -> config_dict.ConfigDict:
  if reach not in ('addressed', 'everybody'):
    raise ValueError(f'configs/tiny_addressing.py:{reach}: there are addressed and everybody.')
  config = tiny.get_config().unlock()
  config.steps = 240

  config.team.topology = 'complete'
  config.team.rounds = 2
  config.team.addressing = reach == 'addressed'
  for role in config.team.roles.values():
    role.incoming = ' {sender} : {message}'

  config.reward.p_read = 0.5
  config.budget.lambda_tok = 0.02
  config.learner.pack_length = 512
  config.learner.micro_batch_size = 2

  config.sft.addressed_probability = 0.7 if config.team.addressing else 0.0
  return config.lock()
