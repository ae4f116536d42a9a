"""The price of a token, lambda_tok, as a controlled quantity.

`fixed` never moves. `accuracy_floor` spends as little as it can while the team's
accuracy stays above a floor: the price rises above it and falls below it.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp

MODES = ('fixed', 'accuracy_floor')


@chex.dataclass(frozen=True)
class BudgetState:
  """What the controller carries from step to step; part of the checkpoint.

  Attributes:
    lambda_tok: float32 scalar, price of a token in units of task score.
    running_accuracy: float32 scalar, exponential mean of the training accuracy.
    best_accuracy: float32 scalar, highest running accuracy so far.
  """

  lambda_tok: chex.Array
  running_accuracy: chex.Array
  best_accuracy: chex.Array


def init(lambda_tok: float) -> BudgetState:
  """A fresh controller; running accuracy -1 means "nothing seen yet"."""
  return BudgetState(
    lambda_tok=jnp.float32(lambda_tok),
    running_accuracy=jnp.float32(-1.0),
    best_accuracy=jnp.float32(0.0),
  )


def observe(state: BudgetState, accuracy: float, decay: float) -> BudgetState:
  """Updates the running accuracy; the first observation starts it."""
  running = jnp.where(
    state.running_accuracy < 0,
    accuracy,
    decay * state.running_accuracy + (1 - decay) * accuracy,
  )
  best = jnp.maximum(state.best_accuracy, running)
  return state.replace(
    running_accuracy=running.astype(jnp.float32), best_accuracy=best.astype(jnp.float32)
  )


def accuracy_floor(
  state: BudgetState, *, floor: float, floor_of_best: float, eta: float, lambda_max: float
) -> BudgetState:
  """`lambda <- clip(lambda + eta * (running accuracy - floor), 0, lambda_max)`.

  The floor is the higher of `floor` and `floor_of_best * best running accuracy`, so a
  team that has learned to be better is held to that.

  Args:
    state: after `observe`.
    floor: accuracy, 0 to 1.
    floor_of_best: share of the best running accuracy, 0 to 1.
    eta: price change a step per unit of accuracy.
    lambda_max: highest price.
  """
  bar = jnp.maximum(floor, floor_of_best * state.best_accuracy)
  price = state.lambda_tok + eta * (state.running_accuracy - bar)
  return state.replace(lambda_tok=jnp.clip(price, 0.0, lambda_max).astype(jnp.float32))
