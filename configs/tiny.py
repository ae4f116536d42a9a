"""A policy from scratch learns to talk less."""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 80

  config.model.source = 'random:micro'

  config.task.name = 'relay'
  config.task.options = config_dict.ConfigDict(
    {
      'num_informants': 4,
      'num_irrelevant': 2,
      'irrelevant_notes': 'off_topic',
      'max_count': 5,
      'text_style': 'words',
    }
  )

  config.team.agents = ('informant',) * 4 + ('solver',)
  config.team.topology = 'star'
  config.team.max_message_tokens = 32
  config.team.roles.informant = {
    'opening': '{question} note : {note}',
    'cue': ' say :',
  }
  config.team.roles.solver = {
    'opening': '{question}',
    'incoming': ' {sender} : {message}',
    'cue': ' answer :',
  }

  config.rollout.questions = 16
  config.rollout.samples = 8

  config.advantage.grouping = 'question_turn_agent'
  config.reward.gate = 'group_accuracy'
  config.reward.gate_accuracy = 0.5
  config.budget.lambda_tok = 0.02

  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-4
  config.learner.row_tokens = 192
  config.learner.rows = 6

  config.warm_start.steps = 600
  config.warm_start.questions = 16
  config.warm_start.learning_rate = 5e-3
  config.warm_start.silence_probability = 0.2
  config.warm_start.terse_probability = 0.05

  config.evaluation.temperature = 1.0
  return config.lock()
