"""Defines the `evaluation` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option
from agent_gspo.tasks.options import SPLITS
from agent_gspo.values import is_number, shown


@dataclasses.dataclass(frozen=True)
class EvaluationOptions(Section, name='evaluation'):
  """Questions, schedule and sampling of evaluations.

  Attributes:
    split: Split that is evaluated.
    questions: Questions of an evaluation before and after training.
    spread: Take questions evenly from the whole split, not its first ones.
    seen_questions: Questions of the training split, evaluated as well after training.
    untrained: When the untrained team is evaluated; 'last' lets a slow run start training at once.
    told: Prices or budgets stated to the trained team, one evaluation each (`budget.mode`
      'conditioned', 'target'), besides `budget.lambda_tok` or `budget.budget_episode` in all other
      evaluations.
    samples: Episodes of each question. Above 1, which needs a temperature above 0, evaluations also
      report `pass@k` and `pass^k`.
    temperature: Sampling temperature; 0 is greedy.
    every: Steps between evaluations, 0 for none in training.
    patience: Evaluations in training, each with neither a higher accuracy nor fewer tokens written
      than some earlier one, after which training ends; 0 for never.
    questions_during: Questions of an evaluation in training.
    worth_questions: Questions of each evaluation of a run, not of `launch/evaluate.py`, in which
      the worth of messages is measured.
    batch_questions: Episodes of a batch.
    transcripts: Episodes saved per evaluation.
  """

  split: str = option('test', choices=SPLITS)
  questions: int = option(200, least=1, most=10**5)
  spread: bool = False
  seen_questions: int = option(0, least=0, most=10**5)
  untrained: str = option('first', choices=('first', 'last'))
  told: tuple = ()
  samples: int = option(1, least=1, most=1000)
  temperature: float = option(0.0, least=0)
  every: int = option(0, least=0, most=10**9)
  patience: int = option(0, least=0, most=1000)
  questions_during: int = option(50, least=1, most=10**5)
  worth_questions: int = option(0, least=0, most=10**5)
  batch_questions: int = option(64, least=1, most=10**5)
  transcripts: int = option(20, least=0, most=10**9)

  def __post_init__(self):
    super().__post_init__()
    if self.patience and not self.every:
      raise ValueError(
        f'evaluation.patience={self.patience} with evaluation.every=0: training is not evaluated. '
        'Set evaluation.every to the steps between two evaluations, or evaluation.patience=0.'
      )
    if self.samples > 1 and not self.temperature:
      raise ValueError(
        f'evaluation.samples={self.samples} with evaluation.temperature=0: all samples would be '
        'equal. Set evaluation.temperature above 0, or evaluation.samples=1.'
      )
    for value in self.told:
      if not is_number(value) or value < 0:
        raise ValueError(
          f'evaluation.told has {shown(value)}; must be prices or budgets, numbers of 0 or more.'
        )
