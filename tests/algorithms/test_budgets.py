"""Tests price controllers against their formulas and in closed loops on simulated teams."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agent_gspo.algorithms import budgets
from agent_gspo.algorithms.budgets import BudgetOptions, Observation
from agent_gspo.types import Terms

update = jax.jit(budgets.update, static_argnums=0)


def seen(cost=10.0, message=2.0, accuracy=0.9) -> Observation:
  return Observation(accuracy=accuracy, episode_cost=cost, message_tokens=message)


def prices(options, costs, state=None, **fields):
  """Returns the prices after each of the costs, and the last state."""
  state, found = state or budgets.init(options.lambda_tok), []
  for cost in costs:
    state = update(options, state, seen(cost, **fields))
    found.append(float(state.lambda_tok))
  return np.array(found), state


# dual, from its formula.


def by_hand(costs, budget, eta, lookahead, lambda_max, start=0.0, lambda_min=0.0):
  level, slope, integral, found = None, 0.0, start, []
  for cost in costs:
    log = math.log(max(cost, 1e-3 * budget))
    if level is None:
      level = log
    else:
      new = 0.5 * log + 0.5 * (level + slope)
      slope = 0.15 * (new - level) + 0.85 * slope
      level = new
    error = math.exp(level + lookahead * slope) / budget - 1
    push = eta * lookahead * error / budget
    if not (error > 0 and integral + push >= lambda_max):
      integral = min(max(integral + eta * error / budget, lambda_min), lambda_max)
    found.append(min(max(integral + push, lambda_min), lambda_max))
  return found


@pytest.mark.parametrize('lookahead', [0.0, 6.0, 20.0])
@pytest.mark.parametrize(('start', 'lowest'), [(0.0, 0.0), (0.02, 0.0), (0.02, -0.03)])
def test_dual_equals_its_formula(lookahead, start, lowest):
  costs = np.random.default_rng(0).uniform(5, 40, 50)
  costs[[7, 20]] = 0.0  # all silent
  costs[30:40] *= 5  # up to the highest price, and back
  options = BudgetOptions(
    mode='dual',
    budget_episode=15.0,
    dual_eta=0.1,
    dual_lookahead=lookahead,
    lambda_max=0.05,
    lambda_min=lowest,
    lambda_tok=start,
  )
  found, state = prices(options, costs)
  expected = by_hand(costs, 15.0, 0.1, lookahead, 0.05, start, lowest)
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
  assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype('float32')}
  assert np.isfinite([float(x) for x in jax.tree.leaves(state.episode)]).all()


@pytest.mark.parametrize('scale', [1e-3, 50.0])
def test_price_follows_the_unit_of_the_budget(scale):
  """Scales costs to another unit, such as money: prices scale inversely."""
  costs = np.array([60.0, 50, 41, 30, 22, 21, 20])
  one = BudgetOptions(mode='dual', budget_episode=20.0, lambda_max=0.05)
  other = dataclasses.replace(one, budget_episode=20.0 * scale, lambda_max=0.05 / scale)
  np.testing.assert_allclose(
    prices(other, costs * scale)[0] * scale, prices(one, costs)[0], rtol=1e-3, atol=1e-7
  )


def test_the_two_prices_do_not_mix():
  both = BudgetOptions(mode='dual', budget_episode=15.0, budget_message=4.0, lambda_max=0.05)
  only = dataclasses.replace(both, budget_message=0.0)
  costs = [40.0, 30, 20]
  found, state = prices(both, costs, message=9.0)
  np.testing.assert_array_equal(found, prices(only, costs, message=9.0)[0])
  assert state.lambda_message > 0
  alone = dataclasses.replace(both, budget_episode=0.0, lambda_tok=0.003)
  found, lone = prices(alone, costs, message=9.0)
  np.testing.assert_allclose(found, 0.003)  # not controlled: stays
  np.testing.assert_array_equal(lone.lambda_message, state.lambda_message)


def test_message_budget_has_a_tolerance():
  options = BudgetOptions(mode='dual', budget_message=10.0, tolerance=0.2, lambda_max=0.05)
  assert options.message_limit == pytest.approx(12)
  for tokens, priced in ((11.9, False), (12.1, True), (0.0, False)):
    _, state = prices(options, [5.0] * 3, message=tokens)
    assert (float(state.lambda_message) > 0) == priced


@pytest.mark.parametrize('mode', ['dual', 'accuracy_floor'])
def test_prices_stay_within_bounds_and_come_back_from_both(mode):
  budget = {'budget_episode': 20.0} if mode == 'dual' else {'floor': 0.8}
  options = BudgetOptions(mode=mode, lambda_max=0.03, **budget)
  dear, cheap = {'cost': 30.0, 'accuracy': 0.98}, {'cost': 3.0, 'accuracy': 0.3}
  state = budgets.init(0.0)
  step = lambda s, fields: update(options, s, seen(**fields))
  for _ in range(200):  # long enough to wind up, if it could
    state = step(state, dear)
  assert float(state.lambda_tok) == pytest.approx(0.03)
  back = 0
  while float(state.lambda_tok) > 0.01:
    state, back = step(state, cheap), back + 1
  assert back <= 6
  for _ in range(200):
    state = step(state, cheap)
  assert float(state.lambda_tok) == 0.0
  up = 0
  while float(state.lambda_tok) < 0.01:
    state, up = step(state, dear), up + 1
  assert up <= 12


# accuracy_floor and observe.


@pytest.mark.parametrize('band', [0.05, 0.2, 0.9])  # the last is cut to half of the room
def test_accuracy_floor_equals_its_formula(band):
  options = BudgetOptions(
    mode='accuracy_floor', floor=0.5, floor_of_best=0.9, eta=0.1, lambda_max=0.02, floor_band=band
  )
  state, running, best, integral = budgets.init(0.0), None, 0.0, 0.0
  rng = np.random.default_rng(1)
  for accuracy in rng.uniform(0.3, 1, 40):
    running = accuracy if running is None else 0.8 * running + 0.2 * accuracy
    best = max(best, running)
    kept = max(0.5, 0.9 * best)
    share = min(max((running - kept) / min(band, (1 - kept) / 2), -1), 1)
    cost = rng.uniform(0, 200)
    if not (share > 0 and integral + 0.02 * share >= 0.02):
      integral = min(max(integral + 0.1 * 0.02 * share, 0), 0.02)
    price = min(max(integral / 0.02 + share, 0), 1) * min(0.02, 1 / cost)
    state = update(options, state, seen(cost, accuracy=accuracy))
    np.testing.assert_allclose(float(state.lambda_tok), price, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(float(state.running_accuracy), running, rtol=1e-5)
    np.testing.assert_allclose(float(state.best_accuracy), best, rtol=1e-5)


def test_a_high_floor_has_a_narrow_band():
  options = BudgetOptions(mode='accuracy_floor', floor=0.96, eta=1e-9, floor_band=0.1)
  for accuracy, share in ((1.0, 1.0), (0.98, 1.0), (0.97, 0.5), (0.96, 0.0)):
    state = update(options, budgets.init(0.0), seen(accuracy=accuracy))
    assert float(state.lambda_tok) == pytest.approx(share * 0.01, abs=1e-6)
  no_room = dataclasses.replace(options, floor=1.0)
  assert float(update(no_room, budgets.init(0.01), seen(accuracy=1.0)).lambda_tok) == pytest.approx(
    0.01
  )
  assert float(update(no_room, budgets.init(0.01), seen(accuracy=0.99)).lambda_tok) == 0.0


def test_observe_is_an_exponential_mean_that_starts_at_the_first_value():
  state, expected, best = budgets.init(0.003), None, 0.0
  for accuracy in (0.4, 0.9, 0.0, 1.0):
    state = budgets.observe(state, accuracy, decay=0.8)
    expected = accuracy if expected is None else 0.8 * expected + 0.2 * accuracy
    best = max(best, expected)
    np.testing.assert_allclose(state.running_accuracy, expected, rtol=1e-6)
    np.testing.assert_allclose(state.best_accuracy, best, rtol=1e-6)
    np.testing.assert_allclose(state.lambda_tok, 0.003, rtol=1e-6)
  assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype('float32')}


def test_first_accuracy_of_zero_counts_as_seen():
  state = budgets.observe(budgets.init(0.0), 0.0, decay=0.8)
  state = budgets.observe(state, 1.0, decay=0.8)
  np.testing.assert_allclose(state.running_accuracy, 0.2, rtol=1e-6)


def test_a_floor_never_prices_the_mean_episode_above_a_right_answer():
  options = BudgetOptions(mode='accuracy_floor', floor=0.5, lambda_max=0.05)
  for cost, price in ((100.0, 0.01), (25.0, 0.04), (20.0, 0.05), (5.0, 0.05), (0.0, 0.05)):
    state = update(options, budgets.init(0.0), seen(cost, accuracy=1.0))
    assert float(state.lambda_tok) == pytest.approx(price)


def test_the_lasting_price_of_a_floor_is_at_most_the_highest():
  options = BudgetOptions(mode='accuracy_floor', floor=0.5, eta=10.0, floor_band=0.2)
  state = update(options, budgets.init(0.0), seen(accuracy=0.55))  # a quarter of the band
  assert float(state.integral_tok) == pytest.approx(options.lambda_max)


@pytest.mark.parametrize('start', [0.005, 0.01, 0.02, 0.5])
def test_a_floor_that_starts_dear_lets_go_of_its_first_price(start):
  """Includes a start above `lambda_max`, as `tiny` has if only its mode is changed."""
  options = BudgetOptions(mode='accuracy_floor', floor=0.8, lambda_tok=start, lambda_max=0.01)
  found, state = prices(options, [10.0] * 40, accuracy=0.0)
  assert found.max() == 0.0  # one band below the floor there is no price
  found, _ = prices(options, [10.0] * 60, state, accuracy=1.0)
  assert found[-1] == pytest.approx(0.01)
  found, _ = prices(options, [10.0] * 3, accuracy=1.0)
  np.testing.assert_allclose(found, 0.01)


def test_metrics_hold_the_whole_control():
  options = BudgetOptions(mode='dual', budget_episode=15.0, budget_message=4.0, lambda_max=0.05)
  _, state = prices(options, [18.0, 17.0], message=5.0)
  of = lambda before, *terms: budgets.metrics(budgets.prices(options, before, terms), state)
  found = of(state, None)
  assert {k: type(v) for k, v in found.items()} == dict.fromkeys(found, float)
  assert found['budget/lambda_tok'] == float(state.lambda_tok) > 0
  assert found['budget/lambda_message'] == float(state.lambda_message) > 0
  charged = of(budgets.init(0.5), None)  # prices are those before the step
  assert charged == found | {'budget/lambda_tok': 0.5, 'budget/lambda_message': 0.0}
  told = of(budgets.init(0.5), Terms('price', 0.1, ''), None)  # a mean over episodes
  assert told['budget/lambda_tok'] == pytest.approx(0.3)
  assert 0 < found['budget/integral_tok'] < found['budget/lambda_tok']
  assert found['budget/integral_message'] > 0
  assert found['budget/running_accuracy'] == found['budget/best_accuracy'] == pytest.approx(0.9)
  assert set(of(budgets.init(0.0), None)) == set(found)


# Closed loops. A team's tokens answer to the price with a delay (momentum of the optimizer,
# five steps); what a step shows is noisy; the price of a step was set after the step before.


def loop(options, respond, seed=0, steps=80, start=62.0, need=None):
  """Returns tokens and accuracies of a run; `respond(log tokens, price)` is their change."""
  rng, state = np.random.default_rng(seed), budgets.init(options.lambda_tok)
  y, acting, tokens, accuracies = math.log(start), 0.0, [], []
  for _ in range(steps):
    accuracy = 0.98 if need is None else 0.98 / (1 + math.exp(-(y - math.log(need)) / 0.12))
    acting += (float(state.lambda_tok) - acting) / 5
    observed = seen(
      cost=math.exp(y + 0.035 * rng.normal()), accuracy=rng.binomial(128, accuracy) / 128
    )
    state = update(options, state, observed)
    y = max(y + respond(y, acting, accuracy) + 0.004 * rng.normal(), math.log(2))
    tokens.append(math.exp(y))
    accuracies.append(accuracy)
  return np.array(tokens), np.array(accuracies)


TEAMS = {
  # As `tiny`: tokens fall as long as there is a price, and stay where they are without one.
  'slow': lambda y, price, _: -1.5 * price,
  'middle': lambda y, price, _: -3 * price,
  'fast': lambda y, price, _: -6 * price,
  'bounded': lambda y, price, _: -0.1 * math.tanh(price / 0.02),
  # With a force back to long messages.
  'drawn back': lambda y, price, _: -3 * price + 0.01 * (math.log(62) - y),
  'drawn back fast': lambda y, price, _: -6 * price + 0.01 * (math.log(62) - y),
}


@pytest.mark.parametrize('team', TEAMS)
def test_dual_settles_on_three_budgets(team):
  for budget in (15.0, 25.0, 40.0):
    options = BudgetOptions(mode='dual', budget_episode=budget, lambda_max=0.03)
    runs = [loop(options, TEAMS[team], seed)[0] for seed in range(3)]
    settled = np.mean([run[-20:] for run in runs])
    assert settled == pytest.approx(budget, rel=0.1 if team != 'slow' else 0.15), budget
    for run in runs:  # no oscillation
      assert np.ptp(run[-20:]) < 0.25 * budget
      assert run.min() > 0.8 * budget


@pytest.mark.parametrize('response', [1.5, 3.0])
def test_a_budget_is_held_against_a_drift_by_a_price_of_either_sign(response):
  """A team that uses ever fewer tokens by itself falls below an upper limit."""
  drifting = lambda y, price, _: -response * (price + 0.004)
  for budget in (15.0, 25.0, 40.0):
    limit = BudgetOptions(mode='dual', budget_episode=budget, lambda_max=0.03)
    both = dataclasses.replace(limit, lambda_min=-0.015)
    held, left = (
      np.mean([loop(options, drifting, seed, steps=100)[0][-20:] for seed in range(3)])
      for options in (both, limit)
    )
    assert held == pytest.approx(budget, rel=0.1)
    assert left < 0.9 * budget


def test_plain_dual_ascent_runs_through_the_budget():
  """Shows why `dual_lookahead` is above 0 by default."""
  options = BudgetOptions(mode='dual', budget_episode=25.0, dual_lookahead=0.0, lambda_max=0.03)
  tokens, _ = loop(options, TEAMS['middle'])
  assert tokens[-20:].mean() < 0.6 * 25


@pytest.mark.parametrize('response', [1.5, 3.0, 6.0])
def test_accuracy_floor_spends_less_than_the_best_fixed_price_that_keeps_it(response):
  """Messages below 11 tokens cost accuracy, and lost accuracy brings tokens back."""
  respond = lambda y, price, accuracy: -response * price + 0.3 * (0.98 - accuracy)
  run = lambda options: np.mean(
    [[x[-20:].mean() for x in loop(options, respond, seed, need=11.0)] for seed in range(3)], axis=0
  )
  sweep = [run(BudgetOptions(lambda_tok=price)) for price in (0.0025, 0.005, 0.01, 0.02, 0.04)]
  best_fixed = min(tokens for tokens, accuracy in sweep if accuracy >= 0.9)
  tokens, accuracy = run(BudgetOptions(mode='accuracy_floor', floor=0.9, lambda_max=0.04))
  assert accuracy == pytest.approx(0.9, abs=0.03)
  assert tokens <= best_fixed


# Options.


def test_every_mode_has_a_controller():
  modes = BudgetOptions.__dataclass_fields__['mode'].metadata['range'].choices
  assert set(budgets.CONTROLLERS) == set(modes)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'mode': 'free'}, r"budget.mode='free' is unknown; use one of fixed, accuracy_floor, dual"),
    ({'eta': 0.0}, r'budget.eta=0.0 must be above 0'),
    ({'floor_band': 0.0}, r'budget.floor_band=0.0 must be above 0'),
    ({'dual_eta': -1.0}, r'budget.dual_eta=-1.0 must be above 0'),
    ({'mode': 'accuracy_floor', 'lambda_max': 0.0}, r'budget.lambda_max=0 must be above 0'),
    ({'mode': 'dual'}, r'budget.mode="dual" needs budget.budget_episode or budget.budget_mess'),
    (
      {'mode': 'dual', 'budget_episode': 9.0, 'lambda_tok': 0.1},
      r'budget.lambda_tok=0.1 starts above budget.lambda_max=0.01',
    ),
    (
      {'mode': 'dual', 'budget_episode': 9.0, 'lambda_min': -0.02},
      r'budget.lambda_min=-0.02 must be from -budget.lambda_max=-0.01 to 0',
    ),
    (
      {'mode': 'dual', 'budget_message': 5.0, 'lambda_min': -0.005},
      r'budget.lambda_min=-0.005 bounds the price of budget.budget_episode alone, which is 0',
    ),
    (
      {'mode': 'dual', 'budget_episode': 9.0, 'lambda_min': 0.005},
      r'budget.lambda_min=0.005 must be from',
    ),
    (
      {'budget_episode': 20.0},
      r"budget.budget_episode=20.0: budget.mode='fixed' does not .* 'dual' or 'target', or budget",
    ),
    (
      {'mode': 'accuracy_floor', 'budget_message': 5.0},
      r"budget.budget_message=5.0: budget.mode='accuracy_floor' does not read it. .* 'dual', or",
    ),
    ({'lambda_min': -0.005}, r"budget.lambda_min=-0.005: budget.mode='fixed' does not read it"),
  ],
)
def test_option_errors_name_the_field(fields, message):
  with pytest.raises(ValueError, match=message):
    BudgetOptions(**fields)


@pytest.mark.parametrize(
  ('fields', 'highest'),
  [
    ({}, (0.002, 0.0, math.inf)),
    ({'mode': 'accuracy_floor'}, (0.01, 0.0, math.inf)),
    ({'mode': 'accuracy_floor', 'lambda_max': 0.001}, (0.002, 0.0, math.inf)),
    ({'mode': 'dual', 'budget_episode': 9.0}, (0.01, 0.0, math.inf)),
    ({'mode': 'dual', 'budget_message': 9.0, 'tolerance': 0.0}, (0.002, 0.01, 9.0)),
  ],
)
def test_highest_prices_of_a_run(fields, highest):
  options = BudgetOptions(lambda_tok=0.002, **fields)
  found = (options.highest_lambda_tok, options.highest_lambda_message, options.message_limit)
  assert found == highest
