"""Trains a teacher that reads the answers to give hints, and to be silent when none is needed.

It writes the first codes of a question or the first words of its answer; a solver guesses the rest,
and alone would be right once in 512 times. The teacher is silent in evaluations.

  python launch/train.py --config=configs/hints.py --workdir=runs/hints

Controls: hints rewarded by their signal alone (--config.advantage.options.temperature=1e6), and the
solver without a teacher (--config=configs/hints.py:alone). Figures: docs/results/ablations.md. The
task is configs/tasks/codes.py.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config(form: str = 'taught') -> config_dict.ConfigDict:
  if form not in ('taught', 'alone'):
    raise ValueError(f'configs/hints.py:{form}: there are taught and alone.')
  taught = form == 'taught'
  config = default_config()
  config.steps = 400
  config.model.source = 'random:micro'
  config.task.name = 'configs.tasks.codes:Codes'
  config.task.options = config_dict.ConfigDict({'teacher': taught})
  config.team.agents = ('teacher', 'solver') if taught else ('solver',)
  config.team.topology = 'chain' if taught else 'single'
  config.team.max_message_tokens = 12
  config.team.roles.teacher = {'opening': '{question} is {answer}', 'cue': ' hint :'}
  config.team.roles.solver = {'opening': '{question}', 'incoming': ' {message}', 'cue': ' codes :'}
  config.rollout.questions, config.rollout.group_size = 32, 16
  config.advantage.name = 'hill' if taught else 'per_component'
  config.advantage.grouping, config.advantage.costs = 'question_agent', 'inside'
  config.reward.gate = 'group_accuracy'
  config.budget.lambda_tok = 0.01
  config.objective.clip_low, config.objective.clip_high = 0.2, 0.3
  config.objective.kl_coef = 0.02
  config.learner.learning_rate = 1e-3
  config.learner.pack_length = 64
  config.sft.steps, config.sft.questions, config.sft.learning_rate = 800, 64, 5e-3
  config.sft.held_back = 0.5
  config.evaluation.questions = 100
  config.evaluation.temperature = 1.0
  return config.lock()
