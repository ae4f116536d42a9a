"""Tests the draw of prices and budgets for prompts, and their words."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo.algorithms import terms
from agent_gspo.algorithms.options import BudgetOptions
from agent_gspo.types import Question

WORDS = ('free', 'cheap', 'fair', 'dear')
OPTIONS = {'mode': 'conditioned', 'price_low': 0.001, 'lambda_max': 0.064, 'told_words': WORDS}


def make(**options) -> terms.TermSheet:
  found = terms.make(BudgetOptions(**(OPTIONS | options)))
  assert found is not None
  return found


def test_other_modes_have_no_terms():
  assert terms.make(BudgetOptions()) is None
  assert terms.make(BudgetOptions(mode='dual', budget_episode=10.0)) is None


@pytest.mark.parametrize(
  ('price', 'words'),
  [
    (0.0, 'free'),
    (0.0001, 'cheap'),  # below the range
    (0.001, 'cheap'),
    (0.0039, 'cheap'),
    (0.0041, 'fair'),  # equal parts of the logarithm: 0.001, 0.004, 0.016, 0.064
    (0.0159, 'fair'),
    (0.0161, 'dear'),
    (0.064, 'dear'),
    (1.0, 'dear'),  # above it
  ],
)
def test_words_are_of_equal_parts_of_the_logarithm(price, words):
  told = make().of(price)
  assert (told.value, told.words) == (price, words)


@given(st.floats(0, 1), st.floats(0, 1))
def test_words_rise_with_the_price(a, b):
  low, high = (WORDS.index(make().of(p).words) for p in sorted((a, b)))
  assert low <= high


@given(st.integers(1, 60), st.sampled_from([0.0, 0.01, 0.15, 0.5, 0.95]), st.integers(0, 10**6))
def test_a_draw_is_spread_over_the_whole_distribution(count, free, seed):
  prices = make(free_probability=free)
  drawn = prices.draw(count, (seed, 1))
  assert drawn == prices.draw(count, (seed, 1))
  values = np.sort([price.value for price in drawn])
  assert abs((values == 0).sum() - free * count) <= 1
  for i, value in enumerate(values):
    if value:  # the i-th part of the distribution, and no other
      share = free + (1 - free) * math.log(value / 0.001) / math.log(64)
      assert i / count - 1e-9 <= share <= (i + 1) / count + 1e-9


def test_the_order_is_random():
  drawn = [make().draw(4, (seed,)) for seed in range(400)]
  dearest = collections.Counter(max(range(4), key=lambda i: d[i].value) for d in drawn)
  assert all(60 < dearest[i] < 140 for i in range(4))


def test_each_question_has_its_own_terms():
  questions = [Question(str(i), 'Q', 'A') for i in range(3)]
  drawn = make().draw(3, (0,))
  told = terms.put(questions, drawn)
  assert [(q.id, q.terms) for q in told] == [(str(i), price) for i, price in enumerate(drawn)]


BUDGET = {'mode': 'target', 'target_low': 8.0, 'target_high': 32.0, 'budget_episode': 20.0}


def test_budgets_have_no_word_for_free():
  sheet = make(**BUDGET, told_words=('few', 'many'))
  assert sheet.kind == 'budget'
  assert [sheet.of(n).words for n in (0, 8, 15.9, 16.1, 32, 99)] == ['few'] * 3 + ['many'] * 3
  drawn = [terms.value for terms in sheet.draw(100, (0,))]
  assert 8 <= min(drawn) < 8.2
  assert 31 < max(drawn) <= 32


def test_brevity_is_asked_for_by_high_prices_and_small_budgets():
  prices = make()
  assert [prices.brevity(prices.of(p)) for p in (0, 0.001, 0.064)] == [0.0, 1 / 3, 1.0]
  budgets = make(**BUDGET, told_words=('a', 'b', 'c', 'd'))
  assert [budgets.brevity(budgets.of(n)) for n in (8, 20, 32)] == [0.75, 0.25, 0.0]


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'told_words': ('free',)}, r"budget.told_words=\('free',\) must be two or more different"),
    ({'told_words': ('a', 'b', 'a')}, r'budget.told_words=.* must be two or more different'),
    ({'told_words': ('', 'a', 'b')}, r"budget.told_words holds ''; must be nonblank texts"),
    ({'told_words': ('a', 1)}, r'budget.told_words holds 1; must be nonblank'),
    ({'mode': 'fixed'}, r"budget.mode='fixed' does not read it"),
    ({'mode': 'fixed', 'told_words': (None,)}, r'budget.told_words holds None; must be nonblank'),
    ({**BUDGET, 'target_low': 32.0}, r'budget.target_low=32.0 must be below budget.target_high'),
    (
      {**BUDGET, 'budget_episode': 0.0},
      r"budget.mode='target' needs budget.budget_episode above 0",
    ),
    ({'price_low': 0.064}, r'budget.price_low=0.064 must be below budget.lambda_max=0.064'),
    ({'price_low': 0.0}, r'budget.price_low=0.0 must be above 0'),
    ({'free_probability': 1.0}, r'budget.free_probability=1.0 must be at least 0 and below 1'),
  ],
)
def test_bad_options(values, message):
  with pytest.raises(ValueError, match=message):
    make(**values)


def test_evaluations_show_the_budget_or_the_price():
  told = BudgetOptions(**BUDGET, told_words=('few', 'many')).evaluated_terms
  assert told == BUDGET['budget_episode']
  assert BudgetOptions(**OPTIONS, lambda_tok=0.03).evaluated_terms == 0.03
