"""Defines the `learner` and `sft` sections of a config."""

from __future__ import annotations

import dataclasses
import math

from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.options import Section, option
from agent_gspo.values import is_number, shown


@dataclasses.dataclass(frozen=True)
class LearnerOptions(Section, name='learner'):
  """The split of a rollout into optimizer steps, and the optimizer.

  Attributes:
    minibatches: Optimizer steps per rollout (K); with 1 the ratio is 1.
    pack_length: Columns of a packed row.
    micro_batch_size: Packed rows of a micro-batch; a multiple of `mesh.data * mesh.fsdp`.
    order: Order of mini-batches; reverse_turns: `minibatches` per turn, last turn first. Empty: the
      algorithm's.
    old_logprobs: Source of the old log-probs; trainer: recomputed before the first mini-batch.
      Empty: trainer in bfloat16, else sampler.
    replay_routing: Experts of a mixture that tokens are routed to. trainer: those of the old policy
      (R2, arXiv 2507.18071), with the trainer's old log-probs; sampler: those of the rollout (R3,
      arXiv 2510.11370), for the old log-probs too. Empty: the router's.
    entropy: Measure the policy's entropy.
    learning_rate: Learning rate of RL, after warm-up.
    schedule: Decay of the learning rate over the run.
    warmup_updates: Optimizer steps of linear warm-up.
    weight_decay: Decoupled weight decay of AdamW.
    b1: Decay of the gradient's running mean.
    b2: Decay of the gradient's running square.
    b1_dtype: Dtype of the running mean; bfloat16 takes half the memory.
    grad_clip: Largest global norm of the gradient.
  """

  minibatches: int = option(2, least=1, most=10**5)
  pack_length: int = option(384, least=16, most=2**20)
  micro_batch_size: int = option(2, least=1, most=2**16)
  order: str = option('', choices=tuple(ORDERS))
  old_logprobs: str = option('', choices=('sampler', 'trainer'))
  replay_routing: str = option('', choices=('trainer', 'sampler'))
  entropy: bool = True
  learning_rate: float = option(1e-5, above=0)
  schedule: str = option('constant', choices=('constant', 'linear', 'cosine'))
  warmup_updates: int = option(0, least=0, most=10**9)
  weight_decay: float = option(0.0, least=0)
  b1: float = option(0.9, least=0, below=1)
  b2: float = option(0.99, least=0, below=1)
  b1_dtype: str = option('float32', choices=('float32', 'bfloat16'))
  grad_clip: float = option(1.0, above=0)


@dataclasses.dataclass(frozen=True)
class SFTOptions(Section, name='sft'):
  """SFT before step 0: imitation of the task's demonstrations.

  Each model that learns (`model.source`, `team.roles.*.trains`) imitates its own agents' messages
  of the same questions: a loss and an optimizer step each per SFT step, at the same learning rate.
  Metrics of a role's model end in `/<role>`. Validation loss and patience are those of all models
  together; nats are per token of the author.

  Attributes:
    steps: SFT steps.
    epochs: Passes over the training split, in place of steps; no SFT if both are 0.
    questions: Questions per step.
    seed: Seed of the order and wording of demonstrations; -1 for the run's seed. With one value for
      all runs of a sweep, runs of a pretrained model share one SFT result.
    learning_rate: Learning rate of SFT.
    held_back: Share of the training questions, by stories, held out of SFT: RL asks only these.
    silence_probability: Probability that a demonstrated message about an irrelevant note is silent.
    terse_probability: Probability of a message that states only the fact.
    follows_terms: Conditioning of both probabilities on the price or budget in the prompt, so that
      it has a meaning before RL: 0 none, 1 rises to 1 at the highest price, and to `1 - 1/n` at the
      smallest of `n` levels of a budget.
      Above 0, agents that see the budget left are shown messages of about that length.
    outspoken_probability: Probability of an episode in which irrelevant notes are sent too: read,
      not imitated.
    addressed_probability: Probability that a demonstrated message is addressed to some of its
      possible readers, at random.
    role_shares: Role -> share of its messages that is trained; 1 for roles that are not named.
    decision_weight: Loss weight of the first token (speak or stay silent) of messages whose author
      has a note.
    save_every: Steps between SFT checkpoints; also saved on Ctrl-C.
    validation_questions: Questions of the validation split, whose loss is measured with each save;
      0 for none.
    patience: Validations without a lower loss after which SFT ends, with the best step; 0 for
      never.
  """

  steps: int = option(0, least=0, most=10**7)
  epochs: float = option(0.0, least=0, most=1000)
  questions: int = option(32, least=1, most=10**5)
  seed: int = option(-1, least=-1, most=2**31 - 1)
  learning_rate: float = option(1e-3, above=0)
  held_back: float = option(0.0, least=0, below=1)
  silence_probability: float = option(0.0, least=0, most=1)
  terse_probability: float = option(0.0, least=0, most=1)
  follows_terms: float = option(0.0, least=0, most=1)
  outspoken_probability: float = option(0.0, least=0, most=1)
  addressed_probability: float = option(0.0, least=0, most=1)
  role_shares: dict = dataclasses.field(default_factory=dict)
  decision_weight: float = option(1.0, above=0)
  save_every: int = option(100, least=1, most=10**9)
  validation_questions: int = option(0, least=0, most=10**6)
  patience: int = option(0, least=0, most=1000)

  def __post_init__(self):
    super().__post_init__()
    if self.steps and self.epochs:
      raise ValueError(
        f'sft.steps={self.steps} and sft.epochs={self.epochs} both set the length of SFT. Set one '
        'to 0.'
      )
    if self.held_back and not self.is_asked_for:
      raise ValueError(
        f'sft.held_back={self.held_back} needs SFT: set sft.epochs, or sft.held_back to 0.'
      )
    for role, share in self.role_shares.items():
      if not is_number(share) or not 0 <= share <= 1:
        raise ValueError(f'sft.role_shares.{role}={shown(share)} must be a number from 0 to 1.')
    if self.is_asked_for and self.patience and not self.validation_questions:
      raise ValueError(
        f'sft.patience={self.patience} needs a validation loss: set sft.validation_questions.'
      )

  @property
  def is_asked_for(self) -> bool:
    """Returns whether the run begins with SFT."""
    return self.steps > 0 or self.epochs > 0

  def seed_of(self, run: int) -> int:
    """Returns the SFT seed, given the run's seed."""
    return run if self.seed < 0 else self.seed

  @property
  def length(self) -> str:
    """Returns the field that sets the length of SFT, with its value."""
    return f'sft.steps={self.steps}' if self.steps else f'sft.epochs={self.epochs}'

  def steps_of(self, questions: int) -> int:
    """Returns the SFT steps for a training split of `questions` questions."""
    return self.steps or math.ceil(round(self.epochs * questions / self.questions, 9))
