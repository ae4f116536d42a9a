"""Controls the price of a token during training.

`fixed` keeps it constant. `dual` keeps the mean cost of an episode and the mean length of a message
at their budgets, with one price each. `accuracy_floor` minimizes cost while the team's accuracy
stays above a floor. `conditioned` charges each question its own price and `target` gives it its own
budget, both shown to the team (see `terms`). A budget is in the unit of `reward.cost` (tokens
written or read, of the critical path, or money), the message budget in tokens written; prices and
budgets apply to the same cost.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.algorithms.options import BudgetOptions
from agent_gspo.types import Terms

# Rates of Holt's linear smoothing of the log-cost. Half of the observed variation is noise (a
# step's questions), and a price acts with a delay of about five steps.
_LEVEL, _TREND = 0.5, 0.15
_NO_ROOM = 1e-6  # smallest width in accuracy, for a floor of 1
_NOTHING = 1e-3  # lowest cost as a share of the budget, so that its logarithm is finite


@chex.dataclass(frozen=True)
class Observation:
  """Measurements of a step; float scalars.

  Attributes:
    accuracy: Mean task score.
    episode_cost: Mean cost of an episode, before any gate.
    message_tokens: Mean tokens written in a message, silent ones included.
  """

  accuracy: chex.Numeric
  episode_cost: chex.Numeric
  message_tokens: chex.Numeric


@chex.dataclass(frozen=True)
class Trend:
  """Attributes:
  level: Logarithm of the smoothed cost, -inf before the first one, float32 scalar.
  slope: Change of `level` per step, float32 scalar.
  """

  level: chex.Array
  slope: chex.Array


@chex.dataclass(frozen=True)
class BudgetState:
  """State of the controllers, float32 scalars; part of the checkpoint.

  Attributes:
    lambda_tok: Price of a unit of cost in units of task score.
    lambda_message: Price of a token beyond the message budget.
    integral_tok, integral_message: Integral terms of the two prices.
    running_accuracy: Exponential moving average of the training accuracy.
    best_accuracy: Highest running accuracy so far.
    episode, message: Trends of the costs that `dual` controls.
  """

  lambda_tok: chex.Array
  lambda_message: chex.Array
  integral_tok: chex.Array
  integral_message: chex.Array
  running_accuracy: chex.Array
  best_accuracy: chex.Array
  episode: Trend
  message: Trend


def init(lambda_tok: float) -> BudgetState:
  """Returns the initial state; running accuracy -1 means no observation yet."""
  # Separate arrays, since an update may donate the buffers of a state.
  nothing = lambda: Trend(level=jnp.float32(-jnp.inf), slope=jnp.float32(0.0))
  return BudgetState(
    lambda_tok=jnp.float32(lambda_tok),
    lambda_message=jnp.float32(0.0),
    integral_tok=jnp.float32(lambda_tok),
    integral_message=jnp.float32(0.0),
    running_accuracy=jnp.float32(-1.0),
    best_accuracy=jnp.float32(0.0),
    episode=nothing(),
    message=nothing(),
  )


def update(options: BudgetOptions, state: BudgetState, seen: Observation) -> BudgetState:
  """Returns the state with the prices of the next step, by the controller of `budget.mode`."""
  state = observe(state, seen.accuracy, options.accuracy_decay)
  return CONTROLLERS[options.mode](options, state, seen)


def observe(state: BudgetState, accuracy: chex.Numeric, decay: float) -> BudgetState:
  """Updates the running accuracy, initialized by the first observation."""
  running = jnp.where(
    state.running_accuracy < 0,
    accuracy,
    decay * state.running_accuracy + (1 - decay) * accuracy,
  )
  best = jnp.maximum(state.best_accuracy, running)
  return dataclasses.replace(
    state, running_accuracy=running.astype(jnp.float32), best_accuracy=best.astype(jnp.float32)
  )


def fixed(options: BudgetOptions, state: BudgetState, seen: Observation) -> BudgetState:
  """Keeps the prices."""
  del options, seen
  return state


def dual(options: BudgetOptions, state: BudgetState, seen: Observation) -> BudgetState:
  """Keeps the cost of an episode and the length of a message at their budgets, if they have one.

  Each price is a Lagrange multiplier, updated by `multiplier`.
  """
  if options.budget_episode:
    trend, integral, price = multiplier(
      options,
      state.episode,
      state.integral_tok,
      seen.episode_cost,
      budget=options.budget_episode,
      lambda_min=options.lambda_min,
    )
    state = dataclasses.replace(state, episode=trend, integral_tok=integral, lambda_tok=price)
  if options.budget_message:
    trend, integral, price = multiplier(
      options,
      state.message,
      state.integral_message,
      seen.message_tokens,
      budget=options.message_limit,
    )
    state = dataclasses.replace(
      state, message=trend, integral_message=integral, lambda_message=price
    )
  return state


def multiplier(
  options: BudgetOptions,
  trend: Trend,
  integral: chex.Numeric,
  cost: chex.Numeric,
  *,
  budget: float,
  lambda_min: float = 0.0,
) -> tuple[Trend, chex.Array, chex.Array]:
  """Updates one Lagrange multiplier: proportional-integral control of the predicted overshoot.

  `e = exp(level + lookahead * slope) / budget - 1`, and in units of `lambda * budget`:

    integral <- clip(integral + eta e, lambda_min budget, lambda_max budget)
    lambda budget = clip(integral + eta lookahead e, lambda_min budget, lambda_max budget)

  With `lookahead = 0` this is dual ascent, `lambda <- clip(lambda + eta (mean / budget - 1))`,
  on a smoothed cost, and with `length_rewards.hinge` that of Leash (arXiv 2512.21540, eta 0.02).
  That is not the default: token counts respond to the price like a delayed integrator (they fall
  as long as there is a price, and do not grow again at a price of 0), so pure integral control
  overshoots the budget. The lookahead lowers the price while the cost is still above the budget.

  The multiplier of an upper limit is never negative, so a team that drifts to fewer tokens by
  itself ends below the budget; with `lambda_min < 0` the constraint is an equality.

  The defaults, eta 0.04 and 20 steps, are the best of a grid on simulated policies (80
  steps, from 62 tokens to 15, 25 and 40; responses of 1.5 to 6 per unit of price and step,
  with and without a drift back to long messages, a plateau, a bounded speed), some of which are in
  `tests/algorithms/test_budgets.py`. The integral does not grow while the price is at
  `lambda_max` (anti-windup), so the price falls as soon as the trend does.

  Args:
    options: Budget options: `eta`, `lookahead` and `lambda_max` of the formula.
    trend: Trend of the cost.
    integral: Integral term of the price, float scalar.
    cost: Mean cost of the step, float scalar >= 0.
    budget: Target mean cost, > 0.
    lambda_min: Lowest price, <= 0.

  Returns:
    Trend, integral and price, float32 scalars.
  """
  eta, lookahead, lambda_max = options.dual_eta, options.dual_lookahead, options.lambda_max
  seen = jnp.log(jnp.maximum(cost, _NOTHING * budget))
  first = jnp.isneginf(trend.level)
  ahead = _LEVEL * seen + (1 - _LEVEL) * (trend.level + trend.slope)
  level = jnp.where(first, seen, ahead)
  moved = jnp.where(first, 0.0, level - trend.level)
  slope = _TREND * moved + (1 - _TREND) * trend.slope
  error = jnp.exp(level + lookahead * slope - math.log(budget)) - 1
  push = eta * lookahead * error / budget
  wound_up = (integral + push >= lambda_max) & (error > 0)
  integral = jnp.where(wound_up, integral, integral + eta * error / budget)
  integral = jnp.clip(integral, lambda_min, lambda_max)
  price = jnp.clip(integral + push, lambda_min, lambda_max)
  found = (Trend(level=level, slope=slope), integral, price)
  return jax.tree.map(lambda x: x.astype(jnp.float32), found)


def accuracy_floor(options: BudgetOptions, state: BudgetState, seen: Observation) -> BudgetState:
  """Updates the price by proportional-integral control of the accuracy above a floor.

  The floor `f` is the higher of `floor` and `floor_of_best * best running accuracy`, so that it
  rises with a team that improves. With `b = min(band, (1 - f) / 2)` and
  `m = max(-1, (running accuracy - f) / b)`:

    share <- clip(share + eta m, 0, 1)
    lambda = clip(share + m, 0, 1) * min(lambda_max, 1 / cost)

  A first price above `lambda_max` counts as a share of 1.

  The band is at most half of the gap between floor and 1: a floor of 95 % could never reach a price
  needing 10 points above it. At `1 / cost` the mean episode costs as much as a right answer earns:
  a higher price outweighs the task while messages are long, and then oscillates between its bounds.
  The share does not grow at the highest price, and one band below the floor the price is 0 for
  any share. `integral_tok` is `share * lambda_max`.
  """
  lambda_max = options.lambda_max
  kept = jnp.maximum(options.floor, options.floor_of_best * state.best_accuracy)
  width = jnp.maximum(jnp.minimum(options.floor_band, (1 - kept) / 2), _NO_ROOM)
  margin = jnp.maximum((state.running_accuracy - kept) / width, -1.0)
  share = jnp.clip(state.integral_tok / lambda_max, 0.0, 1.0)
  wound_up = share + margin >= 1
  share = jnp.where(wound_up, share, jnp.clip(share + options.eta * margin, 0.0, 1.0))
  highest = 1 / jnp.maximum(seen.episode_cost, 1 / lambda_max)
  price = jnp.clip(share + margin, 0.0, 1.0) * highest
  return dataclasses.replace(
    state,
    integral_tok=(share * lambda_max).astype(jnp.float32),
    lambda_tok=price.astype(jnp.float32),
  )


# `controller(options, state, seen)` returns the state with the next prices. Modes that condition a
# team on terms charge those, see `prices`.
CONTROLLERS: dict[str, Callable[[BudgetOptions, BudgetState, Observation], BudgetState]] = {
  'fixed': fixed,
  'conditioned': fixed,
  'target': fixed,
  'dual': dual,
  'accuracy_floor': accuracy_floor,
}


def prices(
  options: BudgetOptions, state: BudgetState, terms: Sequence[Terms | None]
) -> dict[str, Any]:
  """Returns the prices of a step as arguments of `rewards.communication.reward_terms`.

  Args:
    options: Budget options.
    state: State before the step.
    terms: Conditioning of each episode's question, `[E]`, None for the price of the state.
  """
  common = float(state.lambda_tok)
  of = lambda kind, other: np.asarray([t.value if t and t.kind == kind else other for t in terms])
  return {
    'lambda_tok': of('price', common),
    'budgets': of('budget', math.inf),
    'lambda_turn': options.lambda_turn,
    'lambda_rep': options.lambda_rep,
    'lambda_message': float(state.lambda_message),
    'message_limit': options.message_limit,
  }


def metrics(charged: Mapping[str, Any], after: BudgetState) -> dict[str, float]:
  """Returns the prices charged in a step and the state after it, for `metrics.jsonl`.

  `charged` is the result of `prices`; `lambda_tok` is averaged over episodes.
  """
  found = {
    'budget/lambda_tok': charged['lambda_tok'].mean(),
    'budget/lambda_message': charged['lambda_message'],
    'budget/running_accuracy': after.running_accuracy,
    'budget/best_accuracy': after.best_accuracy,
    'budget/integral_tok': after.integral_tok,
    'budget/integral_message': after.integral_message,
  }
  return {name: float(value) for name, value in found.items()}
