"""Tests attributions of complementary, redundant and silent messages, and their optimum."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo.algorithms import attribution


def _values(players, value):
  subsets = (s for n in range(len(players) + 1) for s in itertools.combinations(players, n))
  return {frozenset(s): value(frozenset(s)) for s in subsets}


def _divide(name, values, said, slots):
  read = {c: values[c] for c in attribution.coalitions(name, frozenset(said), slots)}
  return attribution.ATTRIBUTIONS[name](read, frozenset(said), slots)


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('leave_one_out', [5, 5, 0]),
    ('potential', [5, 5, 0]),
    ('segment', [0, 5, 0]),
    ('shapley', [2.5, 2.5, 0]),
  ],
)
def test_complementary_messages(name, expected):
  """Neither of the first two has value without the other; the third is irrelevant."""
  values = _values([0, 1, 2], lambda s: 5.0 if {0, 1} <= s else 0.0)
  assert _divide(name, values, [0, 1, 2], [0, 1, 2]) == pytest.approx(expected)


@pytest.mark.parametrize(
  ('name', 'expected'),
  [('leave_one_out', [0, 0]), ('potential', [5, 0]), ('segment', [5, 0]), ('shapley', [2.5, 2.5])],
)
def test_redundant_messages(name, expected):
  """Leave-one-out credits neither of two equal messages, potential the first."""
  values = _values([0, 1], lambda s: 5.0 if s else 0.0)
  assert _divide(name, values, [0, 1], [0, 1]) == pytest.approx(expected)


@pytest.mark.parametrize(
  ('name', 'expected'),
  [('leave_one_out', [0, 3]), ('potential', [3, 3]), ('segment', [0, 3]), ('shapley', [0, 3])],
)
def test_a_silent_slot(name, expected):
  """Slot 0 is silent: under the potential its return is that of the later messages."""
  values = _values([1], lambda s: 3.0 * len(s))
  assert _divide(name, values, [1], [0, 1]) == pytest.approx(expected)


@st.composite
def _games(draw):
  slots = list(range(draw(st.integers(1, 4))))
  said = [s for s in slots if draw(st.booleans())]
  numbers = st.floats(-10, 10, allow_nan=False)
  table = {}
  return slots, said, _values(slots, lambda s: table.setdefault(s, draw(numbers)))


@given(_games())
def test_gains_telescope_and_shapley_is_efficient(game):
  slots, said, values = game
  whole = values[frozenset(said)] - values[frozenset()]
  returns = [*_divide('potential', values, said, slots), 0.0]
  segments = _divide('segment', values, said, slots)
  assert segments == pytest.approx(-np.diff(returns))
  assert returns[0] == pytest.approx(whole)
  for place, slot in enumerate(slots):  # a step of the shaped reward
    before = frozenset(said) & {*slots[:place]}
    after = before | ({slot} & {*said})
    assert returns[place] - returns[place + 1] == pytest.approx(values[after] - values[before])
  assert sum(_divide('shapley', values, said, slots)) == pytest.approx(whole)


@given(_games())
def test_shapley_is_the_mean_over_orders(game):
  slots, said, values = game
  expected = dict.fromkeys(slots, 0.0)
  for order in itertools.permutations(said):
    for place, slot in enumerate(order):
      before = frozenset(order[:place])
      expected[slot] += (values[before | {slot}] - values[before]) / math.factorial(len(said))
  found = _divide('shapley', values, said, slots)
  np.testing.assert_allclose(found, [expected[s] for s in slots], atol=1e-9)


@pytest.mark.parametrize('name', ['leave_one_out', 'potential'])
def test_the_optimum_without_a_price_is_that_of_the_value(name):
  """The gradient of the expected credit is that of the expected value, for two parallel authors."""
  rng = np.random.default_rng(0)
  values = _values([0, 1], lambda s: float(rng.normal()))
  speaks = np.array([0.3, 0.8])  # probability that each author says its note
  gradient, credited = np.zeros(2), np.zeros(2)
  for said in itertools.product([0, 1], repeat=2):
    chance = np.prod([p if s else 1 - p for s, p in zip(said, speaks, strict=True)])
    players = [slot for slot in range(2) if said[slot]]
    score = np.array([s - p for s, p in zip(said, speaks, strict=True)])  # d log pi / d logit
    gradient += chance * score * values[frozenset(players)]
    credited += chance * score * np.array(_divide(name, values, players, [0, 1]))
  np.testing.assert_allclose(credited, gradient, atol=1e-12)


def test_a_hint_is_valued_with_the_others_and_without_it():
  said = frozenset({0, 2})
  found = attribution.coalitions('hint', said, [0, 1, 2])
  assert found[0] == said
  assert set(found) == {said, frozenset({0}), frozenset({2})}


@pytest.mark.parametrize('name', [*attribution.ATTRIBUTIONS, 'hint'])
@pytest.mark.parametrize('slots', [1, 3])
def test_no_more_coalitions_than_are_planned_for(name, slots):
  found = attribution.coalitions(name, frozenset(range(slots)), range(slots))
  assert len(found) == attribution.most_coalitions(name, slots)
