"""Tests advantages from gains: virtual actions, units, unmeasured messages."""

from __future__ import annotations

import numpy as np
import pytest

from agent_gspo.algorithms import attribution
from agent_gspo.algorithms.advantages.group_baselines import per_component
from agent_gspo.algorithms.advantages.message_worth import hill, potential, spo_segment, worth

NAN = np.float32(np.nan)


def _worth(
  gain, costs, plain_gain=NAN, plain_costs=0.0, silence_costs=0.0, task=0.0, gold=False, **options
):
  column = lambda x: np.broadcast_to(np.asarray(x, np.float32), len(gain))
  return worth(
    column(task),
    column(costs),
    np.zeros(len(gain), int),
    np.asarray(gain, np.float32),
    column(plain_gain),
    column(plain_costs),
    column(silence_costs),
    np.broadcast_to(gold, len(gain)),
    **{'std_floor': 1.0, **options},
  )


def _columns(seed: int) -> dict[str, np.ndarray]:
  """Returns columns of messages of eight groups: measured or not, with or without a plain note."""
  rng = np.random.default_rng(seed)
  group = rng.permutation(np.repeat(np.arange(8), 6))
  known = (rng.random(48) < 0.7) & (group != 7)
  plain = (rng.random(48) < 0.4) & (group % 2 == 0)
  number = lambda of, low, high: np.where(of, rng.uniform(low, high, 48), np.nan)
  floats = {
    'task': rng.integers(0, 2, 48),
    'costs': rng.uniform(0, 0.8, 48),
    'gain': number(known, -4, 14),
    'plain_gain': number(plain, -4, 14),
    'plain_costs': rng.uniform(0, 0.5, 48),
    'silence_costs': rng.uniform(0, 0.1, 48),
  }
  return {**{k: np.float32(v) for k, v in floats.items()}, 'groups': group}


@pytest.mark.parametrize('virtual', [True, False])
@pytest.mark.parametrize('outcome', [0.0, 0.5])
def test_against_a_loop(virtual, outcome):
  x, better = _columns(int(2 * outcome)), 0
  paid = lambda gain: min(max(gain / 10, -1), 1)
  expected = per_component(x['task'], x['costs'], x['groups'])
  for group in range(7):
    own = np.flatnonzero((x['groups'] == group) & ~np.isnan(x['gain']))
    told = np.flatnonzero((x['groups'] == group) & ~np.isnan(x['plain_gain']))
    mean_outcome = outcome * x['task'][own].mean()
    rewards = [paid(x['gain'][m]) + outcome * x['task'][m] - x['costs'][m] for m in own]
    # Of silence, and of the plain note.
    actions = [mean_outcome - x['silence_costs'][own].mean()]
    if len(told):
      notes = [paid(x['plain_gain'][m]) - x['plain_costs'][m] for m in told]
      actions.append(np.mean(notes) + mean_outcome)
    above = [a for a in actions if a > np.mean(rewards)] if virtual else []
    better += len(above)
    every = [*rewards, *above]
    expected[own] = (rewards - np.mean(every)) / max(np.std(every), 0.3)
  assert better == 0 if not virtual else 3 < better < 11
  gold = np.zeros(48, bool)
  found = worth(**x, gold=gold, virtual=virtual, outcome=outcome)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_hints_are_compared_by_their_rewards_and_answers_by_their_scores():
  x = _columns(3)
  measured = ~np.isnan(x['gain'])
  x['task'] = x['task'] * np.float32(0.1)
  found = hill(x['task'], x['costs'], x['groups'], x['gain'] / 10, std_floor=0.2)
  for kind, value, floor in ((measured, x['gain'] / 10, 0.2), (~measured, x['task'], 0)):
    for group in range(8):
      own = kind & (x['groups'] == group)
      if own.any():
        scale = max(value[own].std(), floor, 1e-6)
        expected = (value[own] - value[own].mean()) / scale - x['costs'][own]
        np.testing.assert_allclose(found[own], expected + x['costs'][own].mean(), atol=1e-5)


