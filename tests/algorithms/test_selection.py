"""Tests posteriors of questions and the choice of questions from them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_gspo.algorithms import selection

_QUESTION = np.array([3, 0, 3, 1, 3])
_TASK = np.float32([1, 0, 0, 0.25, 1])


def _state(a, b) -> selection.Posterior:
  return selection.Posterior(a=np.asarray(a, np.float32), b=np.asarray(b, np.float32))


def test_prior_and_mean():
  state = selection.init(3).posterior
  np.testing.assert_array_equal(state.a, [1, 1, 1])
  np.testing.assert_array_equal(state.b, [1, 1, 1])
  found = selection.probability(_state([1, 3, 0.5], [1, 1, 1.5]))
  np.testing.assert_allclose(found, [0.5, 0.75, 0.25])
  assert {leaf.dtype for leaf in state.values()} == {np.dtype('float32')}


def test_spo_decay_halves_within_bounds():
  divergences = np.array([0, 0.003, 0.006, 0.01, 0.1, 5])
  found = [float(selection.spo_decay(d)) for d in divergences]
  expected = np.clip(2 ** (-divergences / 0.06), 0.875, 0.96)
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert 0.875 < expected[3] < 0.96
  assert found[0] == pytest.approx(0.96)
  assert found[-1] == 0.875


def test_spo_update():
  state = selection.init(4).replace(posterior=_state([2, 3, 4, 5], [1, 2, 3, 4]))
  found = selection.observe(state, _QUESTION, _TASK, divergence=-0.06 * np.log2(0.9))
  assert int(found.drawn) == 0
  after = found.posterior
  np.testing.assert_allclose(after.a, [0.9 * 2, 0.9 * 3 + 0.25, 4, 0.9 * 5 + 2], rtol=1e-6)
  np.testing.assert_allclose(after.b, [0.9 + 1, 0.9 * 2 + 0.75, 3, 0.9 * 4 + 1], rtol=1e-6)
  assert after.a.dtype == after.b.dtype == np.float32


# Selection.


@pytest.mark.parametrize('count', [3, 4, 7])
def test_uniform_takes_each_question_once_an_epoch(count):
  state, drawn = selection.init(7), []
  for _ in range(7):
    chosen, state = selection.choose('uniform', state, count, seed=5)
    assert len(set(chosen.tolist())) == count
    drawn.extend(chosen.tolist())
  order = np.random.default_rng((5, 0)).permutation(7)
  assert drawn == np.tile(order, count).tolist()
  assert int(state.drawn) == 7 * count


def _known(rates, evidence: float = 1e4) -> selection.SelectionState:
  rates = np.asarray(rates)
  return selection.init(len(rates)).replace(
    posterior=_state(evidence * rates, evidence * (1 - rates))
  )


def test_spo_draws_in_proportion_to_its_weights():
  rates = np.array([0.0, 0.5, 0.9, 1.0])
  weights = selection.spo_weights(rates)
  np.testing.assert_allclose(weights, [0.05, 0.55, 0.35, 0.05])
  state, counts = _known(rates), np.zeros(4)
  for _ in range(3000):
    counts += np.bincount(selection.spo(state, np.ones(4, bool), 1, seed=1), minlength=4)
    state = state.replace(drawn=state.drawn + 1)
  np.testing.assert_allclose(counts / 3000, weights / weights.sum(), atol=0.03)


@pytest.mark.parametrize('name', list(selection.SELECTIONS))
def test_choices_follow_from_state_and_seed(name):
  state = _known(np.linspace(0.1, 0.9, 12), evidence=3.0)
  first, later = selection.choose(name, state, 5, seed=1)
  again, _ = selection.choose(name, state, 5, seed=1)
  np.testing.assert_array_equal(first, again)
  assert len(set(first.tolist())) == 5
  assert first.min() >= 0
  assert first.max() < 12
  assert int(later.drawn) == int(state.drawn) + 5
  assert later.drawn.dtype == np.int32
  np.testing.assert_array_equal(later.posterior.a, state.posterior.a)
  other_seed, _ = selection.choose(name, state, 5, seed=2)
  next_draw, _ = selection.choose(name, later, 5, seed=1)
  assert other_seed.tolist() != first.tolist()
  assert next_draw.tolist() != first.tolist()


@pytest.mark.parametrize('name', list(selection.SELECTIONS))
def test_cannot_choose_more_questions_than_there_are(name):
  with pytest.raises(ValueError, match='4 different questions of 3'):
    selection.choose(name, selection.init(3), 4, seed=0)
  with pytest.raises(ValueError, match='2 different questions of 1'):
    selection.choose(name, selection.init(3), 2, seed=0, asked=[0, 2])


@pytest.mark.parametrize('name', list(selection.SELECTIONS))
@pytest.mark.parametrize('drawn', [0, 9])  # the last: in the middle of the second epoch
def test_what_a_step_has_asked_is_not_chosen_again(name, drawn):
  state = _known(np.linspace(0.1, 0.9, 7), evidence=3.0).replace(drawn=jnp.int32(drawn))
  asked = []
  for count in (3, 2, 2):
    chosen, state = selection.choose(name, state, count, seed=4, asked=asked)
    asked += chosen.tolist()
  assert sorted(asked) == list(range(7))


# Resampling.


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), max_size=20))
def test_informative_questions_have_scores_that_differ(episodes):
  question = np.array([q for q, _ in episodes], int)
  task = np.array([s for _, s in episodes], np.float32)
  expected = [len({s for q, s in episodes if q == b}) > 1 for b in range(4)]
  assert selection.informative(task, question, 4).tolist() == expected
