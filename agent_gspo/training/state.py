"""Everything that changes during a run, and the optimiser that changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import chex
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

from agent_gspo.algorithms import budgets
from agent_gspo.algorithms.selection import rules
from agent_gspo.models.transformer import Params
from agent_gspo.training.options import LearnerOptions

Flat = dict[tuple[str, ...], jax.Array]


@chex.dataclass(frozen=True)
class TrainState:
  """Attributes:
  step: int32 scalar, finished training steps; also what random keys are folded with.
  trainable: flat dict of the float32 parameters that are trained.
  frozen: flat dict of those that are not (all but the adapters under LoRA).
  opt_state: of the optimiser, for `trainable`.
  reference: `trainable` of the reference policy, which is where the run began, after a warm
    start; None where nobody asks for it.
  budget: state of the token price.
  selection: what is known of each training question, and how many were drawn.
  """

  step: chex.Array
  trainable: Any
  frozen: Any
  opt_state: Any
  reference: Any
  budget: budgets.BudgetState
  selection: rules.SelectionState


def init(
  params: Params,
  optimizer: optax.GradientTransformation,
  *,
  lambda_tok: float = 0.0,
  lora: bool = False,
  keep_reference: bool = False,
  num_questions: int = 1,
  shardings: Callable[[TrainState], Any] = lambda state: None,
) -> TrainState:
  """State at step 0.

  Args:
    params: nested parameters.
    optimizer: see `make_optimizer`.
    lambda_tok: first price of a token.
    lora: train the adapters only.
    keep_reference: also hold what is trained of `params` as the reference policy.
    num_questions: of the training split.
    shardings: where each array of a state of such shapes is born.
  """

  def make(params: Params) -> TrainState:
    flat = flax.traverse_util.flatten_dict(params)
    trained = {k for k in flat if not lora or k[-1].startswith('lora_')}
    # A copy: updates consume these buffers, and `params` stay the caller's.
    copy = lambda: {k: jnp.array(v) for k, v in flat.items() if k in trained}
    trainable = copy()
    return TrainState(
      step=jnp.int32(0),
      trainable=trainable,
      frozen={k: jnp.asarray(v) for k, v in flat.items() if k not in trained},
      opt_state=optimizer.init(trainable),
      reference=copy() if keep_reference else None,
      budget=budgets.init(lambda_tok),
      selection=rules.init(num_questions),
    )

  found = shardings(jax.eval_shape(make, params))
  return make(params) if found is None else jax.jit(make, out_shardings=found)(params)


def merge(trainable: Flat, frozen: Flat) -> Params:
  """Nested parameters for `Transformer.apply`."""
  return flax.traverse_util.unflatten_dict({**trainable, **frozen})


def make_optimizer(
  options: LearnerOptions, *, updates: int, adapter_scale: Sequence[float] | None = None
) -> optax.GradientTransformation:
  """AdamW with global-norm clipping and a learning-rate schedule.

  Update `k` of the first `warmup_updates` has the rate `learning_rate * k / warmup_updates`; then
  it stays, or decays to 0 at `updates`. Matrices alone are decayed, decoupled from the gradient.

  Args:
    options: which rates; its other fields are not read.
    updates: optimiser steps of the whole run, for the decaying schedules.
    adapter_scale: `[N]`, factor on the learning rate of each of `N` adapters, see
      `scale_adapters`; by default 1.
  """
  peak, warmup = options.learning_rate, options.warmup_updates
  decay_updates = max(updates - warmup, 1)
  after = {
    'constant': lambda: optax.constant_schedule(peak),
    'linear': lambda: optax.linear_schedule(peak, 0.0, decay_updates),
    'cosine': lambda: optax.cosine_decay_schedule(peak, decay_updates),
  }[options.schedule]()
  rate = after
  if warmup:
    ramp = optax.linear_schedule(peak / warmup, peak, warmup - 1)
    rate = optax.join_schedules([ramp, after], [warmup])
  matrices = lambda params: jax.tree.map(lambda x: x.ndim > 1, params)
  chain = (
    optax.clip_by_global_norm(options.grad_clip),
    optax.adamw(
      rate,
      b1=options.b1,
      b2=options.b2,
      weight_decay=options.weight_decay,
      mask=matrices,
      mu_dtype=options.b1_dtype,
    ),
  )
  return optax.chain(*chain, *([scale_adapters(adapter_scale)] if adapter_scale else []))


def scale_adapters(factors: Sequence[float]) -> optax.GradientTransformation:
  """Multiplies the step of adapter `n` by `factors[n]`; one with factor 0 stays bit for bit.

  Comes after the learning rate and weight decay, for parameters that are all adapters:
  leaves `[N, ...]`, or of any shape if there is one factor.
  """

  def scaled(update: jax.Array) -> jax.Array:
    factor = jnp.asarray(factors, update.dtype).reshape((-1,) + (1,) * (update.ndim - 1))
    # -0.0 is what may be added to any number without changing it; 0.0 turns -0.0 into 0.0.
    return jnp.where(factor == 0, -0.0, factor * update)

  return optax.stateless(lambda updates, _: jax.tree.map(scaled, updates))
