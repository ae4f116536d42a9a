"""Trains a memory team: one agent writes notes on visits, one finds notes, one answers.

  python launch/sweep.py --config=configs/memory.py --workdir=runs/memory --lambdas=0.02,0 \\
    --seeds=0,1,2   # own: with --config.task.options.rewards=own

200 test questions, one shared core of an AMD EPYC, 2 to 4 minutes per run, 2026-11-26;
mean [lowest, highest] of seeds 0, 1, 2. Stored: tokens that the scribe writes. Own: rewards for
facts kept, found and answered, each to its agent. A quarter of the visits have no fact.

                 accuracy, %         stored              written by all      read   silent visits, %
  after SFT      84.0 [79.5, 86.5]   37.3                50.7                181     4.5
  price 0        97.7 [97.0, 98.5]   40.3 [37.0, 44.8]   50.6 [46.0, 56.6]   187     7.5
  price 0.02     98.5 [98.0, 99.5]   13.2 [7.3, 16.8]    21.6 [15.7, 25.1]   132    21.3
  the same, own  99.3 [99.0, 99.5]   11.1 [7.1, 15.9]    19.3 [15.4, 24.2]   128    22.3
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 60
  config.model.source = 'random:micro'
  config.task.name = 'memory'
  config.task.options = config_dict.ConfigDict({'facts': 3, 'chatter': 1, 'rewards': 'shared'})
  config.team.agents = ('scribe', 'finder', 'solver')
  config.team.topology = 'chain'
  config.team.rounds = 4
  config.team.max_message_tokens = 28
  config.team.roles.scribe = {'opening': '', 'incoming': ' {message}', 'cue': ' note :'}
  config.team.roles.finder = {'opening': '{question}', 'incoming': ' {message}', 'cue': ' find :'}
  solver = {'opening': '{question}', 'incoming': ' {sender} : {message}', 'cue': ' answer :'}
  config.team.roles.solver = solver
  config.rollout.questions = 16
  config.rollout.group_size = 8
  config.advantage.grouping = 'question_turn_agent'
  config.budget.lambda_tok = 0.02
  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-4
  config.learner.pack_length = 384
  config.learner.micro_batch_size = 4
  config.sft.steps = 400
  config.sft.questions = 16
  config.sft.learning_rate = 5e-3
  config.sft.silence_probability = 0.2
  config.sft.terse_probability = 0.1
  config.evaluation.questions = 200
  config.evaluation.temperature = 1.0
  return config.lock()
