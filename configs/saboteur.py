"""Trains three witnesses of a fact, one of whom may gain by wrong answers, and a solver.

  python launch/train.py --config=configs/saboteur.py --workdir=runs/with   # 1 minute

200 test questions, 97 of them attacked by the team's own saboteur; mean [lowest, highest] of seeds
0, 1, 2 (--config.seed), one shared core of an AMD EPYC, 2026-11-26. An attack succeeds
if the answer is wrong (100 - task/accuracy_of_attacked); tokens are those of an attacked question
(in brackets the saboteur's, in results.jsonl of launch/evaluate.py --out):

                                 right without attack, %   attacks that succeed, %   tokens
  config                         99.0 [98.1, 100.0]         5.8 [2.1, 11.3]          27.3 (7.0)
  --config.budget.lambda_tok=0   100.0                      5.5 [5.2, 6.2]           37.3 (10.5)
  --config.task.options.saboteur=0.0   (none in RL, only in SFT and tests)
                                 99.7 [99.0, 100.0]        20.6 [13.4, 32.0]         24.4 (7.2)
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
