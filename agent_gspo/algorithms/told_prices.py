"""Prices that a team is told with its question, so that one policy serves them all.

Conditioning on the weight of a trade-off, as in Abels et al. (arXiv 1809.07803), with the price of
a token for the weight.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from agent_gspo.algorithms.options import BudgetOptions
from agent_gspo.types import Price, Question


@dataclasses.dataclass(frozen=True)
class ToldPrices:
  """Which prices are drawn, and how agents read them.

  Attributes:
    lowest: of those that are drawn above 0.
    highest: of all.
    free_probability: of a price of 0.
    words: for a price of 0, then for equal parts of `log(price)`, rising.
  """

  lowest: float
  highest: float
  free_probability: float
  words: tuple[str, ...]

  def of(self, price: float) -> Price:
    """A price with its words; one beyond the range has those of its end."""
    if price <= 0:
      return Price(value=0.0, words=self.words[0])
    share = math.log(price / self.lowest) / math.log(self.highest / self.lowest)
    parts = len(self.words) - 1
    return Price(value=price, words=self.words[1 + min(max(int(share * parts), 0), parts - 1)])

  def height(self, price: Price) -> float:
    """Where the words of a price stand: from 0, of those for free, to 1, of the dearest."""
    return self.words.index(price.words) / (len(self.words) - 1)

  def draw(self, count: int, seed: Sequence[int]) -> list[Price]:
    """As many prices, in random order: one from each of `count` equal parts of the distribution.

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


def tell(questions: Iterable[Question], prices: Iterable[Price]) -> list[Question]:
  """Questions with a price each."""
  pairs = zip(questions, prices, strict=True)
  return [dataclasses.replace(question, price=price) for question, price in pairs]


def make(options: BudgetOptions) -> ToldPrices | None:
  """Those of a config, None where the team is told nothing."""
  if options.mode != 'conditioned':
    return None
  return ToldPrices(
    lowest=options.price_low,
    highest=options.lambda_max,
    free_probability=options.free_probability,
    words=tuple(options.price_words),
  )
