"""Deals GSM8K to a team of Qwen2.5-0.5B-Instruct, for one accelerator.

  python launch/train.py --config=configs/gsm8k_dealt.py --workdir=runs/gsm8k_dealt

The ablation over the token price:

  python launch/sweep.py --config=configs/gsm8k_dealt.py --workdir=runs/gsm8k_prices \
    --lambdas=0,0.001,0.003,0.01 --seeds=0,1

SFT demonstrates the official rationales to the solver, which is graded by its last number. Not run
yet: this was written without an accelerator and without a network for the model.
tests/integration/test_configs.py trains a narrow Qwen2 with random weights on these settings.
Learning rates, prices and batch are starting points, not tuned.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config


def get_config() -> config_dict.ConfigDict:
  config = default_config()
  config.steps = 200

  config.model.source = 'hf:Qwen/Qwen2.5-0.5B-Instruct'
  config.model.dtype = 'bfloat16'
  config.model.remat = True

  config.task.name = 'dealt'
  config.task.options = config_dict.ConfigDict(
    {'benchmark': 'gsm8k', 'num_informants': 3, 'grader': 'strict'}
  )

  config.team.agents = ('informant',) * 3 + ('solver',)
  config.team.topology = 'star'
  config.team.max_message_tokens = 352
  config.team.roles.informant = {
    'opening': 'Question: {question}\nNote: {note}\n',
    'cue': 'Message:',
    'max_tokens': 112,
  }
  config.team.roles.solver = {
    'opening': 'Question: {question}\n',
    'incoming': '-{message}\n',
    'cue': 'Solution:',
  }

  config.sft.epochs = 2.0
  config.sft.seed = 0  # the same SFT for all seeds of a sweep
  config.sft.questions = 64
  config.sft.learning_rate = 2e-5
  config.sft.silence_probability = 0.8  # these three as in configs/multiarith_dealt.py
  config.sft.terse_probability = 0.5
  config.sft.outspoken_probability = 0.5
  config.sft.role_shares.informant = 0.25
  config.sft.save_every = 26
  config.sft.validation_questions = 256
  config.sft.patience = 3

  config.rollout.questions = 16
  config.rollout.group_size = 8
  config.rollout.temperature = 0.7
  config.sampler.prefill_length = 1024
  config.sampler.prefill_rows = 8
  config.sampler.decode_rows = 256

  config.advantage.grouping = 'question_turn_agent'
  config.reward.gate = 'group_accuracy'
  config.reward.gate_accuracy = 0.2
  config.budget.lambda_tok = 0.003

  # Ratios of short messages vary more than those of long solutions: wider than GSPO's band.
  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.minibatches = 4
  config.learner.pack_length = 1024
  config.learner.micro_batch_size = 8
  config.learner.learning_rate = 1e-6
  config.learner.warmup_updates = 20

  config.evaluation.temperature = 0.0
  config.evaluation.questions = 1273
  config.evaluation.batch_questions = 256
  return config.lock()
