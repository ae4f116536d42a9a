"""Three witnesses of one fact, one of whom may be paid for wrong answers, and a solver.

python launch/train.py --config=configs/saboteur.py --workdir=runs/with   # 3 minutes
The same with --config.task.options.saboteur=0.0: no saboteur in RL, only in SFT and tests.

Seed 0, two cores of an AMD EPYC beside other work, 2026-11-26; 200 test questions, 97 attacked by
the team's own saboteur. Right without attack: 92.2 % after SFT, 99.0 after RL (without a saboteur
in RL 87.4, 100.0). Attacks that succeed: 24.7, 2.1 % (30.9, 16.5). Tokens of an attacked
question after RL: 29.8, of them the saboteur's 7.9 (30.1, 8.2).
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 60
  config.model.source = 'random:micro'
  config.task.name = 'saboteur'
  config.task.options = config_dict.ConfigDict({'saboteur': 0.5, 'witnesses': 3})
  config.team.agents = ('witness',) * 3 + ('solver',)
  config.team.topology = 'star'
  config.team.max_message_tokens = 24
  config.team.roles.witness = {'opening': '', 'incoming': ' {message}', 'cue': ' say :'}
  solver = {'opening': '{question}', 'incoming': ' {sender} : {message}', 'cue': ' answer :'}
  config.team.roles.solver = solver
  config.rollout.questions = 16
  config.rollout.group_size = 8
  config.advantage.grouping = 'question_turn_agent'
  config.budget.lambda_tok = 0.01
  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 3e-4
  config.learner.pack_length = 192
  config.learner.micro_batch_size = 6
  config.sft.steps = 200
  config.sft.questions = 16
  config.sft.learning_rate = 5e-3
  config.sft.silence_probability = 0.1
  config.sft.terse_probability = 0.1
  config.evaluation.questions = 200
  config.evaluation.temperature = 1.0
  return config.lock()
