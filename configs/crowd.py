"""Trains three models on one another's answers, without labels (RLCCF, arXiv 2508.12338).

Each adds two numbers alone; votes weighted by self-consistency give the label of all three. SFT is
short, so that RL has something to learn. Two of the models are dense, one a mixture of experts.

  python launch/train.py --config=configs/crowd.py --workdir=runs/crowd

Figures: docs/results/learning.md. Votes need models that are mostly right: from 67 % (seed 0, 200
SFT steps) and at a learning rate of 3e-4 they ended at 57 %, agreeing with 31 % of the labels.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config

_MODELS = {'ann': '', 'bob': 'random:micro', 'cara': 'random:micro_moe'}


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 80
  config.model.source = 'random:micro'

  config.task.name = 'relay'
  config.task.options = config_dict.ConfigDict(
    {'num_informants': 2, 'num_irrelevant': 0, 'whole_problem': True, 'text_style': 'words'}
  )

  config.team.agents = tuple(_MODELS)
  config.team.topology = 'debate'  # of one round: no agent reads another
  config.team.decision = 'majority'
  config.team.max_message_tokens = 8
  for name, source in _MODELS.items():
    role = {'opening': '{question}', 'cue': ' answer :', 'model': source}
    config.team.roles[name] = role | {'trains': bool(source)}

  config.rollout.questions = 16
  config.rollout.group_size = 8

  config.reward.score = 'collective_vote'
  config.advantage.grouping = 'question_agent'
  config.budget.lambda_tok = 0.0

  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 1e-4
  config.learner.pack_length = 192
  config.learner.micro_batch_size = 6

  config.sft.steps = 230
  config.sft.questions = 16
  config.sft.learning_rate = 5e-3

  config.evaluation.temperature = 1.0
  return config.lock()
