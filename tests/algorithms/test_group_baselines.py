"""Compares advantages against a baseline with their formulas in float64."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from advantage_batches import by_group, exact, members, some_inputs, standardised, values_of

from agent_gspo.algorithms.advantages import estimators as lib
from agent_gspo.algorithms.advantages import group_baselines, groups

_GROUPS = np.zeros(4, int)


def _whitened(values: np.ndarray) -> np.ndarray:
  return standardised(values)


@pytest.fixture(scope='module', params=['question', 'question_agent', 'question_turn_agent'])
def x(request):
  return some_inputs(2, request.param)


def test_group_std_divides_by_the_largest_of_spread_floor_and_eps():
  rewards = np.float32([0, 1e-3, 0, 1e-3])
  expected = rewards - 5e-4
  for options, scale in (
    ({}, 5e-4),
    ({'std_floor': 0.1}, 0.1),
    ({'eps': 0.02}, 0.02),
    ({'std_floor': 1e-4, 'eps': 2e-4}, 5e-4),
    ({'std_floor': 0.1, 'eps': 0.05}, 0.1),
  ):
    found = group_baselines.group_std(rewards, _GROUPS, **options)
    np.testing.assert_allclose(found, expected / scale, rtol=1e-4)
    np.testing.assert_allclose(
      group_baselines.batch_std(rewards, _GROUPS, **options), expected / scale, rtol=1e-4
    )
  # The default eps.
  found = group_baselines.group_std(rewards * np.float32(1e-4), _GROUPS)
  np.testing.assert_allclose(found, expected * 1e-4 / 1e-6, rtol=1e-3)
  found = group_baselines.batch_std(rewards * np.float32(1e-4), _GROUPS)
  np.testing.assert_allclose(found, expected * 1e-4 / 1e-6, rtol=1e-3)


def test_per_component_whitened_is_gdpo(x):
  e = exact(x)
  groups = members(e['groups'])
  task = by_group(e['task'], groups, standardised)
  costs = by_group(e['costs'], groups, lambda v: v - v.mean())
  np.testing.assert_allclose(values_of('per_component', x), task - costs, atol=1e-5)
  np.testing.assert_allclose(
    values_of('per_component', x, whiten=True), _whitened(task - costs), atol=1e-5
  )


@pytest.mark.parametrize(
  'function',
  [
    lambda r: group_baselines.reinforce_pp(r),
    lambda r: group_baselines.reinforce_pp_baseline(r, _GROUPS),
    lambda r: group_baselines.seeupo(r, _GROUPS),
    lambda r: group_baselines.spo_single(r, np.zeros(4, np.float32)),
    lambda r: group_baselines.per_component(r, np.zeros(4, np.float32), _GROUPS),
    lambda r: group_baselines.batch_std(r, _GROUPS),
  ],
)
def test_default_eps_lets_small_spreads_count_and_ties_be_zero(function):
  rewards = np.float32([0, 1e-4, 0, 1e-4])
  np.testing.assert_allclose(function(rewards), [-1, 1, -1, 1], rtol=1e-3)
  np.testing.assert_allclose(function(rewards * np.float32(1e-4)), [-5e-3, 5e-3] * 2, rtol=1e-2)
  np.testing.assert_array_equal(function(np.zeros(4, np.float32)), 0)


def test_whitening_undoes_the_meaning_of_lambda_where_all_tie():
  task, costs = np.ones(4, np.float32), np.float32([0, 1, 2, 3]) * 1e-3
  for price in (1.0, 10.0):
    priced = costs * np.float32(price)
    plain = group_baselines.per_component(task, priced, _GROUPS)
    np.testing.assert_allclose(plain, price * (1.5e-3 - costs), atol=1e-6)
    found = group_baselines.per_component(task, priced, _GROUPS, whiten=True)
    np.testing.assert_allclose(found, -standardised(costs.astype(float)), rtol=1e-3)


def test_rloo_leaves_out_the_messages_own_episode(x):
  e = exact(x)
  expected = np.zeros(len(e['task']))
  alone = 0
  for m in range(len(expected)):
    others = (e['groups'] == e['groups'][m]) & (e['episode'] != e['episode'][m])
    alone += not others.any()
    expected[m] = e['rewards'][m] - e['rewards'][others].mean() if others.any() else 0
  assert alone
  np.testing.assert_allclose(values_of('rloo', x), expected, atol=1e-5)


def test_rloo_with_one_message_an_episode_is_the_papers():
  rewards = np.float32([1, 0, 0.5, 0.25])
  found = group_baselines.rloo(rewards, _GROUPS, np.arange(4))
  np.testing.assert_allclose(found, 4 / 3 * (rewards - rewards.mean()), rtol=1e-5)
  np.testing.assert_array_equal(group_baselines.rloo(rewards, np.arange(4), np.arange(4)), 0)
  # Several messages of one episode have nothing to compare with either.
  np.testing.assert_array_equal(group_baselines.rloo(rewards, _GROUPS, _GROUPS), 0)


def test_rloo_of_one_episode_divides_nothing_by_zero():
  """A division by zero would trip `jax_debug_nans` in a run."""
  with jax.debug_nans(True):
    np.testing.assert_array_equal(
      group_baselines.rloo(np.float32([1, 0, 0, 0]), _GROUPS, _GROUPS), 0
    )


def test_reinforce_pp_and_seeupo(x):
  e = exact(x)
  np.testing.assert_allclose(values_of('reinforce_pp', x), _whitened(e['rewards']), atol=1e-5)
  centred = by_group(e['rewards'], members(e['groups']), lambda v: v - v.mean())
  expected = _whitened(centred)
  np.testing.assert_allclose(values_of('reinforce_pp_baseline', x), expected, atol=1e-5)
  np.testing.assert_allclose(values_of('seeupo', x), np.clip(expected, -3, 3), atol=1e-5)
  assert np.abs(expected).max() > 1
  np.testing.assert_allclose(
    values_of('seeupo', x, bound=0.5), np.clip(expected, -0.5, 0.5), atol=1e-5
  )


@pytest.mark.parametrize('sign', [1, -1])
def test_seeupo_clamps_an_outlier_at_three(sign):
  rewards = np.zeros(20, np.float32)
  rewards[3] = sign
  groups = np.zeros(20, int)
  assert abs(group_baselines.reinforce_pp_baseline(rewards, groups)[3]) > 4
  found = np.asarray(group_baselines.seeupo(rewards, groups))
  assert found[3] == 3 * sign
  assert np.abs(np.delete(found, 3)).max() < 1


def test_opo_weighs_the_baseline_by_length(x):
  e = exact(x)
  expected = e['rewards'].copy()
  for group in members(e['groups']):
    length = e['lengths'][group]
    expected[group] -= np.sum(length * e['rewards'][group]) / np.sum(length)
  np.testing.assert_allclose(values_of('opo', x), expected, atol=1e-5)


def test_opo_of_lengths_zero_has_the_plain_mean():
  rewards = np.float32([1, 0, 0, 0])
  found = group_baselines.opo(rewards, _GROUPS, np.zeros(4, int))
  np.testing.assert_allclose(found, rewards - 0.25, atol=1e-6)
  found = group_baselines.opo(rewards, _GROUPS, np.array([0, 0, 5, 5]))
  np.testing.assert_allclose(found, rewards, atol=1e-6)


def test_spo_single_whitens_what_the_posterior_did_not_expect(x):
  e = exact(x)
  expected = _whitened(e['rewards'] - e['probability'])
  np.testing.assert_allclose(values_of('spo_single', x), expected, atol=1e-5)


def _ngrpo(rewards, **options):
  """Returns advantages of one group with one message per episode."""
  zeros, episode = np.zeros(len(rewards), int), np.arange(len(rewards))
  return group_baselines.ngrpo(np.asarray(rewards, np.float32), zeros, episode, **options)


def test_ngrpo_equals_the_formula_with_one_virtual_episode(x):
  e = exact(x)
  values = np.zeros(len(e['task']))
  for group in members(e['groups']):
    r = e['rewards'][group]
    w = len(r) / len(set(e['episode'][group].tolist()))
    mu = (r.sum() + w) / (len(r) + w)
    sigma = np.sqrt((np.sum((r - mu) ** 2) + w * (1 - mu) ** 2) / (len(r) + w))
    values[group] = (r - mu) / max(sigma, 1e-6)
  found = lib.advantage(x, 'ngrpo')
  np.testing.assert_allclose(found.values, values, rtol=1e-4, atol=1e-4)
  assert (values[e['question'] == 5] < 0).all()  # all wrong


@pytest.mark.parametrize('rewards', [[0, 0, 0], [1, 0, 0.5, 0], [0], [-0.4, 0.2]])
def test_ngrpo_with_one_message_an_episode_appends_a_best_reward(rewards):
  together = np.append(np.asarray(rewards, float), 1)
  found = _ngrpo(rewards)
  np.testing.assert_allclose(found.values, standardised(together)[:-1], rtol=1e-5)
  np.testing.assert_array_equal(found.kept, 1)


def test_ngrpo_drops_only_groups_at_the_best_reward():
  rewards = np.float32([1, 1, 1, 0, 0, 0])
  groups = np.array([0, 0, 1, 1, 2, 2])
  found = group_baselines.ngrpo(rewards, groups, np.arange(6))
  np.testing.assert_array_equal(found.kept, [0, 0, 1, 1, 1, 1])
  np.testing.assert_array_equal(found.values[:2], 0)
  found = _ngrpo(np.full(24, 0.9), best=0.9)
  np.testing.assert_array_equal(found.kept, 0)
  np.testing.assert_array_equal(found.values, 0)


@pytest.mark.parametrize('rewards', [[1.5, 1, 1.5], [1.5, 1.5], [1.2, 0]])
def test_ngrpo_keeps_groups_with_a_bonus(rewards):
  """A length reward may pay more than `best`; one group is at `best`, and is dropped."""
  rewards = np.float32([*rewards, 1, 1])
  groups = np.repeat([0, 1], [len(rewards) - 2, 2])
  found = group_baselines.ngrpo(rewards, groups, np.arange(len(rewards)))
  np.testing.assert_array_equal(found.kept, groups == 0)
  together = np.append(rewards[groups == 0], 1)
  np.testing.assert_allclose(found.values[:-2], standardised(together)[:-1], rtol=1e-5)


def test_ngrpo_keeps_groups_that_have_a_price_to_pay():
  found = _ngrpo([1.0, 0.99])
  np.testing.assert_array_equal(found.kept, 1)
  floored = _ngrpo([1.0, 0.99], std_floor=0.1)
  np.testing.assert_allclose(floored.values, np.array([0.01 / 3, -0.02 / 3]) / 0.1, rtol=1e-3)


def test_ngrpo_divides_by_small_spreads_but_not_by_tiny_ones():
  gaps = np.array([0, -2e-4])
  for scale, expected in ((1, 9.428e-5), (1e-3, 1e-6)):  # sigma of 0, -2e-4 and the virtual 0
    found = _ngrpo(gaps * scale, best=0.0)
    np.testing.assert_allclose(
      found.values, (gaps - gaps.mean() * 2 / 3) * scale / expected, rtol=1e-3
    )


@pytest.mark.parametrize('decay', [0.0, 0.5, 0.95])
def test_rae_compares_an_episode_with_those_before_it_of_its_role(decay):
  x = some_inputs(3)
  found = lib.advantage(x, 'rae', decay=decay)
  e, baseline = exact(x), [0.3, -0.2]
  expected = np.zeros(len(e['rewards']))
  for episode in range(e['episode'].max() + 1):
    for role in (0, 1):
      own = (e['episode'] == episode) & (e['role'] == role)
      if own.any():
        expected[own] = e['rewards'][own] - baseline[role]
        baseline[role] = decay * baseline[role] + (1 - decay) * e['rewards'][own].mean()
  np.testing.assert_allclose(found.values, expected, atol=1e-6)
  np.testing.assert_allclose(found.baselines, baseline, atol=1e-6)
  np.testing.assert_array_equal(found.kept, 1)
  # Two halves, with the state handed on, are the whole.
  half = np.asarray(x.episode) < 18
  part = lambda where, baselines: group_baselines.rae(
    x.rewards[where], x.episode[where], x.role[where], baselines, decay=decay
  )
  first = part(half, x.baselines)
  second = part(~half, first.baselines)
  np.testing.assert_allclose(found.values[half], first.values, atol=1e-6)
  np.testing.assert_allclose(found.values[~half], second.values, atol=1e-6)


def test_the_public_baseline_is_the_mean_of_a_side_over_a_question():
  """AdvEvo-MARL, arXiv 2510.01586."""
  x = some_inputs(3)
  sides = groups.group_ids('question_side', x.question, x.agent, x.turn, x.episode, x.role)
  found = lib.advantage(dataclasses.replace(x, groups=sides), 'group_mean').values
  e = exact(x)
  expected = by_group(e['rewards'], members(x.question, x.role), lambda v: v - v.mean())
  np.testing.assert_allclose(found, expected, atol=1e-6)
