"""Trains two players to find a number in three guesses: a task with its own episode.

They take turns; both read whether the number is higher or lower, and the episode ends with a right
guess. Demonstrations guess at random; RL learns to use the answers.

  python launch/train.py --config=configs/guessing.py --workdir=runs/guessing

Of 56 test questions 12 % are right after SFT and 71 % after RL (seed 0, two CPU cores of an AMD
EPYC, 1 minute, 2026-11-25). The task is configs/tasks/guessing.py.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 300
  config.model.source = 'random:micro'
  config.task.name = 'configs.tasks.guessing:Guessing'
  config.team.agents = ('player', 'player')
  config.team.topology = 'complete'
  config.team.rounds = 2
  config.team.max_message_tokens = 3
  config.team.roles.player = {'opening': '{question}', 'incoming': ' {message}', 'cue': ' :'}
  config.rollout.questions = 14
  config.rollout.group_size = 8
  config.advantage.grouping = 'question_turn_agent'
  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-3
  config.learner.pack_length = 64
  config.sft.steps = 60
  config.sft.questions = 14
  config.sft.learning_rate = 5e-3
  config.evaluation.questions = 56
  config.evaluation.temperature = 1.0
  return config.lock()