def test_a_segment_is_credited_with_its_gain_minus_what_it_cost_more_than_others():
  x = _columns(2)
  found = spo_segment(x['task'], x['costs'], x['groups'], x['gain'])
  for m, (group, gain) in enumerate(zip(x['groups'], x['gain'], strict=True)):
    if np.isnan(gain):
      assert found[m] == per_component(x['task'], x['costs'], x['groups'])[m]
    else:
      usual = x['costs'][x['groups'] == group].mean()
      assert found[m] == pytest.approx(gain - (x['costs'][m] - usual), abs=1e-5)


def test_a_spread_below_the_floor_is_not_blown_up():
  found = _worth([0.1, 0.0], 0.0, std_floor=0.1, virtual=False)
  np.testing.assert_allclose(found, [0.05, -0.05], atol=1e-6)
  tied = _worth([0.1, 0.1], 0.0, std_floor=0.0, virtual=False)
  np.testing.assert_array_equal(tied, [0.0, 0.0])


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


def test_silence_is_not_unlearned_for_what_reading_its_prompt_costs():
  """Charges silence for its prompt, as `reward.cost='money'` does."""
  assert not _worth([0.0] * 4, 0.3, silence_costs=0.3).any()
  found = _worth([0.6, 0.0, 0.0, 0.0], [0.35, 0.3, 0.3, 0.3], silence_costs=0.3, std_floor=0.3)
  np.testing.assert_allclose(found, np.array([0.0075, -0.0025, -0.0025, -0.0025]) / 0.3, atol=1e-6)


def test_a_group_that_does_the_best_known_is_not_rewarded_for_it():
  """Otherwise each group of useful messages would push all agents to speak."""
  assert not _worth([8.0] * 4, 0.1, plain_gain=7.0, plain_costs=0.1).any()


@pytest.mark.parametrize('later', [3.0, -3.0])
@pytest.mark.parametrize('spoken', [4, 2, 0])
@pytest.mark.parametrize('price', [0.0, 0.1])
def test_without_a_price_potential_leaves_a_useless_message_as_it_is(later, spoken, price):
  """The first slot gains nothing, the second `later` nats, with which `potential` credits both."""
  values = {frozenset(): 0.0, frozenset({0}): 0.0, frozenset({1}): later, frozenset({0, 1}): later}
  said = [frozenset({0, 1})] * spoken + [frozenset({1})] * (4 - spoken)
  gain = np.float32([attribution.potential(values, messages, [0, 1])[0] for messages in said])
  assert (gain == later).all()  # also of a silent slot
  costs = np.float32([price] * spoken + [0.0] * (4 - spoken))
  zeros = np.zeros(4, int)
  found = potential(costs * 0, costs, zeros, gain, zeros > 0)
  expected = (costs.mean() - costs) / 0.3 if 0 < spoken < 4 else 0
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize('imitation', [0.0, 0.5])
def test_potential_is_worth_without_virtual_actions(imitation):
  x = _columns(4)
  gold = np.isnan(x['gain']) & (x['groups'] < 4)
  given = {'nats': 5.0, 'outcome': 0.5, 'imitation': imitation, 'std_floor': 0.2, 'eps': 1e-3}
  found = potential(*(x[key] for key in ('task', 'costs', 'groups', 'gain')), gold, **given)
  np.testing.assert_array_equal(found, worth(**x, gold=gold, virtual=False, **given))


def test_units_and_clipping():
  np.testing.assert_allclose(
    _worth([5.0, 0.0], 0.0, nats=5.0, virtual=False), [0.5, -0.5], atol=1e-6
  )
  np.testing.assert_array_equal(
    _worth([500.0, 0.0], 0.0, virtual=False), _worth([10.0, 0.0], 0.0, virtual=False)
  )
  mixed = _worth([0.0, 0.0], 0.0, task=[1, 0], outcome=0.5, virtual=False)
  np.testing.assert_allclose(mixed, [0.25, -0.25], atol=1e-6)
