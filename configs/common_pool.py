"""Trains four agents that harvest from one stock for three months: do they spare it?

  python launch/train.py --config=configs/common_pool.py --workdir=runs/pool   # 4 minutes

An agent earns 1 in an episode by a fair share of what grows back in fair weather. 100 test
questions at temperature 1, mean [lowest, highest] of seeds 0, 1, 2 (--config.seed), one core of an
AMD EPYC on shared cores, 2026-11-30:

                                            an agent earns      stock kept, %       tokens
  after SFT                                 0.74 [0.73, 0.76]   89.3 [87.0, 94.0]   66.4
  config: each agent has its own harvest    0.74 [0.74, 0.74]    0.0 [0.0, 0.0]     47.5
  --config.advantage.name=advantage_alignment
                                            0.81 [0.79, 0.83]    1.7 [0.0, 5.0]     30.3
  --config.task.options.rewards=shared      1.04 [1.00, 1.05]   19.3 [11.0, 25.0]   72.6

With own rewards the agents take the whole stock in the first month, and earn no more than before
RL. With the advantages of others (`advantage_alignment`) they wait longer, and talk less. With a
shared reward they spare the stock until the last month, after which it has no use.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 120

  config.model.source = 'random:micro'

  config.task.name = 'common_pool'
  config.task.options = config_dict.ConfigDict({'rewards': 'own', 'months': 3})

  config.team.agents = ('one', 'two', 'three', 'four')
  config.team.topology = 'debate'
  config.team.rounds = 6
  config.team.max_message_tokens = 8
  for name in config.team.agents:
    config.team.roles[name] = {'opening': '', 'incoming': ' {message} ;', 'cue': ' :'}

  config.rollout.questions = 8
  config.rollout.group_size = 8
  config.reward.discount = 1.0
  config.advantage.name = 'group_std'
  config.advantage.grouping = 'question_turn_agent'
  config.budget.lambda_tok = 0.0

  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-4
  config.learner.pack_length = 384
  config.learner.micro_batch_size = 3

  config.sft.steps = 300
  config.sft.questions = 8
  config.sft.learning_rate = 5e-3
  config.sft.silence_probability = 0.3

  config.evaluation.questions = 100
  config.evaluation.temperature = 1.0
  return config.lock()
