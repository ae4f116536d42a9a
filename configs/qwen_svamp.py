"""Trains three solvers (Qwen2.5-0.5B-Instruct) on SVAMP, the last of which reads the others.

  python launch/train.py --config=configs/qwen_svamp.py --workdir=runs/qwen_svamp
  python launch/train.py --config=configs/qwen_svamp.py:single --workdir=runs/qwen_alone

No SFT: prompts with two examples, as in configs/smollm2_benchmarks.py. For one accelerator of 24 GB
or more; results of 40 steps on an H100 are in docs/results/benchmarks.md.
"""

from ml_collections import config_dict

from configs import smollm2_benchmarks


def get_config(form: str = 'team') -> config_dict.ConfigDict:
  if form not in ('team', 'single'):
    raise ValueError(f'configs/qwen_svamp.py:{form} must be team or single.')
  config = smollm2_benchmarks.get_config('svamp').unlock()
  config.steps = 40

  config.model.source = 'hf:Qwen/Qwen2.5-0.5B-Instruct'
  config.model.dtype = 'bfloat16'

  if form == 'single':
    config.team.agents, config.team.topology = ('solver',), 'single'

  config.rollout.questions, config.rollout.group_size = 32, 8
  config.rollout.temperature = 0.8
  config.evaluation.questions = 300
  config.evaluation.batch_questions = 300

  config.budget.lambda_tok = 0.03

  # bfloat16 moves ratios by up to 0.02: the paper's 3e-4 would clip a quarter of the messages
  # before anything is learned.
  config.objective.clip_low = 0.2
  config.objective.clip_high = 0.3
  config.learner.learning_rate = 5e-6
  config.learner.warmup_updates = 4
  config.learner.pack_length, config.learner.micro_batch_size = 1024, 4
  config.sampler.prefill_length, config.sampler.prefill_rows = 768, 16
  config.sampler.decode_rows, config.sampler.cache_length = 512, 512
  return config.lock()
