"""The `learner` and `sft` sections of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class LearnerOptions(Section, name='learner'):
  """How a rollout is cut into optimiser steps, and the optimiser."""

  minibatches: int = option(2, least=1, most=10**5)  # steps a rollout (K); with 1 the ratio is 1
  pack_length: int = option(384, least=16, most=2**20)  # columns of a packed row
  micro_batch_size: int = option(2, least=1, most=2**16)  # packed rows of a micro-batch
  # Of mini-batches; reverse_turns: one a turn, the last first. Empty: the algorithm's.
  order: str = ''
  # trainer: recomputed before the first mini-batch. Empty: trainer in bfloat16, else sampler.
  old_logprobs: str = option('', choices=('sampler', 'trainer'))
  entropy: bool = True  # measure the policy's entropy
  learning_rate: float = option(1e-5, above=0)
  schedule: str = option('constant', choices=('constant', 'linear', 'cosine'))
  warmup_updates: int = option(0, least=0, most=10**9)
  weight_decay: float = option(0.0, least=0)
  b1: float = option(0.9, least=0, below=1)  # decay of the gradient's running mean
  b2: float = option(0.99, least=0, below=1)  # and of its running square
  # Of that mean; bfloat16 takes half the memory.
  b1_dtype: str = option('float32', choices=('float32', 'bfloat16'))
  grad_clip: float = option(1.0, above=0)  # largest global norm


@dataclasses.dataclass(frozen=True)
class SFTOptions(Section, name='sft'):
  """The supervised warm start: imitation of the task's scripted team before step 0."""

  steps: int = option(0, least=0, most=10**7)  # 0 for none
  questions: int = option(32, least=1, most=10**5)  # a step
  learning_rate: float = option(1e-3, above=0)
  # Of a scripted message that nobody needs.
  silence_probability: float = option(0.0, least=0, most=1)
  terse_probability: float = option(0.0, least=0, most=1)  # that says only what is needed
