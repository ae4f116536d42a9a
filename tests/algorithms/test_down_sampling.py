"""D3S against all subsets, and the clip ranges of ETR."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from advantage_batches import by_group, exact, members, some_inputs, standardised

from agent_gspo.algorithms.advantages import down_sampling
from agent_gspo.algorithms.advantages import estimators as lib
from agent_gspo.algorithms.objectives import trust_region


def _alone(rewards, **options):
  zeros = np.zeros(len(rewards), int)
  return down_sampling.d3s(
    np.asarray(rewards, np.float32), zeros, np.arange(len(rewards)), zeros, zeros, **options
  )


@pytest.mark.parametrize('share', [0.3, 0.5, 0.8])
@pytest.mark.parametrize('seed', range(4))
def test_d3s_keeps_the_subset_of_largest_variance(share, seed):
  rewards = np.random.default_rng(seed).normal(size=9).astype(np.float32)
  found = _alone(rewards, share=share)
  values = standardised(rewards.astype(float))
  np.testing.assert_allclose(found.values, values, atol=1e-5)
  kept = np.flatnonzero(found.kept)
  assert len(kept) == round(share * 9)
  best = max(np.var(values[list(s)]) for s in itertools.combinations(range(9), len(kept)))
  np.testing.assert_allclose(np.var(values[kept]), best, rtol=1e-6)


def test_d3s_counts_within_each_group():
  x = some_inputs(5, 'question_agent')
  e = exact(x)
  found = lib.advantage(x, 'd3s', share=0.4)
  kept = np.asarray(found.kept)
  groups = members(e['groups'])
  np.testing.assert_allclose(
    found.values, by_group(e['rewards'], groups, standardised), rtol=1e-4, atol=1e-4
  )
  assert set(kept) == {0.0, 1.0}
  for group in groups:
    assert kept[group].sum() == min(max(2, round(0.4 * len(group))), len(group))


@pytest.mark.parametrize(
  ('rewards', 'share', 'kept'),
  [
    ([1, 0, 0, 0], 0.5, [1, 0, 0, 1]),  # the one that differs, and the highest of the rest
    ([1, 1, 1, 0], 0.5, [0, 0, 1, 1]),
    ([0, 1, 0, 1, 1, 0], 0.5, [1, 0, 0, 1, 1, 0]),  # two high, one low
    ([0.5], 0.5, [1]),
    ([0.2, 0.7], 0.1, [1, 1]),  # never fewer than two
    ([0, 1, 0.5], 1.0, [1, 1, 1]),
  ],
)
def test_d3s_by_hand(rewards, share, kept):
  np.testing.assert_array_equal(_alone(rewards, share=share).kept, kept)


def test_d3s_lets_small_spreads_count():
  np.testing.assert_allclose(_alone([0, 1e-4, 0, 1e-4]).values, [-1, 1, -1, 1], rtol=1e-3)
  np.testing.assert_array_equal(_alone(np.zeros(4)).values, 0)


def test_d3s_of_ties_keeps_its_share_of_zeros():
  found = _alone(np.full(8, 0.3))
  np.testing.assert_allclose(found.values, 0, atol=1e-6)
  assert np.sum(found.kept) == 4


def test_token_weights_are_the_top_share_of_signal():
  rng = np.random.default_rng(0)
  advantages = np.float32([1.5, -2, 0.1, 0])
  entropies = rng.random(40).astype(np.float32)
  ids, mask = rng.integers(0, 4, 40), (np.arange(40) < 30).astype(np.float32)
  entropies[30:] = 100  # padding is never chosen
  score = np.abs(advantages.astype(float))[ids] * entropies
  for share in (0.1, 0.5, 1.0):
    found = np.asarray(
      down_sampling.d3s_token_weights(advantages, entropies, ids, mask, share=share)
    )
    top = np.argsort(-score[:30], kind='stable')[: round(share * 30)]
    expected = (score >= score[top[-1]]) * mask
    np.testing.assert_array_equal(found, expected)
  assert found.dtype == np.float32


def test_token_weights_of_no_token_or_little_share():
  ones, ids = np.ones(3, np.float32), np.zeros(3, int)
  weights = lambda mask, share: down_sampling.d3s_token_weights(
    ones[:1], np.float32([1, 3, 2]), ids, np.asarray(mask, np.float32), share=share
  )
  np.testing.assert_array_equal(weights([0, 0, 0], 0.5), 0)
  np.testing.assert_array_equal(weights([1, 1, 1], 0.0), [0, 1, 0])
  np.testing.assert_array_equal(weights([1, 0, 1], 0.5), [0, 0, 1])


def test_schedule_relaxes():
  found = [down_sampling.d3s_share(p) for p in (-1, 0, 0.5, 1, 2)]
  assert found == [0.5, 0.5, 0.75, 1.0, 1.0]
  assert down_sampling.d3s_share(0.25, start=0.2, end=0.6) == pytest.approx(0.3)


def test_etr_widens_with_advantage_and_half_solved_groups():
  rng = np.random.default_rng(0)
  advantages, rate = rng.normal(size=30) * 3, rng.random(30)
  expected = (1 + 0.5 * np.minimum(np.abs(advantages), 2)) * (1 + 2 * rate * (1 - rate))
  found = trust_region.etr_clip_scale(advantages.astype(np.float32), rate.astype(np.float32))
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert (np.abs(advantages) > 2).any()
  found = trust_region.etr_clip_scale(
    np.float32([0, -9]), np.float32([1, 0.5]), by_advantage=0.1, cap=1.0, by_difficulty=0.2
  )
  np.testing.assert_allclose(found, [1, 1.1 * 1.2], rtol=1e-6)
