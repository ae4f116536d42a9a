"""The `learner` and `sft` sections of a config."""

from __future__ import annotations

import dataclasses
import math

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class LearnerOptions(Section, name='learner'):
  """How a rollout is cut into optimiser steps, and the optimiser."""

  minibatches: int = option(2, least=1, most=10**5)  # steps a rollout (K); with 1 the ratio is 1
  pack_length: int = option(384, least=16, most=2**20)  # columns of a packed row
  micro_batch_size: int = option(2, least=1, most=2**16)  # packed rows of a micro-batch
  # Of mini-batches; reverse_turns: so many a turn, the last turn first. Empty: the algorithm's.
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
  """The supervised stage before step 0: imitation of the task's demonstrations."""

  steps: int = option(0, least=0, most=10**7)
  epochs: float = option(0.0, least=0, most=1000)  # in place of steps; with neither there is none
  questions: int = option(32, least=1, most=10**5)  # a step
  # Of the order and wording of demonstrations; -1 for the run's own. With one seed for all runs of
  # a sweep those of a pretrained model share one supervised stage.
  seed: int = option(-1, least=-1, most=2**31 - 1)
  learning_rate: float = option(1e-3, above=0)
  # Share of the training questions, by stories, that is not demonstrated: RL asks these alone.
  held_back: float = option(0.0, least=0, below=1)
  # Of a demonstrated message that nobody needs.
  silence_probability: float = option(0.0, least=0, most=1)
  terse_probability: float = option(0.0, least=0, most=1)  # that says only what is needed
  # How far both of these rise to 1 where the team is told a high price or a small budget, so that
  # its words mean something before training: 0 not at all, 1 all the way at the end of the range.
  # Above 0, who is told what is left of a budget is shown messages that take about so much.
  follows_terms: float = option(0.0, least=0, most=1)
  # Of a conversation in which even idle notes are told: to be heard, not to be imitated.
  outspoken_probability: float = option(0.0, least=0, most=1)
  # Of a demonstrated message that begins with some of those who could hear it, drawn at random.
  addressed_probability: float = option(0.0, least=0, most=1)
  # Role -> share of its messages that is trained; 1 for roles that are not named.
  role_shares: dict = dataclasses.field(default_factory=dict)
  # Weight in the loss of the first token of messages whose author holds a note: to speak or not.
  decision_weight: float = option(1.0, above=0)
  save_every: int = option(100, least=1, most=10**9)  # steps; also on Ctrl-C
  # Of the validation split, whose loss is measured with each save; 0 for none.
  validation_questions: int = option(0, least=0, most=10**6)
  # Validations without a lower loss after which the stage ends, with the best; 0 for never.
  patience: int = option(0, least=0, most=1000)

  @property
  def is_asked_for(self) -> bool:
    """Whether there is such a stage."""
    return self.steps > 0 or self.epochs > 0

  def seed_of(self, run: int) -> int:
    """The stage's seed in a run with this one."""
    return run if self.seed < 0 else self.seed

  @property
  def length(self) -> str:
    """The field that says how long it is, with its value."""
    return f'sft.steps={self.steps}' if self.steps else f'sft.epochs={self.epochs}'

  def steps_of(self, questions: int) -> int:
    """Steps of the stage on a training split of so many questions."""
    return self.steps or math.ceil(self.epochs * questions / self.questions)
