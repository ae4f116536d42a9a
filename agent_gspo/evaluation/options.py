"""The `evaluation` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class EvaluationOptions(Section, name='evaluation'):
  """What is asked to see how good a team is."""

  split: str = 'test'  # of tasks.base.SPLITS
  questions: int = option(200, least=1, most=10**5)
  spread: bool = False  # questions evenly from the whole split, not its first ones
  # Of the training split, asked beside them once training is over.
  seen_questions: int = option(0, least=0, most=10**5)
  # When the untrained team is asked: last lets a slow run begin to learn at once.
  untrained: str = option('first', choices=('first', 'last'))
  # Prices or budgets that the trained team is told, one evaluation each (budget.mode='conditioned',
  # 'target'), beside budget.lambda_tok or budget.budget_episode, which all others tell.
  told: tuple = ()
  temperature: float = option(0.0, least=0)
  every: int = option(0, least=0, most=10**9)  # steps between two during training, 0 for none
  questions_during: int = option(50, least=1, most=10**5)
  # Conversations of each evaluation in which the worth of messages is measured.
  worth_questions: int = option(0, least=0, most=10**5)
  batch_questions: int = option(64, least=1, most=10**5)  # conversations held at a time
  transcripts: int = option(20, least=0, most=10**9)  # episodes kept of each evaluation
