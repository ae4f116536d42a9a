"""Terms that a team is told with its question, so that one policy serves them all.

A price of a token: conditioning on the weight of a trade-off, as in Abels et al. (arXiv
1809.07803). Or a budget, the tokens that an episode should take, as L1 tells one model (arXiv
2503.04697).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from agent_gspo.algorithms.options import BudgetOptions
from agent_gspo.types import Question, Terms


@dataclasses.dataclass(frozen=True)
class TermSheet:
  """Which terms are drawn, and how agents read them.

  Attributes:
    kind: 'price' or 'budget'.
    lowest, highest: value that is drawn, above 0.
    words: for equal parts of `log(value)`, rising.
    free_words: for a price of 0, '' where there is none.
    free_probability: of that price.
  """

  kind: str
  lowest: float
  highest: float
  words: tuple[str, ...]
  free_words: str = ''
  free_probability: float = 0.0

  def of(self, value: float) -> Terms:
    """A value with its words; one beyond the range has those of its end."""
    if value <= 0 and self.free_words:
      return Terms(self.kind, 0.0, self.free_words)
    share = math.log(max(value, self.lowest) / self.lowest) / math.log(self.highest / self.lowest)
    part = min(int(share * len(self.words)), len(self.words) - 1)
    return Terms(self.kind, value, self.words[part])

  def brevity(self, terms: Terms) -> float:
    """How much terms ask to be brief: from 0, for free or at the largest budget, to 1."""
    if terms.words == self.free_words:
      return 0.0
    share = (self.words.index(terms.words) + 1) / len(self.words)
    return share if self.kind == 'price' else 1 - share

  def draw(self, count: int, seed: Sequence[int]) -> list[Terms]:
    """As many terms, in random order: one from each of `count` equal parts of the distribution.

    Args:
      count: of the questions.
      seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    quantiles = (rng.permutation(count) + rng.random(count)) / count
    return [self.of(self._at(float(quantile))) for quantile in quantiles]

  def _at(self, quantile: float) -> float:
    if quantile < self.free_probability:
      return 0.0
    share = (quantile - self.free_probability) / (1 - self.free_probability)
    return self.lowest * (self.highest / self.lowest) ** share


def put(questions: Iterable[Question], terms: Iterable[Terms]) -> list[Question]:
  """Questions on terms of their own."""
  pairs = zip(questions, terms, strict=True)
  return [dataclasses.replace(question, terms=own) for question, own in pairs]


def make(options: BudgetOptions) -> TermSheet | None:
  """That of a config, None where the team is told nothing."""
  words = tuple(options.told_words)
  if options.mode == 'conditioned':
    free, *others = words
    return TermSheet(
      'price',
      options.price_low,
      options.lambda_max,
      tuple(others),
      free_words=free,
      free_probability=options.free_probability,
    )
  if options.mode == 'target':
    return TermSheet('budget', options.target_low, options.target_high, words)
  return None
