"""Advantages against float64 loops, the price under each normalisation, and the budgets."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from agent_gspo.algorithms import advantages as lib
from agent_gspo.algorithms import budgets

_EPS = 1e-6


def _messages(seed: int = 0):
  """`(question, agent, turn, task, costs)` of uneven groups in no order."""
  rng = np.random.default_rng(seed)
  question, agent, turn = rng.integers(0, (4, 3, 2), (60, 3)).T
  task = rng.integers(0, 2, 60).astype(np.float32)
  costs = (rng.integers(0, 30, 60) * 0.003).astype(np.float32)
  alone = (np.array([9]), np.array([0]), np.array([0]))  # a question with one message
  question, agent, turn = (
    np.concatenate([a, b]) for a, b in zip((question, agent, turn), alone, strict=True)
  )
  task, costs = np.append(task, np.float32(1)), np.append(costs, np.float32(0.02))
  return question, agent, turn, task, costs


def _oracle(normalize: str, task, costs, members, floor: float) -> np.ndarray:
  """Loop over groups in float64; population standard deviation."""
  task, costs = task.astype(np.float64), costs.astype(np.float64)
  reward = task - costs
  out = np.zeros(len(task))
  for group in members:
    if normalize == 'group_mean':
      out[group] = reward[group] - reward[group].mean()
    elif normalize == 'group_std':
      scale = max(np.sqrt(np.mean((reward[group] - reward[group].mean()) ** 2)), floor, _EPS)
      out[group] = (reward[group] - reward[group].mean()) / scale
    elif normalize == 'batch_std':
      scale = max(np.sqrt(np.mean((reward - reward.mean()) ** 2)), floor, _EPS)
      out[group] = (reward[group] - reward[group].mean()) / scale
    else:
      scale = max(np.sqrt(np.mean((task[group] - task[group].mean()) ** 2)), floor, _EPS)
      out[group] = (task[group] - task[group].mean()) / scale - (costs[group] - costs[group].mean())
  return out


def _members(grouping: str, question, agent, turn) -> list[list[int]]:
  keys = {
    'question': lambda m: (question[m],),
    'question_agent': lambda m: (question[m], agent[m]),
    'question_turn_agent': lambda m: (question[m], turn[m], agent[m]),
  }
  groups: dict[tuple[int, ...], list[int]] = {}
  for m in range(len(question)):
    groups.setdefault(keys[grouping](m), []).append(m)
  return list(groups.values())


@pytest.mark.parametrize('grouping', lib.GROUPINGS)
def test_groups_are_those_that_share_the_key(grouping):
  question, agent, turn, _, _ = _messages()
  ids = lib.group_ids(grouping, question, agent, turn)
  members = _members(grouping, question, agent, turn)
  assert sorted(np.unique(ids)) == list(range(len(members)))
  for group in members:
    np.testing.assert_array_equal(np.nonzero(ids == ids[group[0]])[0], group)


@pytest.mark.parametrize('grouping', lib.GROUPINGS)
@pytest.mark.parametrize('normalize', lib.NORMALIZATIONS)
@pytest.mark.parametrize('floor', [0.0, 0.45])
def test_equals_the_formula(normalize, grouping, floor):
  question, agent, turn, task, costs = _messages()
  ids = lib.group_ids(grouping, question, agent, turn)
  found = lib.advantages(normalize, task, costs, ids, std_floor=floor)
  expected = _oracle(normalize, task, costs, _members(grouping, question, agent, turn), floor)
  assert found.shape == task.shape
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert np.abs(expected).max() > 0.3
  for group in _members(grouping, question, agent, turn):
    assert abs(np.asarray(found)[group].mean()) < 1e-5


@pytest.mark.parametrize('normalize', lib.NORMALIZATIONS)
def test_group_of_one_is_zero(normalize):
  task, costs = np.float32([1, 0, 1]), np.float32([0.3, 0.1, 0.9])
  found = lib.advantages(normalize, task, costs, np.arange(3))
  np.testing.assert_array_equal(found, 0.0)


@pytest.mark.parametrize('normalize', lib.NORMALIZATIONS)
@pytest.mark.parametrize('size', [7, 24])
def test_equal_rewards_give_no_advantage(normalize, size):
  """The rounding error of a mean must not be blown up by division with a tiny deviation."""
  costs, groups = np.full(size, 0.013, np.float32), np.zeros(size, int)
  for value in (0.9, 0.976, 0.3, 1 / 3, 0.97, 1.0):
    found = lib.advantages(normalize, np.full(size, value, np.float32), costs, groups)
    np.testing.assert_allclose(found, 0.0, atol=1e-6, err_msg=str(value))


@pytest.mark.parametrize('normalize', lib.NORMALIZATIONS)
def test_without_a_price_only_the_task_counts(normalize):
  task = np.float32([1, 0, 0, 1, 1, 1, 0, 0])
  groups = np.repeat([0, 1], 4)
  found = lib.advantages(normalize, task, np.zeros(8, np.float32), groups)
  scale = 1.0 if normalize == 'group_mean' else 0.5
  np.testing.assert_allclose(found, (task - 0.5) / scale, atol=1e-6)


_WRITTEN = np.float32([0, 4, 10, 20])


def _at_price(normalize: str, price: float, task: float) -> np.ndarray:
  """One question, four episodes that all score `task` and write 0 to 20 tokens."""
  costs = np.float32(price) * _WRITTEN
  return np.asarray(
    lib.advantages(normalize, np.full(4, task, np.float32), costs, np.zeros(4, int))
  )


@pytest.mark.parametrize('task', [0.0, 1.0])
def test_price_cancels_under_group_std_where_task_scores_tie(task):
  """The trap: any price above 0 acts at full strength, even where everybody is wrong."""
  low, high = _at_price('group_std', 1e-4, task), _at_price('group_std', 1e-2, task)
  np.testing.assert_allclose(low, high, rtol=2e-3)
  assert low[0] > 1  # silence is worth more than a standard deviation
  np.testing.assert_allclose(low, -(_WRITTEN - _WRITTEN.mean()) / _WRITTEN.std(), rtol=2e-3)


@pytest.mark.parametrize('task', [0.0, 1.0])
@pytest.mark.parametrize('normalize', ['per_component', 'group_mean'])
def test_price_keeps_its_meaning_elsewhere(normalize, task):
  low, high = _at_price(normalize, 1e-4, task), _at_price(normalize, 1e-2, task)
  np.testing.assert_allclose(100 * low, high, rtol=1e-2)
  np.testing.assert_allclose(high, -1e-2 * (_WRITTEN - _WRITTEN.mean()), rtol=1e-3, atol=1e-7)


def test_std_floor_bounds_the_trap():
  costs = np.float32(1e-4) * _WRITTEN
  found = lib.advantages(
    'group_std', np.zeros(4, np.float32), costs, np.zeros(4, int), std_floor=0.1
  )
  assert np.abs(found).max() < 0.02


@pytest.mark.parametrize('normalize', lib.NORMALIZATIONS)
def test_group_in_which_all_are_silent(normalize):
  """It has no signal of its own, and lends none to the other group."""
  groups = np.repeat([0, 1], 4)
  task = np.float32([0, 0, 0, 0, 1, 0, 1, 0])
  costs = np.float32([0, 0, 0, 0, 0.1, 0.2, 0, 0.1])
  found = np.asarray(lib.advantages(normalize, task, costs, groups))
  np.testing.assert_array_equal(found[:4], 0.0)
  assert (found[4:] != 0).all()
  if normalize != 'batch_std':  # whose scale is everybody's
    alone = lib.advantages(normalize, task[4:], costs[4:], groups[4:] * 0)
    np.testing.assert_allclose(found[4:], alone, atol=1e-6)


def test_share_of_tied_groups():
  groups = np.array([0, 0, 1, 1, 2, 3, 3])
  values = np.float32([1, 1, 0, 1, 0.3, 0, 0])
  assert lib.tied_groups(values, groups) == 0.75


# Budgets.


def _floor(state, **changes):
  options = {'floor': 0.5, 'floor_of_best': 0.0, 'eta': 0.01, 'lambda_max': 0.02, **changes}
  return budgets.accuracy_floor(state, **options)


def _state(price: float, running: float, best: float = 0.0) -> budgets.BudgetState:
  return budgets.init(price).replace(
    running_accuracy=jnp.float32(running), best_accuracy=jnp.float32(best)
  )


def test_price_rises_above_the_floor_and_falls_below_it():
  accuracies = np.linspace(0, 1, 11)
  prices = [float(_floor(_state(0.01, a)).lambda_tok) for a in accuracies]
  np.testing.assert_allclose(prices, 0.01 + 0.01 * (accuracies - 0.5), rtol=1e-5)
  assert (np.diff(prices) > 0).all()


@pytest.mark.parametrize(('running', 'bound'), [(1.0, 0.02), (0.0, 0.0)])
def test_price_stays_within_bounds(running, bound):
  state = _state(0.01, running)
  for _ in range(10):
    state = _floor(state)
  np.testing.assert_allclose(state.lambda_tok, bound, rtol=1e-6)
  assert state.lambda_tok.dtype == jnp.float32


def test_share_of_the_best_accuracy_is_a_floor_too():
  # Best 0.9: the bar is 0.81, although `floor` is 0.5.
  assert _floor(_state(0.01, 0.7, 0.9), floor_of_best=0.9).lambda_tok < 0.01
  assert _floor(_state(0.01, 0.85, 0.9), floor_of_best=0.9).lambda_tok > 0.01
  assert _floor(_state(0.01, 0.7, 0.9), floor_of_best=0.5).lambda_tok > 0.01


def test_observe_is_an_exponential_mean_that_starts_at_the_first_value():
  state, expected, best = budgets.init(0.003), None, 0.0
  for accuracy in (0.4, 0.9, 0.0, 1.0):
    state = budgets.observe(state, accuracy, decay=0.8)
    expected = accuracy if expected is None else 0.8 * expected + 0.2 * accuracy
    best = max(best, expected)
    np.testing.assert_allclose(state.running_accuracy, expected, rtol=1e-6)
    np.testing.assert_allclose(state.best_accuracy, best, rtol=1e-6)
    np.testing.assert_allclose(state.lambda_tok, 0.003, rtol=1e-6)
  assert {leaf.dtype for leaf in state.values()} == {jnp.dtype('float32')}


def test_first_accuracy_of_zero_counts_as_seen():
  state = budgets.observe(budgets.init(0.0), 0.0, decay=0.8)
  state = budgets.observe(state, 1.0, decay=0.8)
  np.testing.assert_allclose(state.running_accuracy, 0.2, rtol=1e-6)


def test_closed_loop_settles_on_the_floor():
  """A team whose accuracy falls with the price, seen through sampling noise."""
  rng = np.random.default_rng(0)
  true_accuracy = lambda price: 0.95 - 30 * price
  state, prices = budgets.init(0.0), []
  for _ in range(400):
    seen = rng.binomial(64, true_accuracy(float(state.lambda_tok))) / 64
    state = _floor(budgets.observe(state, seen, decay=0.8), floor=0.8, eta=0.002)
    prices.append(float(state.lambda_tok))
  settled = prices[100:]
  assert abs(true_accuracy(np.mean(settled)) - 0.8) < 0.01
  assert np.std(settled) < 0.001
