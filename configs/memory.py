"""Facts arrive in visits: one agent writes notes, one finds them, one answers.

python launch/train.py --config=configs/memory.py --workdir=runs/memory   # seed 0, 6 minutes

200 test questions, two cores of an AMD EPYC beside other work, 2026-11-26: accuracy 79.5 % after
SFT, 99.5 after RL; tokens stored (written by the scribe) 38.2 and 16.2, written by all 52.8 and
24.6, read 184 and 138; silent visits 3.9 and 22.1 % (a quarter have no fact).
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
