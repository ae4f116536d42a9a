"""A policy from scratch learns to talk less: the whole story in two minutes on two CPU cores.

Four informants hold a note each, two of the notes are needed, a solver adds two numbers that
it cannot see. A model of 106 thousand parameters first imitates scripted talkative agents
(600 steps), then trains with Agent-GSPO at a price of 0.02 a token (80 steps).

  python launch/train.py --config=configs/tiny.py --workdir=runs/tiny

Measured with `python launch/sweep.py --config=configs/tiny.py --workdir=runs/prices
--lambdas=0.02,0 --seeds=0,1,2` on two cores of an AMD EPYC, one thread a run, 2026-11-22, 200
held-out questions (mean, lowest and highest of 3 seeds): tokens written a question
69.3 [68.2, 70.0] -> 18.0 [14.2, 25.5], accuracy 74.3 [68.0, 84.0] -> 96.7 [95.5, 97.5] %,
silent with an idle note 19.3 [15.8, 21.5] -> 98.8 [97.8, 99.5] % (of training:
98.7 [98.0, 99.5]), with a needed one 0.0 [0.0, 0.0] %. Without a price:
56.5 [39.5, 81.3] tokens, accuracy 92.8 [87.5, 95.5] %, silent with an idle note
67.1 [12.0, 96.8] %. A run alone takes two minutes.

The teacher keeps quiet about one idle note in five, so that silence can be tried at all; with
5 % of all messages silent, needed or not, silence died out instead (see docs/decisions.md).
"""

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
  config.rollout.group_size = 8

  config.advantage.grouping = 'question_turn_agent'
  config.reward.gate = 'group_accuracy'
  config.reward.gate_accuracy = 0.5
  config.budget.lambda_tok = 0.02

  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-4
  config.learner.pack_length = 192
  config.learner.micro_batch_size = 6

  config.sft.steps = 600
  config.sft.questions = 16
  config.sft.learning_rate = 5e-3
  config.sft.silence_probability = 0.2
  config.sft.terse_probability = 0.05

  config.evaluation.temperature = 1.0
  config.evaluation.seen_questions = 200
  return config.lock()
