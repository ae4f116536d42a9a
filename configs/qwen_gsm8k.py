"""Trains Qwen2.5-0.5B-Instruct as a planner and a solver on GSM8K, for one accelerator.

    python launch/train.py --config=configs/qwen_gsm8k.py --workdir=runs/qwen_gsm8k

Not run yet: this was written without an accelerator and without a network for the model (1 GB, from
the Hugging Face hub). tests/integration/test_configs.py trains a narrow
Qwen2 with random weights on this team and these settings, and compares the model's shapes with
the published ones. Learning rate, price and batch are starting points, not tuned.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config

_PLANNER = (
  'You are the planner of a team of two. Your teammate will solve the problem after reading your '
  'message. Write the steps to take in as few words as possible and calculate nothing. If the '
  'problem needs no plan, reply with nothing.'
)
_SOLVER = (
  'You are the solver of a team of two. Solve the problem step by step in as few words as '
  "possible. Your teammate's plan, if there is one, may help. End with '#### ' and the number."
)


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 100

  config.model.source = 'hf:Qwen/Qwen2.5-0.5B-Instruct'
  config.model.dtype = 'bfloat16'
  config.model.remat = True
  config.model.lora_rank = 32
  config.model.lora_alpha = 64.0

  config.task.name = 'gsm8k'

  config.team.agents = ('planner', 'solver')
  config.team.topology = 'chain'
  config.team.max_message_tokens = 320
  config.team.roles.planner = {
    'style': 'chat',
    'system': _PLANNER,
    'opening': '{question}\n',
    'cue': 'Your plan:',
    'max_tokens': 96,
  }
  config.team.roles.solver = {
    'style': 'chat',
    'system': _SOLVER,
    'opening': '{question}\n',
    'incoming': 'Plan of the {sender}: {message}\n',
    'cue': 'Your solution:',
  }

  config.rollout.questions = 16
  config.rollout.group_size = 8
  config.sampler.prefill_length = 1024
  config.sampler.prefill_rows = 8
  config.sampler.decode_rows = 256

  # Spend as little as the accuracy allows: the price of a token rises while the team stays
  # near its best and falls when it does not.
  config.budget.mode = 'accuracy_floor'
  config.budget.lambda_max = 0.002
  config.budget.floor = 0.2
  config.budget.floor_of_best = 0.95
  config.reward.gate = 'group_accuracy'
  config.reward.gate_accuracy = 0.5
  config.advantage.grouping = 'question_turn_agent'

  # Messages are long enough here for GSPO's own clip band, which is the default.
  config.learner.minibatches = 4
  config.learner.pack_length = 1024
  config.learner.micro_batch_size = 8
  config.learner.learning_rate = 5e-5
  config.learner.warmup_updates = 20

  config.evaluation.questions = 1319
  config.evaluation.every = 25
  config.evaluation.questions_during = 200
  config.evaluation.batch_questions = 256
  return config.lock()
