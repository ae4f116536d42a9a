"""Trains a policy from scratch on Kuhn poker by self-play; SFT demonstrates random moves.

The second command plays against earlier copies:

  python launch/train.py --config=configs/kuhn.py --workdir=runs/kuhn --config.evaluation.every=50
  python launch/train.py --config=configs/kuhn.py:pool --workdir=runs/kuhn_pool

Exploitability in chips per game (0: equilibrium) of the first, seeds 0, 1 and 2 (--config.seed), 4
minutes per run on two shared cores of an AMD EPYC, 2026-11-26. The rate was chosen on seed 0:

  uniform play, exact    0.458
  after SFT              0.464, 0.467, 0.455
  after 100 steps        0.097, 0.129, 0.051
  after 200 steps        0.070, 0.031, 0.068
  after 400 steps        0.019, 0.017, 0.020

Of the second, seed 0, every 400 steps: 0.114, 0.033, 0.035, 0.019 (one core, 40 minutes); seeds 1
and 2 at the end: 0.025, 0.023. With opponents in all questions play cycles, in the end 0.232:

  python launch/train.py --config=configs/kuhn.py:pool --workdir=runs/kuhn_cycles \\
    --config.rollout.opponent_share=1 --config.rollout.pool_every=5 --config.steps=400
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config(opponents: str = 'self') -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 400
  config.model.source = 'random:micro'
  config.task.name = 'kuhn'
  config.task.options = config_dict.ConfigDict({'talk': False, 'train_size': 12})
  config.team.agents = ('player', 'player')
  config.team.sides = config_dict.ConfigDict({'first': ('player1',), 'second': ('player2',)})
  config.team.topology, config.team.rounds = 'complete', 2
  config.team.max_message_tokens = 2
  config.team.roles.player = {'opening': '', 'incoming': ' {message} ;', 'cue': ' move :'}
  config.rollout.questions = 12
  config.rollout.group_size = 64
  config.rollout.opponents = opponents
  if opponents == 'pool':
    config.steps = 1600
    config.rollout.opponent_share = 0.2
    config.rollout.pool_size = 40
  config.algorithm = 'rloo'
  config.advantage.name = 'group_mean'
  config.advantage.costs = 'inside'
  config.advantage.grouping = 'question_turn_agent'
  config.objective.kl_coef = 0.1  # towards random play
  config.objective.kl_estimator = 'k2'
  config.learner.minibatches = 1
  config.learner.learning_rate = 1e-3
  config.learner.b1 = 0.0
  config.learner.schedule = 'cosine'
  config.learner.pack_length = 64
  config.learner.micro_batch_size = 16
  config.sft.steps = 100
  config.sft.questions = 60
  config.sft.learning_rate = 5e-3
  config.evaluation.questions = 60
  config.evaluation.temperature = 1.0
  return config.lock()
