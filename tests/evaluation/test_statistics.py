"""Compares intervals with closed forms and exact enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo.evaluation import statistics

Z95 = 1.959963984540054


@pytest.mark.parametrize(('successes', 'n'), [(1, 2), (7, 10), (50, 100), (3, 1319), (1318, 1319)])
def test_wilson_ends_solve_the_score_equation(successes, n):
  p_hat = successes / n
  for end in statistics.wilson_interval(successes, n):
    assert (p_hat - end) ** 2 == pytest.approx(Z95**2 * end * (1 - end) / n, rel=1e-9)


@pytest.mark.parametrize('n', [1, 5, 200])
def test_wilson_at_the_edges(n):
  # With no success the equation is n p = z^2 (1 - p).
  assert statistics.wilson_interval(0, n) == (0.0, pytest.approx(Z95**2 / (n + Z95**2)))
  assert statistics.wilson_interval(n, n) == (pytest.approx(n / (n + Z95**2)), 1.0)


def test_wilson_published_value():
  # Newcombe (1998), table I: 81 of 263 and 15 of 148.
  assert statistics.wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
  assert statistics.wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)


def test_wilson_coverage_is_near_nominal():
  n, p = 40, 0.3
  covered = 0.0
  for k in range(n + 1):
    low, high = statistics.wilson_interval(k, n)
    if low <= p <= high:
      covered += math.comb(n, k) * p**k * (1 - p) ** (n - k)
  assert 0.93 < covered < 0.97


def test_bootstrap_quantiles_of_two_values(monkeypatch):
  # The mean of two draws from {0, 1} is 0, 1/2, 1 with probability 1/4, 1/2, 1/4.
  assert statistics.bootstrap_interval([0, 1]) == (0.0, 1.0)
  monkeypatch.setattr(statistics, '_CONFIDENCE', 0.40)
  assert statistics.bootstrap_interval([0, 1]) == (0.5, 0.5)


def test_bootstrap_matches_the_enumerated_distribution():
  values = np.array([0.0, 1.0, 4.0, 9.0, 16.0])
  exact = np.array([np.mean(draw) for draw in itertools.product(values, repeat=5)])
  found = statistics.bootstrap_interval(values)
  assert found == pytest.approx(tuple(np.quantile(exact, [0.025, 0.975])), abs=0.2)


def test_bootstrap_of_a_large_sample_is_the_normal_interval():
  values = np.random.default_rng(0).normal(3.0, 2.0, size=2000)
  low, high = statistics.bootstrap_interval(values)
  half = Z95 * values.std() / math.sqrt(values.size)
  assert low == pytest.approx(values.mean() - half, abs=0.006)
  assert high == pytest.approx(values.mean() + half, abs=0.006)


def test_bootstrap_of_a_constant_and_the_same_again():
  assert statistics.bootstrap_interval([2.5] * 7) == (2.5, 2.5)
  values = np.arange(30.0)
  assert statistics.bootstrap_interval(values) == statistics.bootstrap_interval(values)


def test_bootstrap_draws_in_chunks(monkeypatch):
  values = np.arange(50.0)
  whole = statistics.bootstrap_interval(values)
  monkeypatch.setattr(statistics, '_CHUNK', 150)  # the last chunk is smaller
  assert statistics.bootstrap_interval(values) == pytest.approx(whole, abs=1.0)


def test_paired_cancels_what_the_questions_share():
  rng = np.random.default_rng(0)
  hardness = rng.normal(0, 10, size=400)
  a, b = hardness + 0.5, hardness + rng.normal(0, 0.1, size=400)
  mean, low, high = statistics.paired_bootstrap(a, b)
  assert mean == pytest.approx(a.mean() - b.mean())
  assert 0.45 < low < mean < high < 0.55
  unpaired = statistics.bootstrap_interval(a)
  assert unpaired[1] - unpaired[0] > 50 * (high - low)


def test_paired_of_equal_systems_and_its_sign():
  assert statistics.paired_bootstrap([1, 0, 1], [1, 0, 1]) == (0.0, 0.0, 0.0)
  mean, low, high = statistics.paired_bootstrap([1, 1, 0, 1], [0, 1, 0, 0])
  back = statistics.paired_bootstrap([0, 1, 0, 0], [1, 1, 0, 1])
  assert mean == 0.5
  assert back == pytest.approx((-mean, -high, -low))


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=7), st.data())
def test_the_best_of_some_samples_is_the_mean_over_all_choices(scores, data):
  k = data.draw(st.integers(1, len(scores)))
  choices = list(itertools.combinations(scores, k))
  best = statistics.expected_best(scores, k)
  assert best == pytest.approx(np.mean([max(choice) for choice in choices]))
  worst = -statistics.expected_best(np.negative(scores), k)
  assert worst == pytest.approx(np.mean([min(choice) for choice in choices]))


def test_as_many_questions_as_needed_show_an_effect_four_times_in_five():
  rng = np.random.default_rng(0)
  draw = lambda *size: rng.choice([-1.0, 0.0, 1.0], p=[0.2, 0.5, 0.3], size=size)
  n = statistics.questions_to_see(0.1, draw(10**5))
  draws = draw(4000, n)
  seen = draws.mean(axis=1) > Z95 * draws.std(axis=1) / np.sqrt(n)
  assert seen.mean() == pytest.approx(0.8, abs=0.03)
  assert statistics.questions_to_see(2.0, np.full(9, 2.0)) == 1  # not 0 where all gaps are alike


@pytest.mark.parametrize(
  ('call', 'named'),
  [
    (lambda: statistics.wilson_interval(0, 0), '0 of 0'),
    (lambda: statistics.wilson_interval(5, 4), '5 of 4'),
  ],
)
def test_bad_arguments_are_named(call, named):
  with pytest.raises(ValueError, match=named):
    call()


def test_error_correlation_of_known_voters():
  independent = np.asarray(list(itertools.product([0, 1], repeat=3)))
  assert statistics.error_correlation(independent) == pytest.approx((0, 3))
  same = np.repeat([[0], [1], [1]], 4, axis=1)
  assert statistics.error_correlation(same) == pytest.approx((1, 1))
  assert statistics.error_correlation(np.full((3, 3), 0.1)) == (None, None)
  assert statistics.error_correlation(np.asarray([[0, 1], [1, 0]])) == (pytest.approx(-1), None)
  assert statistics.error_correlation(np.ones((5, 3))) == (None, None)


@given(st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=2, max_size=20))
def test_independent_voters_of_the_same_mean_variance(rows):
  errors = np.asarray(rows, float)
  correlation, voters = statistics.error_correlation(errors)
  if voters is not None:  # the variance of a mean of independent voters is that of one / voters
    assert errors.mean(1).var() == pytest.approx(errors.var(0).mean() / voters)
    assert voters == pytest.approx(3 / (1 + 2 * correlation))


@given(st.lists(st.sampled_from('abc'), min_size=1, max_size=8))
def test_effective_channels_are_those_of_the_similarity_matrix(answers):
  alike = np.asarray([[float(a == b) for a in answers] for b in answers])
  values = np.linalg.eigvalsh(alike) / len(answers)
  values = values[values > 1e-12]
  expected = math.exp(-(values * np.log(values)).sum())
  assert statistics.effective_channels(answers) == pytest.approx(expected)
