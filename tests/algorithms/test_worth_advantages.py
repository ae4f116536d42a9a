"""Advantages from gains: virtual actions, units, and what was not measured."""

from __future__ import annotations

import numpy as np
import pytest

from agent_gspo.algorithms.advantages.group_baselines import per_component
from agent_gspo.algorithms.advantages.message_worth import worth

NAN = np.float32(np.nan)


def _worth(gain, costs, plain_gain=NAN, plain_costs=0.0, task=0.0, gold=False, **options):
  column = lambda x: np.broadcast_to(np.asarray(x, np.float32), len(gain))
  return worth(
    column(task),
    column(costs),
    np.zeros(len(gain), int),
    np.asarray(gain, np.float32),
    column(plain_gain),
    column(plain_costs),
    np.broadcast_to(gold, len(gain)),
    **{'std_floor': 1.0, **options},
  )


def test_against_a_loop():
  """Two samples of a message, a plain note of 4 nats for 0.1; silence is worse than their mean."""
  found = _worth([6.0, 0.0], [0.2, 0.0], plain_gain=[4.0, np.nan], plain_costs=0.1)
  rewards = [0.6 - 0.2, 0.0, 0.4 - 0.1]  # the last one is virtual
  centred = np.array(rewards[:2]) - np.mean(rewards)
  np.testing.assert_allclose(found, centred, atol=1e-6)
  scaled = _worth([6.0, 0.0], [0.2, 0.0], [4.0, np.nan], 0.1, std_floor=0.01)
  np.testing.assert_allclose(scaled, centred / np.std(rewards), rtol=1e-5)


def test_a_spread_below_the_floor_is_not_blown_up():
  found = _worth([0.1, 0.0], 0.0, std_floor=0.1, virtual=False)
  np.testing.assert_allclose(found, [0.05, -0.05], atol=1e-6)


def test_the_gold_answer_is_learned_in_the_place_of_an_answer():
  gain, gold = [3.0, np.nan, np.nan], [False, True, False]
  found = _worth(gain, 0.1, task=[1.0, 0.0, 1.0], gold=gold, imitation=0.7)
  assert found[1] == np.float32(0.7)
  own = _worth(gain, 0.1, task=[1.0, 0.0, 1.0], gold=gold, imitation=0.0)
  np.testing.assert_array_equal(found[[0, 2]], own[[0, 2]])
  assert own[1] < 0  # by its outcome


def test_a_group_that_is_silent_learns_to_speak_where_the_note_pays():
  assert (_worth([0.0] * 4, 0.0, plain_gain=8.0, plain_costs=0.1) < 0).all()
  assert not _worth([0.0] * 4, 0.0, plain_gain=0.2, plain_costs=0.1).any()
  assert not _worth([0.0] * 4, 0.0, plain_gain=8.0, plain_costs=0.1, virtual=False).any()


def test_a_group_that_never_is_silent_learns_silence_where_the_note_does_not_pay():
  assert (_worth([0.1] * 4, 0.4, plain_gain=0.1, plain_costs=0.3) < 0).all()


def test_a_group_that_does_the_best_known_is_not_rewarded_for_it():
  """Else each group that says what pays would push all agents to speak."""
  assert not _worth([8.0] * 4, 0.1, plain_gain=7.0, plain_costs=0.1).any()


def test_units_and_clipping():
  np.testing.assert_allclose(
    _worth([5.0, 0.0], 0.0, nats=5.0, virtual=False), [0.5, -0.5], atol=1e-6
  )
  np.testing.assert_array_equal(
    _worth([500.0, 0.0], 0.0, virtual=False), _worth([10.0, 0.0], 0.0, virtual=False)
  )
  mixed = _worth([0.0, 0.0], 0.0, task=[1, 0], outcome=0.5, virtual=False)
  np.testing.assert_allclose(mixed, [0.25, -0.25], atol=1e-6)


def test_what_was_not_measured_has_the_advantage_of_its_outcome():
  rng = np.random.default_rng(1)
  task = rng.integers(0, 2, 8).astype(np.float32)
  costs = rng.random(8).astype(np.float32)
  groups = np.repeat([0, 4], 4)
  gain = np.where(np.arange(8) < 4, rng.normal(0, 5, 8), np.nan).astype(np.float32)
  found = worth(task, costs, groups, gain, np.full(8, NAN), np.zeros(8, np.float32), groups < 0)
  np.testing.assert_allclose(found[4:], per_component(task, costs, groups)[4:])
  assert np.isfinite(found).all()


@pytest.mark.parametrize('virtual', [True, False])
def test_a_group_does_not_depend_on_others(virtual):
  rng = np.random.default_rng(2)
  columns = [rng.random(8).astype(np.float32) for _ in range(5)]
  groups = np.repeat([0, 4], 4)
  gold = np.arange(8) % 4 == 3
  whole = worth(*columns[:2], groups, *columns[2:], gold, virtual=virtual)
  task, costs, *gains = (c[:4] for c in (*columns, gold))
  part = worth(task, costs, groups[:4], *gains, virtual=virtual)
  np.testing.assert_allclose(whole[:4], part, rtol=1e-5)
