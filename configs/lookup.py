"""Trains a scout that may look up a fact for a solver, at a price for inserted tokens.

Half of the questions contain their answer. Demonstrations call the retriever at random. No result
is claimed yet.

  python launch/sweep.py --config=configs/lookup.py --workdir=runs/lookup \\
    --lambdas=0,0.05,0.4 --seeds=0,1,2

The task is configs/tasks/lookup.py.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 150
  config.model.source = 'random:micro'
  config.task.name = 'configs.tasks.lookup:Lookup'
  config.team.agents, config.team.topology = ('scout', 'solver'), 'chain'
  config.team.max_message_tokens = 12
  config.team.roles.scout = {'opening': '{question}', 'cue': ' say :', 'tools': ('retriever',)}
  config.team.roles.solver = {'opening': '{question}', 'incoming': ' {message}', 'cue': ' :'}
  config.rollout.questions, config.rollout.group_size = 16, 16
  config.advantage.name, config.advantage.costs = 'group_mean', 'inside'
  config.reward.p_write, config.reward.p_tool = 0.0, 1.0  # only tool results have a cost
  config.reward.gate = 'correct'
  config.budget.lambda_tok = 0.05
  config.objective.clip_low, config.objective.clip_high = 0.2, 0.3
  config.learner.learning_rate = 1e-3
  config.learner.pack_length = 64
  config.sft.steps, config.sft.questions, config.sft.learning_rate = 300, 32, 5e-3
  config.evaluation.questions = 200
  config.evaluation.temperature = 1.0
  return config.lock()
