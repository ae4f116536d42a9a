"""Draws prices or budgets that condition a team's policy, shown with each question.

A price per token conditions on the weight of a trade-off, as in Abels et al. (arXiv 1809.07803). A
budget conditions on the target tokens of an episode, as L1 does for one model (arXiv 2503.04697).
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
  """Distribution of prices or budgets, and their texts for agents.

  Attributes:
    kind: 'price' or 'budget'.
    lowest, highest: Bounds of the drawn values, above 0.
    words: Texts for equal parts of `log(value)`, rising.
    free_words: Text for a price of 0, '' without.
    free_probability: Probability of price 0.
  """

  kind: str
  lowest: float
  highest: float
  words: tuple[str, ...]
  free_words: str = ''
  free_probability: float = 0.0

  def of(self, value: float) -> Terms:
    """Returns a value with its text; values out of range get the text of the nearest bound."""
    if value <= 0 and self.free_words:
      return Terms(self.kind, 0.0, self.free_words)
    share = math.log(max(value, self.lowest) / self.lowest) / math.log(self.highest / self.lowest)
    part = min(int(share * len(self.words)), len(self.words) - 1)
    return Terms(self.kind, value, self.words[part])

  def brevity(self, terms: Terms) -> float:
    """Returns the requested brevity: 0 for price 0 and the largest budget, at most 1.

    The smallest of `n` levels of a budget has `1 - 1/n`.
    """
    if terms.words == self.free_words:
      return 0.0
    share = (self.words.index(terms.words) + 1) / len(self.words)
    return share if self.kind == 'price' else 1 - share

  def draw(self, count: int, seed: Sequence[int]) -> list[Terms]:
    """Draws stratified terms in random order: one from each of `count` equal quantile ranges."""
    rng = np.random.default_rng(seed)
    quantiles = (rng.permutation(count) + rng.random(count)) / count
    return [self.of(self._at(float(quantile))) for quantile in quantiles]

  def _at(self, quantile: float) -> float:
    if quantile < self.free_probability:
      return 0.0
    share = (quantile - self.free_probability) / (1 - self.free_probability)
    return self.lowest * (self.highest / self.lowest) ** share


def put(questions: Iterable[Question], terms: Iterable[Terms]) -> list[Question]:
  """Returns questions with their terms set."""
  pairs = zip(questions, terms, strict=True)
  return [dataclasses.replace(question, terms=own) for question, own in pairs]


def make(options: BudgetOptions) -> TermSheet | None:
  """Builds the term sheet of a config, None without conditioning."""
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
