"""The price of a token as a controlled quantity.

`fixed` never moves. `dual` keeps the mean cost of an episode and the mean length of a
message at their budgets, with a price each. `accuracy_floor` spends as little as it can
while the team's accuracy stays above a floor. `conditioned` charges each question a price of its
own and `target` gives it a budget of its own, which the team is told (see `terms`). A budget is in
the unit of `reward.cost` (tokens written or read, of the critical path, or money), the message
budget in tokens written; the cost that is priced and the cost that is bounded are one and the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.algorithms.options import BudgetOptions
from agent_gspo.types import Terms

# Of Holt's linear smoothing of the logarithm of a cost. Half of what is seen is noise
# (a step's questions), and a price acts with a delay of about five steps.
_LEVEL, _TREND = 0.5, 0.15
_NO_ROOM = 1e-6  # of accuracy, for a floor of 1
_NOTHING = 1e-3  # of the budget: a cost below counts as this much, so that 0 has a logarithm


@chex.dataclass(frozen=True)
class Observation:
  """What a step showed; float scalars.

  Attributes:
    accuracy: mean task score.
    episode_cost: mean cost of an episode, before any gate.
    message_tokens: mean tokens written in a message, silent ones included.
  """

  accuracy: chex.Numeric
  episode_cost: chex.Numeric
  message_tokens: chex.Numeric


@chex.dataclass(frozen=True)
class Trend:
  """Attributes:
  level: float32 scalar, logarithm of the smoothed cost, -inf before the first one.
  slope: float32 scalar, its change a step.
  """

  level: chex.Array
  slope: chex.Array


@chex.dataclass(frozen=True)
class BudgetState:
  """What the controllers carry from step to step; part of the checkpoint.

  Attributes:
    lambda_tok: float32 scalar, price of a unit of cost in units of task score.
    lambda_message: float32 scalar, price of a token beyond the message budget.
    integral_tok, integral_message: float32 scalars, the lasting part of the two prices.
    running_accuracy: float32 scalar, exponential mean of the training accuracy.
    best_accuracy: float32 scalar, highest running accuracy so far.
    episode, message: the costs that `dual` follows.
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
  """A fresh controller; running accuracy -1 means "nothing seen yet"."""
  # Arrays of their own each: an update may consume the buffers of a state.
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
  """The prices of the next step."""
  state = observe(state, seen.accuracy, options.accuracy_decay)
  if options.mode == 'accuracy_floor':
    return accuracy_floor(
      state,
      seen.episode_cost,
      floor=options.floor,
      floor_of_best=options.floor_of_best,
      eta=options.eta,
      band=options.floor_band,
      lambda_max=options.lambda_max,
    )
  if options.mode == 'dual':
    return _dual(options, state, seen)
  return state


def _dual(options: BudgetOptions, state: BudgetState, seen: Observation) -> BudgetState:
  rule = {
    'eta': options.dual_eta,
    'lookahead': options.dual_lookahead,
    'lambda_max': options.lambda_max,
  }
  if options.budget_episode:
    trend, integral, price = dual(
      state.episode,
      state.integral_tok,
      seen.episode_cost,
      budget=options.budget_episode,
      lambda_min=options.lambda_min,
      **rule,
    )
    state = dataclasses.replace(state, episode=trend, integral_tok=integral, lambda_tok=price)
  if options.budget_message:
    trend, integral, price = dual(
      state.message,
      state.integral_message,
      seen.message_tokens,
      budget=options.message_limit,
      **rule,
    )
    state = dataclasses.replace(
      state, message=trend, integral_message=integral, lambda_message=price
    )
  return state


