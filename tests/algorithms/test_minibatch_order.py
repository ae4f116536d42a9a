"""Compares products over turns with a loop written from the formula."""

from __future__ import annotations

import numpy as np

from agent_gspo.algorithms.objectives.minibatch_order import seeupo_multipliers


def test_seeupo_multipliers():
  rng = np.random.default_rng(5)
  episode, turn = np.repeat([4, 9, 2], 6), np.tile([0, 1, 1, 3, 5, 5], 3)
  ratio = np.exp(rng.normal(0, 0.12, 18))
  order = rng.permutation(18)
  episode, turn, ratio = episode[order], turn[order], ratio[order]
  found = seeupo_multipliers(ratio, episode, turn)
  assert found.dtype == np.float32
  for m in range(18):
    product = 1.0
    for u in range(18):
      if episode[u] == episode[m] and turn[u] > turn[m]:
        product *= min(max(ratio[u], 0.8), 1.2)
    np.testing.assert_allclose(found[m], min(max(product, 0.8), 1.2), rtol=1e-6)
  np.testing.assert_array_equal(found[turn == 5], 1.0)
  assert found.min() < 0.9
  assert found.max() > 1.1


def test_seeupo_bounds_each_factor_and_the_product():
  three = lambda *ratios: seeupo_multipliers(
    np.asarray(ratios), np.zeros(3, int), np.arange(3), low=0.7, high=1.5
  )
  np.testing.assert_allclose(three(1.0, 9.0, 0.01), [1.5 * 0.7, 0.7, 1.0], rtol=1e-6)
  np.testing.assert_allclose(three(7.0, 1.4, 1.4), [1.5, 1.4, 1.0], rtol=1e-6)
  np.testing.assert_allclose(three(7.0, 0.8, 0.8), [0.7, 0.8, 1.0], rtol=1e-6)
