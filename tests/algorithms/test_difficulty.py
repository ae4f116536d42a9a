"""mc_grpo, ngrpo and a_grae against their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
from advantage_batches import by_group, exact, members, some_inputs, standardised

from agent_gspo.algorithms.advantages import difficulty
from agent_gspo.algorithms.advantages import estimators as lib


@pytest.fixture(scope='module', params=['question', 'question_agent', 'question_turn_agent'])
def x(request):
  return some_inputs(3, request.param)


def _alone(function, rewards, *more, **options):
  """One group of one message an episode, by agent 0 in turn 0."""
  rewards = np.asarray(rewards, np.float32)
  zeros, episode = np.zeros(len(rewards), int), np.arange(len(rewards))
  return function(rewards, *more, zeros, episode, **options)


def _mc(rewards, **options):
  zeros = np.zeros(len(rewards), int)
  return _alone(lambda r, g, e: difficulty.mc_grpo(r, g, e, zeros, zeros, **options), rewards)


# mc_grpo.


def test_mc_grpo_equals_the_formula(x):
  e = exact(x)
  values, kept = np.zeros((2, len(e['task'])))
  kept += 1
  for group in members(e['groups']):
    r = e['rewards'][group]
    mad = max(np.median(np.abs(r - np.median(r))), 0.1 * (r.max() - r.min()))
    v = (r - np.median(r)) / (mad + 1e-3)
    values[group] = v * len(r) / max(np.sum(v != 0), 1)
    key = lambda m: (x.rewards[m], e['episode'][m], e['turn'][m], e['agent'][m])
    if len(group) % 2:
      kept[sorted(group, key=key)[len(group) // 2]] = 0
  found = lib.advantage(x, 'mc_grpo')
  np.testing.assert_allclose(found.values, values, rtol=1e-4, atol=1e-4)
  np.testing.assert_array_equal(found.kept, kept)
  assert (kept == 0).any()
  np.testing.assert_allclose(np.asarray(found.values)[kept == 0], 0, atol=1e-5)


def test_mc_grpo_floors_a_mad_of_zero():
  """Rewards (1, 1, 0): the paper's formula gives -3000."""
  found = _mc([1, 1, 0])
  np.testing.assert_allclose(found.values, [0, 0, -3 / (0.1 + 1e-3)], rtol=1e-5)
  np.testing.assert_array_equal(found.kept, [0, 1, 1])  # the middle of 0, 1, 1
  np.testing.assert_allclose(_mc([1, 1, 0], mad_floor=0.0).values, [0, 0, -3000], rtol=1e-4)
  found = _mc([1, 1, 0], mad_floor=0.5, eps=0.5)
  np.testing.assert_allclose(found.values, [0, 0, -3], rtol=1e-5)


def test_mc_grpo_of_even_groups_drops_none():
  found = _mc([0.0, 1.0, 0.5, 0.25])
  np.testing.assert_array_equal(found.kept, 1)
  median, mad = 0.375, (0.125 + 0.375) / 2
  expected = (np.array([0, 1, 0.5, 0.25]) - median) / (mad + 1e-3)
  np.testing.assert_allclose(found.values, expected, rtol=1e-5)


@pytest.mark.parametrize('size', [1, 3, 7])
def test_mc_grpo_of_ties_is_zero(size):
  found = _mc(np.full(size, 0.3))
  np.testing.assert_array_equal(found.values, 0)
  assert float(np.sum(found.kept)) == size - 1


# ngrpo.


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
  found = _alone(difficulty.ngrpo, rewards)
  np.testing.assert_allclose(found.values, standardised(together)[:-1], rtol=1e-5)
  np.testing.assert_array_equal(found.kept, 1)


def test_ngrpo_drops_only_groups_at_the_best_reward():
  rewards = np.float32([1, 1, 1, 0, 0, 0])
  groups = np.array([0, 0, 1, 1, 2, 2])
  found = difficulty.ngrpo(rewards, groups, np.arange(6))
  np.testing.assert_array_equal(found.kept, [0, 0, 1, 1, 1, 1])
  np.testing.assert_array_equal(found.values[:2], 0)
  found = _alone(difficulty.ngrpo, np.full(24, 0.9), best=0.9)
  np.testing.assert_array_equal(found.kept, 0)
  np.testing.assert_array_equal(found.values, 0)


@pytest.mark.parametrize('rewards', [[1.5, 1, 1.5], [1.5, 1.5], [1.2, 0]])
def test_ngrpo_keeps_groups_with_a_bonus(rewards):
  """A length reward may pay more than `best`; one group is at `best`, and is dropped."""
  rewards = np.float32([*rewards, 1, 1])
  groups = np.repeat([0, 1], [len(rewards) - 2, 2])
  found = difficulty.ngrpo(rewards, groups, np.arange(len(rewards)))
  np.testing.assert_array_equal(found.kept, groups == 0)
  together = np.append(rewards[groups == 0], 1)
  np.testing.assert_allclose(found.values[:-2], standardised(together)[:-1], rtol=1e-5)