def dual(
  trend: Trend,
  integral: chex.Numeric,
  cost: chex.Numeric,
  *,
  budget: float,
  eta: float,
  lookahead: float,
  lambda_max: float,
  lambda_min: float = 0.0,
) -> tuple[Trend, chex.Array, chex.Array]:
  """One multiplier: proportional-integral on the overshoot that the trend is heading for.

  `e = exp(level + lookahead * slope) / budget - 1`, and in units of `lambda * budget`:

    integral <- clip(integral + eta e, lambda_min budget, lambda_max budget)
    lambda budget = clip(integral + eta lookahead e, lambda_min budget, lambda_max budget)

  With `lookahead = 0` this is dual ascent, `lambda <- clip(lambda + eta (mean / budget - 1))`,
  on a smoothed cost, and with shape 'hinge' the rule of Leash (arXiv 2512.21540, eta 0.02).
  That is not the default: tokens answer to the price like an integrator with a delay (they
  go on falling as long as there is a price, and do not grow again at a price of 0), so a
  controller that only adds up errors runs through the budget. Looking ahead lets go of the
  price while the cost is still above the budget.

  A multiplier of an upper limit is never negative, so a team that drifts to fewer tokens by
  itself ends below the budget; with `lambda_min < 0` the constraint is an equality.

  The defaults, eta 0.04 and 20 steps, are the best of a grid on simulated policies (80
  steps, from 62 tokens to 15, 25 and 40; responses of 1.5 to 6 per unit of price and step,
  with and without a force back to long messages, a plateau, a bounded speed), of which
  `tests/algorithms/test_budgets.py` holds some. The integral does not grow while the price is at
  `lambda_max`, so the price comes back from there as soon as the trend does.

  Args:
    trend: of this cost.
    integral: float scalar, lasting part of the price.
    cost: float scalar >= 0, mean cost of the step.
    budget: mean cost to end at, > 0.
    eta: change a step of `lambda * budget` per 100 % overshoot.
    lookahead: steps.
    lambda_max: highest price.
    lambda_min: lowest price, <= 0.

  Returns:
    the trend, the integral and the price, float32 scalars.
  """
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


def observe(state: BudgetState, accuracy: chex.Numeric, decay: float) -> BudgetState:
  """Updates the running accuracy; the first observation starts it."""
  running = jnp.where(
    state.running_accuracy < 0,
    accuracy,
    decay * state.running_accuracy + (1 - decay) * accuracy,
  )
  best = jnp.maximum(state.best_accuracy, running)
  return dataclasses.replace(
    state, running_accuracy=running.astype(jnp.float32), best_accuracy=best.astype(jnp.float32)
  )


def accuracy_floor(
  state: BudgetState,
  cost: chex.Numeric,
  *,
  floor: float,
  floor_of_best: float,
  eta: float,
  band: float,
  lambda_max: float,
) -> BudgetState:
  """The highest price that the accuracy above a floor can pay: proportional-integral.

  The floor `f` is the higher of `floor` and `floor_of_best * best running accuracy`: a team
  that has learned to be better is held to that. With `m = (running accuracy - f) / b`,
  clipped to [-1, 1], and `b = min(band, (1 - f) / 2)`:

    share <- clip(share + eta m, 0, 1)
    lambda = clip(share + m, 0, 1) * min(lambda_max, 1 / cost)

  A first price above `lambda_max` counts as a share of 1.

  The width follows the room above the floor, since a price that needs 10 points of it is
  never paid by a team held to 95 %. At `1 / cost` the mean episode costs what a right answer
  earns: more than that outweighs the task while messages are long, and the price then swings
  between its ends. The share does not grow while the price is at its highest, and one band
  below the floor there is no price whatever the share has become.

  Args:
    state: after `observe`; its `integral_tok` is `share * lambda_max`.
    cost: float scalar >= 0, mean cost of an episode in this step.
    floor: accuracy, 0 to 1.
    floor_of_best: share of the best running accuracy, 0 to 1.
    eta: change of the lasting share a step at a full band.
    band: accuracy above the floor that is worth the highest price, > 0.
    lambda_max: highest price, > 0.
  """
  kept = jnp.maximum(floor, floor_of_best * state.best_accuracy)
  width = jnp.maximum(jnp.minimum(band, (1 - kept) / 2), _NO_ROOM)
  margin = jnp.clip((state.running_accuracy - kept) / width, -1.0, 1.0)
  share = jnp.clip(state.integral_tok / lambda_max, 0.0, 1.0)
  wound_up = share + margin >= 1
  share = jnp.where(wound_up, share, jnp.clip(share + eta * margin, 0.0, 1.0))
  highest = 1 / jnp.maximum(cost, 1 / lambda_max)
  price = jnp.clip(share + margin, 0.0, 1.0) * highest
  return dataclasses.replace(
    state,
    integral_tok=(share * lambda_max).astype(jnp.float32),
    lambda_tok=price.astype(jnp.float32),
  )


def prices(
  options: BudgetOptions, state: BudgetState, terms: Sequence[Terms | None]
) -> dict[str, Any]:
  """What talk costs in a step, by the names that `rewards.communication.reward_terms` has.

  Args:
    options: of the budget.
    state: before the step.
    terms: `E`, of each episode's question, None for the price of the state.
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
  """For `metrics.jsonl`: the prices that a step charged, and what it left of the rest.

  Args:
    charged: see `prices`; of those of a token the mean over episodes is told.
    after: the state that the step ended with.
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
