"""Compares length rewards with their formulas, one episode at a time."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

from agent_gspo.rewards import length_rewards

NAMES = sorted(length_rewards.LENGTH_REWARDS)
REQUIRED = {
  'hinge': {'limit': 30.0},
  'l1_exact': {'target': 25.0},
  'l1_max': {'target': 25.0},
  'laser': {'target': 25.0},
  'overlong': {'limit': 50.0},
}


def episodes(scores, lengths, questions=None, **fields) -> types.SimpleNamespace:
  lengths = np.asarray(lengths, float)
  return types.SimpleNamespace(
    scores=np.asarray(scores, float),
    lengths=lengths,
    questions=np.zeros(len(lengths), int) if questions is None else np.asarray(questions),
    budgets=fields.pop('budgets', np.full(len(lengths), 20.0)),
    **fields,
  )


def drawn(seed: int) -> types.SimpleNamespace:
  """Draws mixed groups of 1, 3 and 5 episodes, with ties, silence and partial scores."""
  rng = np.random.default_rng(seed)
  questions = rng.permutation([7, 2, 2, 2, 4, 4, 4, 4, 4])
  return episodes(
    rng.choice([0.0, 0.4, 1.0, 1.0], 9),
    rng.choice([0, 0, 5, 17, 17, 45, 60], 9),
    questions,
    price=0.02,
    budgets=rng.choice([8.0, 20.0, 40.0], 9),
    reference_nll=rng.uniform(0.5, 3, 9),
  )


def term_of(name: str, given: dict[str, float], e: types.SimpleNamespace) -> np.ndarray:
  return length_rewards.term(name, given, **vars(e))


def by_hand(name: str, o: dict[str, float], e: types.SimpleNamespace, i: int) -> float:
  """Returns the reward of episode `i` by the published formula, with the task score."""
  group = [j for j in range(len(e.scores)) if e.questions[j] == e.questions[i]]
  right = [j for j in group if e.scores[j] == 1]
  c, long, ls = e.scores[i], e.lengths[i], [e.lengths[j] for j in group]
  share = lambda x: x[i] / max(x[j] for j in group) if max(x[j] for j in group) else 0.0
  if name == 'linear':
    return c
  if name == 'hinge':
    return c - (e.price * o['limit']) * max(0, long / o['limit'] - 1)
  if name == 'optima':
    if long < o['min_tokens']:
      return -1.0
    loss = max(e.reference_nll[i], o['loss_floor'])
    return c - o['token_weight'] * share(e.lengths) + o['loss_weight'] / loss
  if name == 'l1_exact':
    return c - o['alpha'] * abs(o['target'] - long)
  if name == 'l1_max':
    return c * min(1, max(0, o['alpha'] * (o['target'] - long) + o['delta']))
  if name == 'kimi':
    if max(ls) == min(ls):
      return c
    f = 0.5 - (long - min(ls)) / (max(ls) - min(ls))
    return c + o['weight'] * (f if c == 1 else min(0, f))
  if name == 'efficient':
    own = [e.lengths[j] for j in right]
    std = np.std(own) if own else 0.0
    z = (long - np.mean(own)) / std if std else 0.0
    return c * (1 - o['alpha'] / (1 + math.exp(-z)))
  if name == 'laser':
    return c * (1 + o['weight'] * (1 if long <= o['target'] else 0))
  if name == 'overlong':
    late = -(long - (o['limit'] - o['buffer'])) / o['buffer']
    return c + o['weight'] * max(-1, min(0, late))
  if name == 'told_budget':
    return c - o['weight'] * min(1, abs(long - e.budgets[i]) / e.budgets[i])
  raise AssertionError(name)


OTHERS = {
  'linear': {},
  'hinge': {'limit': 10.0},
  'optima': {'token_weight': 0.3, 'loss_weight': 0.2, 'min_tokens': 6.0, 'loss_floor': 0.4},
  'l1_exact': {'target': 17.0, 'alpha': 0.01},
  'told_budget': {'weight': 0.3},
  'l1_max': {'target': 17.0, 'alpha': 0.02, 'delta': 0.4},
  'kimi': {'weight': 0.7},
  'efficient': {'alpha': 0.4},
  'laser': {'target': 17.0, 'weight': 0.2},
  'overlong': {'limit': 50.0, 'buffer': 20.0, 'weight': 1.0},
}


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('seed', range(8))
def test_length_reward_equals_its_formula(name, seed):
  e = drawn(seed)
  for given in (REQUIRED.get(name, {}), OTHERS[name]):
    term = term_of(name, given, e)
    full = length_rewards.defaults(name) | given
    expected = [by_hand(name, full, e, i) for i in range(9)]
    np.testing.assert_allclose(e.scores + term, expected, atol=1e-12)
    assert term.dtype == np.float64


@pytest.mark.parametrize('name', NAMES)
def test_order_of_episodes_does_not_matter(name):
  e, order = drawn(3), np.random.default_rng(0).permutation(9)
  mixed = types.SimpleNamespace(
    **{k: getattr(e, k)[order] for k in ('scores', 'lengths', 'questions')},
    price=e.price,
    budgets=e.budgets[order],
    reference_nll=e.reference_nll[order],
  )
  found = term_of(name, OTHERS[name], e)[order]
  np.testing.assert_allclose(term_of(name, OTHERS[name], mixed), found, atol=1e-12)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('scores', [(1, 1, 1), (0, 0, 0), (1, 0, 0)])
@pytest.mark.parametrize('lengths', [(0, 0, 0), (4, 4, 4), (0, 4, 9)])
def test_ties_and_silent_groups_give_finite_terms(name, scores, lengths):
  term = term_of(name, OTHERS[name], episodes(scores, lengths, price=0.1))
  assert np.isfinite(term).all()
  if len(set(lengths)) == 1 and len(set(scores)) == 1:
    assert len(set(term.tolist())) == 1  # equal episodes get equal rewards


@pytest.mark.parametrize('name', NAMES)
def test_no_episodes(name):
  empty = np.zeros(0)
  e = types.SimpleNamespace(scores=empty, lengths=empty, questions=np.zeros(0, int), budgets=empty)
  assert term_of(name, OTHERS[name], e).shape == (0,)


@pytest.mark.parametrize(
  'name', [n for n in NAMES if n not in ('l1_exact', 'told_budget', 'optima')]
)
def test_right_and_short_is_never_worse_than_right_and_long(name):
  """l1_exact and told_budget ask for a length, optima for a least one."""
  lengths = np.arange(0, 60, 7)
  e = episodes(np.ones(9), lengths, price=0.01)
  term = term_of(name, REQUIRED.get(name, {}), e)
  assert (np.diff(term) <= 1e-12).all()


@pytest.mark.parametrize('name', ['laser', 'efficient', 'l1_max'])
def test_length_means_nothing_where_the_answer_is_wrong(name):
  """They multiply the task score, so a short wrong answer earns nothing."""
  for lengths in ([0, 3, 50], [0, 0, 9]):
    term = term_of(name, OTHERS[name], episodes([0, 0, 0], lengths))
    np.testing.assert_array_equal(term, 0.0)


def test_optima_without_a_measured_loss_is_its_token_term():
  e = episodes([1, 0], [50, 100])
  found = term_of('optima', {}, e)
  np.testing.assert_allclose(found, [-0.25, -0.5])
  with pytest.raises(ValueError, match='reference_nll must not be negative'):
    term_of('optima', {}, episodes([1, 0], [50, 100], reference_nll=np.array([1.0, -0.1])))


def test_optima_a_loss_of_nothing_is_not_worth_everything():
  """A silent episode, of infinite loss, earns nothing by it."""
  e = episodes([1, 1], [50, 50], reference_nll=np.array([0.0, np.inf]))
  found = term_of('optima', {'loss_floor': 0.25}, e)
  np.testing.assert_allclose(found, [-0.5 + 0.5 / 0.25, -0.5])


def test_optima_floor_spares_an_episode_of_just_so_many_tokens():
  found = term_of('optima', {}, episodes([1, 1, 0], [39, 40, 39]))
  np.testing.assert_allclose(found, [-2.0, -0.5, -1.0])  # rewards -1, 0.5 and -1


def test_efficient_with_an_extreme_outlier_does_not_overflow():
  e = episodes([1, 1, 0], [10, 10.000001, 1e9])
  with np.errstate(over='raise'):
    assert np.isfinite(term_of('efficient', {}, e)).all()


def test_every_option_is_read_from_text():
  for name, options in OTHERS.items():
    text = ', '.join(f'{key}={value!r}' for key, value in options.items())
    assert length_rewards.parse_options(name, text) == options
  for name, needed in REQUIRED.items():
    with pytest.raises(ValueError, match=f'needs the option {next(iter(needed))!r}'):
      length_rewards.parse_options(name, '')


def test_defaults_are_those_of_the_table():
  assert {name: length_rewards.defaults(name) for name in length_rewards.LENGTH_REWARDS} == {
    'linear': {},
    'hinge': {},
    'optima': {'token_weight': 0.5, 'loss_weight': 0.5, 'min_tokens': 40.0, 'loss_floor': 0.1},
    'l1_exact': {'alpha': 3e-4},
    'told_budget': {'weight': 0.5},
    'l1_max': {'alpha': 3e-4, 'delta': 0.5},
    'kimi': {'weight': 0.4},
    'efficient': {'alpha': 0.1},
    'laser': {'weight': 0.5},
    'overlong': {'buffer': 4096.0, 'weight': 0.5},
  }


def test_l1_max_gives_no_more_than_the_score():
  short = length_rewards.l1_max(np.ones(1), np.zeros(1), target=1e6)
  np.testing.assert_array_equal(short, 0.0)


def test_what_a_length_reward_reads():
  assert length_rewards.read_by('linear') == ('scores',)
  assert 'reference_nll' in length_rewards.read_by('optima')


def twice_the_loss(scores, reference_nll):
  return scores + 2 * reference_nll


def test_a_loss_that_is_not_measured_yet_is_1_to_a_length_reward_of_ones_own():
  scores, zeros = np.array([1.0, 0.0]), np.zeros(2)
  term = lambda loss: length_rewards.term(
    f'{__name__}:twice_the_loss',
    {},
    scores=scores,
    lengths=zeros,
    questions=zeros.astype(int),
    reference_nll=loss,
  )
  assert term(None).tolist() == [3.0, 2.0]
  assert term(np.array([0.5, 2.0])).tolist() == [2.0, 4.0]