def test_ngrpo_keeps_groups_that_have_a_price_to_pay():
  found = _alone(difficulty.ngrpo, [1.0, 0.99])
  np.testing.assert_array_equal(found.kept, 1)
  floored = _alone(difficulty.ngrpo, [1.0, 0.99], std_floor=0.1)
  np.testing.assert_allclose(floored.values, np.array([0.01 / 3, -0.02 / 3]) / 0.1, rtol=1e-3)


def test_ngrpo_divides_by_small_spreads_but_not_by_tiny_ones():
  gaps = np.array([0, -2e-4])
  for scale, expected in ((1, 9.428e-5), (1e-3, 1e-6)):  # sigma of 0, -2e-4 and the virtual 0
    found = _alone(difficulty.ngrpo, gaps * scale, best=0.0)
    np.testing.assert_allclose(
      found.values, (gaps - gaps.mean() * 2 / 3) * scale / expected, rtol=1e-3
    )


# a_grae.


def _a_grae(e, alpha: float = 1.0) -> np.ndarray:
  groups = members(e['groups'])
  rates, roots = np.zeros((2, len(e['task'])))
  for group in groups:
    scores = {e['episode'][m]: e['task'][m] for m in group}
    rates[group] = p = np.mean(list(scores.values()))
    roots[group] = np.sqrt(np.clip(p, 1 / (len(scores) + 1), 1 - 1 / (len(scores) + 1)))
  m = np.mean([rates[group[0]] for group in groups])
  values = by_group(e['rewards'], groups, standardised)
  hard, easy = 0.5 * values / roots, 0.5 * values / (1 - roots)
  mixed = (1 - m) * easy + m * hard
  return np.where(mixed > 0, mixed * min(1, m / alpha), mixed)


@pytest.mark.parametrize('alpha', [2.0, 1.0, 0.3])
def test_a_grae_equals_the_formula(x, alpha):
  found = lib.advantage(x, 'a_grae', alpha=alpha)
  np.testing.assert_allclose(found.values, _a_grae(exact(x), alpha), rtol=1e-4, atol=1e-4)


def test_a_grae_without_a_bound_charges_a_batch_that_is_all_wrong():
  rewards, groups = -np.arange(4.0), np.zeros(4, int)
  bounded, free = (
    difficulty.a_grae(rewards, np.zeros(4), groups, np.arange(4), alpha=a) for a in (1e-9, 0.0)
  )
  assert np.isfinite(free).all()
  np.testing.assert_allclose(free[2:], bounded[2:])
  assert (free[:2] > 0).all()  # of nobody right, the share that a bound of 0 asks for


def test_a_grae_of_scores_that_differ_is_the_papers():
  """One message an episode, scores 0 and 1: the bounds on p never bind."""
  task = np.float32([1, 0, 0, 0, 1, 1, 1, 0])
  groups = np.repeat([0, 1], 4)
  found = difficulty.a_grae(task, task, groups, np.arange(8))
  p, m = np.repeat([0.25, 0.75], 4), 0.5
  values = np.where(task > 0, np.sqrt((1 - p) / p), -np.sqrt(p / (1 - p)))
  mixed = 0.5 * values * ((1 - m) / (1 - np.sqrt(p)) + m / np.sqrt(p))
  np.testing.assert_allclose(found, np.where(mixed > 0, mixed * m, mixed), rtol=1e-4)


def test_a_grae_lets_small_spreads_count():
  rewards, task = np.float32([0, 1e-4, 0, 1e-4]), np.float32([0, 1, 0, 1])
  found = difficulty.a_grae(rewards, task, np.zeros(4, int), np.arange(4))
  root = np.sqrt(0.5)  # p and m are a half, the advantages -1 and 1
  size = 0.5 * 0.5 / root + 0.5 * 0.5 / (1 - root)
  np.testing.assert_allclose(found, [-size, size / 2] * 2, rtol=1e-3)


def test_a_grae_stays_finite_with_negative_rewards_and_a_price_on_ties():
  task = np.float32([0, 0, 0, 1, 1, 1])
  groups = np.repeat([0, 1], 3)
  rewards = task - np.float32([0.9, 0.2, 0.1, 0.3, 0.3, 0.0])
  assert rewards.min() < 0
  found = np.asarray(difficulty.a_grae(rewards, task, groups, np.arange(6)))
  assert np.isfinite(found).all()
  assert np.abs(found).max() < 10
