"""Runs the work of `work.py` with TRL's GRPOTrainer (PyTorch)."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile

import datasets
import torch
import transformers
import trl
import work


class Timed(trl.GRPOTrainer):
  """GRPOTrainer with timed phases."""

  def _generate(self, *arguments, **named):
    return clock.timed('rollout', super()._generate)(*arguments, **named)

  def _generate_and_score_completions(self, *arguments, **named):
    found = super()._generate_and_score_completions(*arguments, **named)
    clock.wrote(int(found['completion_mask'].sum()))
    self.generated = clock.now()
    return found


class Steps(transformers.TrainerCallback):
  """Notifies the clock of the end of steps."""

  def on_train_begin(self, *_, **__):
    clock.start()

  def on_step_end(self, *_, **__):
    clock.add('update', trainer.generated)
    clock.end_step()


options = work.options()
clock = work.Clock(options)
torch.manual_seed(0)
torch.set_num_threads(len(os.sched_getaffinity(0)))
shape = work.SHAPES[options.shape]
model = transformers.LlamaForCausalLM(
  transformers.LlamaConfig(
    vocab_size=work.VOCABULARY,
    hidden_size=shape['width'],
    intermediate_size=shape['mlp'],
    num_hidden_layers=shape['layers'],
    num_attention_heads=shape['heads'],
    num_key_value_heads=shape['kv_heads'],
    head_dim=work.HEAD_DIM,
    max_position_embeddings=work.PROMPT_TOKENS + work.WRITTEN_TOKENS,
    rms_norm_eps=work.NORM_EPS,
    rope_theta=work.ROPE_THETA,
    initializer_range=work.INIT_STD,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
  )
).float()
assert sum(p.numel() for p in model.parameters()) == work.parameters(shape)
steps = options.warmup + options.steps
with tempfile.TemporaryDirectory() as folder:
  trainer = Timed(
    model=model,
    reward_funcs=lambda completions, **_: [work.score(text) for text in completions],
    processing_class=transformers.PreTrainedTokenizerFast(
      tokenizer_object=work.backend(),
      pad_token=work.PAD,
      eos_token=work.EOS,
      padding_side='left',
    ),
    train_dataset=datasets.Dataset.from_dict({'prompt': work.questions(steps)}),
    callbacks=[Steps()],
    args=trl.GRPOConfig(
      output_dir=folder,
      max_steps=steps,
      per_device_train_batch_size=work.PROMPTS * work.SAMPLES,
      num_generations=work.SAMPLES,
      max_completion_length=work.WRITTEN_TOKENS,
      temperature=1.0,
      top_p=1.0,
      top_k=0,
      beta=0.0,
      importance_sampling_level='sequence',
      loss_type='grpo',
      epsilon=work.CLIP_LOW,
      epsilon_high=work.CLIP_HIGH,
      learning_rate=work.LEARNING_RATE,
      lr_scheduler_type='constant',
      weight_decay=0.0,
      max_grad_norm=work.GRAD_CLIP,
      gradient_checkpointing=False,
      use_cpu=True,
      bf16=False,
      save_strategy='no',
      report_to='none',
      disable_tqdm=True,
      seed=0,
    ),
  )
  trainer.train()
clock.report({name: importlib.metadata.version(name) for name in ('trl', 'torch', 'transformers')})
