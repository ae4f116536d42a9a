"""Compares group statistics with float64 loops."""

from __future__ import annotations

import numpy as np
import pytest
from advantage_batches import members, some_inputs

from agent_gspo.algorithms.advantages import groups as lib


@pytest.fixture(scope='module')
def batch():
  """`(values, groups, question, episode, turn)` of random messages."""
  x = some_inputs(1, 'question_agent')
  values = np.random.default_rng(0).normal(size=len(x.task)).astype(np.float32)
  return values, x.groups, x.question, x.episode, x.turn


def test_joint_ids_are_dense_and_equal_iff_all_columns_are(batch):
  _, groups, question, episode, turn = batch
  ids = np.asarray(lib.joint_ids(groups, episode, turn * 1000 - 7))
  apart = members(groups, episode, turn)
  assert sorted(set(ids)) == list(range(len(apart)))
  for group in apart:
    assert np.flatnonzero(ids == ids[group[0]]).tolist() == group
  assert len(set(np.asarray(lib.joint_ids(question)))) == len(set(question))


def test_joint_ids_of_one_message():
  assert lib.joint_ids(np.array([5]), np.array([9])).tolist() == [0]


@pytest.mark.parametrize('weighted', [False, True])
def test_mean_and_centred(batch, weighted):
  values, groups, _, episode, turn = batch
  weights = (episode % 3 + 0.5 * turn) if weighted else None
  expected = np.zeros(len(values))
  plain = 0
  for group in members(groups):
    w = np.ones(len(group)) if weights is None else weights[group].astype(float)
    if not w.any():
      w, plain = np.ones(len(group)), plain + 1
    expected[group] = np.sum(values[group].astype(float) * w) / w.sum()
  assert not weighted or plain  # a group without weight has its plain mean
  np.testing.assert_allclose(lib.mean(values, groups, weights), expected, atol=1e-6)
  np.testing.assert_allclose(lib.centred(values, groups, weights), values - expected, atol=1e-6)


@pytest.mark.parametrize('size', [3, 7, 24])
def test_equal_values_are_exactly_0_when_centred(size):
  for value in (0.1, 1 / 3, 0.976):  # float64, in which a mean of equal values may be rounded
    np.testing.assert_array_equal(lib.centred(np.full(size, value), np.zeros(size, int)), 0)


def test_total_size_and_deviation(batch):
  values, groups = batch[:2]
  total, size, deviation = np.zeros((3, len(values)))
  for group in members(groups):
    total[group], size[group] = values[group].astype(float).sum(), len(group)
    deviation[group] = values[group].astype(float).std()
  np.testing.assert_allclose(lib.total(values, groups), total, atol=1e-5)
  np.testing.assert_array_equal(lib.size(groups), size)
  np.testing.assert_allclose(lib.deviation(values, groups), deviation, atol=1e-6)


def test_whitened(batch):
  values = batch[0].astype(float)
  expected = (values - values.mean()) / values.std()
  np.testing.assert_allclose(lib.whitened(batch[0]), expected, atol=1e-5)
  tiny = np.float32([1e-3, -1e-3, 0, 0])  # below eps the scale is eps
  np.testing.assert_allclose(lib.whitened(tiny, eps=0.5), tiny / 0.5, rtol=1e-5)
  np.testing.assert_allclose(lib.whitened(np.full(24, 0.9, np.float32)), 0, atol=1e-6)
  small = np.float32([1e-4, -1e-4])  # a hundred times the default eps
  np.testing.assert_allclose(lib.whitened(small), [1, -1], rtol=1e-5)


def test_episodes_are_counted_once(batch):
  _, _, question, episode, _ = batch
  groups = lib.joint_ids(question)
  count = np.zeros(len(question))
  for group in members(question):
    count[group] = len(set(episode[group]))
  np.testing.assert_array_equal(lib.episodes(groups, episode), count)


@pytest.mark.parametrize('ties', [False, True])
def test_to_go_sums_what_is_not_yet_past(batch, ties):
  values, _, _, episode, turn = batch
  groups = np.asarray(lib.joint_ids(episode))
  when = turn if ties else np.random.default_rng(2).permutation(len(turn))
  expected = [
    values[(groups == groups[m]) & (when >= when[m])].astype(float).sum() for m in range(len(turn))
  ]
  np.testing.assert_allclose(lib.to_go(values, groups, when), expected, atol=1e-6)


def test_share_of_tied_groups():
  groups = np.array([0, 0, 1, 1, 2, 3, 3])
  values = np.float32([1, 1, 0, 1, 0.3, 0, 0])
  assert lib.tied_groups(values, groups) == 0.75


def test_groups_tie_up_to_rounding_errors_only():
  groups = np.array([0, 0, 1, 1])
  assert lib.tied_groups(np.array([0.3, 0.3 + 1e-12, 0.3, 0.3 + 1e-7]), groups) == 0.5
