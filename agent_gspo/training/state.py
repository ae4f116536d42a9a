"""Defines the training state and the optimizer that updates it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import chex
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

from agent_gspo.algorithms import budgets
from agent_gspo.algorithms import selection as selection_lib
from agent_gspo.models import lora as lora_lib
from agent_gspo.models.transformer import Params
from agent_gspo.sharding.placement import ONE_DEVICE
from agent_gspo.training.options import LearnerOptions

Flat = dict[tuple[str, ...], jax.Array]
MEMBERS = 'members'
"""Key of the parameters of the other models that learn, by name."""


@chex.dataclass(frozen=True)
class TrainState:
  """Training state of a run.

  Attributes:
    step: Finished training steps, int32 scalar; folded into random keys.
    trainable: Trainable parameters, float32, flat dict; those of another model that learns below
      `(MEMBERS, name)`, see `Team.trained`.
    frozen: Frozen parameters (all but the adapters under LoRA), flat dict.
    opt_state: Optimizer state for `trainable`; by name, '' first, if several models learn.
    reference: `trainable` of the reference policy: the initial policy, after any SFT; None if
      unused.
    budget: State of the token price.
    selection: Statistics of each training question, and the number of draws.
    pool: `trainable` of each opponent, see `training.opponents`; None without opponents.
    baselines: Running baseline of each role, float32 `[S]`; None unless the estimator has any.
  """

  step: chex.Array
  trainable: Any
  frozen: Any
  opt_state: Any
  reference: Any
  budget: budgets.BudgetState
  selection: selection_lib.SelectionState
  pool: Any = None
  baselines: Any = None

  @property
  def params(self) -> Params:
    """Returns all parameters, nested."""
    return merge(self.trainable, self.frozen)


def init(
  params: Params,
  optimizer: optax.GradientTransformation,
  *,
  lambda_tok: float = 0.0,
  lora: bool = False,
  keep_reference: bool = False,
  num_questions: int = 1,
  opponents: int = 0,
  roles: int = 0,
  members: Mapping[str, optax.GradientTransformation] = MappingProxyType({}),
  shardings: Callable[[TrainState], Any] = lambda state: None,
) -> TrainState:
  """Returns the state at step 0.

  Args:
    params: Nested parameters.
    optimizer: Optimizer, see `make_optimizer`.
    lambda_tok: Initial token price.
    lora: Train the adapters only.
    keep_reference: Also keep a copy of the trainable parameters as the reference policy.
    num_questions: Number of training questions.
    opponents: Number of opponents, at first all with these parameters.
    roles: Number of roles with a running baseline.
    members: Optimizers of the other models that learn, by name.
    shardings: Maps a state of shapes to the shardings of its arrays, or None.
  """

  def make(params: Params) -> TrainState:
    flat = flax.traverse_util.flatten_dict(params)
    trained = {k for k in flat if not lora or lora_lib.is_adapter(k[-1]) or k[0] == MEMBERS}
    # A copy: updates donate these buffers, and `params` belong to the caller.
    copy = lambda: {k: jnp.array(v) for k, v in flat.items() if k in trained}
    trainable = copy()
    return TrainState(
      step=jnp.int32(0),
      trainable=trainable,
      frozen={k: jnp.asarray(v) for k, v in flat.items() if k not in trained},
      opt_state=(
        {name: o.init(_own(trainable, name)) for name, o in {'': optimizer, **members}.items()}
        if members
        else optimizer.init(trainable)
      ),
      reference=copy() if keep_reference else None,
      budget=budgets.init(lambda_tok),
      selection=selection_lib.init(num_questions),
      pool=tuple(copy() for _ in range(opponents)) or None,
      baselines=jnp.zeros(roles, jnp.float32) if roles else None,
    )

  found = shardings(jax.eval_shape(make, params))
  if found is None:
    return ONE_DEVICE.put(make(params), None)
  return jax.jit(make, out_shardings=found)(params)


def is_whole(state: TrainState) -> bool:
  """Returns whether no buffer of the state was donated, by an update that was interrupted."""
  return not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def of_model(state: TrainState, name: str) -> TrainState:
  """Returns the state as that of one model that learns, '' for that of `model.source`."""
  if not _has_members(state):
    return state
  return dataclasses.replace(
    state,
    trainable=_own(state.trainable, name),
    frozen={} if name else state.frozen,
    opt_state=state.opt_state[name],
    reference=state.reference and _own(state.reference, name),
  )


def with_model(state: TrainState, name: str, own: TrainState) -> TrainState:
  """Returns the state with parameters and optimizer state of one model, see `of_model`."""
  if not _has_members(state):
    return own
  prefix = (MEMBERS, name) if name else ()
  updated = {(*prefix, *path): x for path, x in own.trainable.items()}
  return dataclasses.replace(
    state,
    trainable={**state.trainable, **updated},
    opt_state={**state.opt_state, name: own.opt_state},
  )


def _has_members(state: TrainState) -> bool:
  return any(path[0] == MEMBERS for path in state.trainable)


def _own(flat: Flat, name: str) -> Flat:
  """Returns the parameters of one model by its own paths."""
  if not name:
    return {path: x for path, x in flat.items() if path[0] != MEMBERS}
  return {path[2:]: x for path, x in flat.items() if path[:2] == (MEMBERS, name)}


def params_of(params: Params, name: str) -> Params:
  """Returns the nested parameters of one model that learns, '' for that of `model.source`."""
  return params[MEMBERS][name] if name else without_members(params)


def without_members(params: Params) -> Params:
  """Returns the parameters of `model.source` alone."""
  return {key: x for key, x in params.items() if key != MEMBERS}


def merge(trainable: Flat, frozen: Flat) -> Params:
  """Returns nested parameters for `Transformer.apply`."""
  return flax.traverse_util.unflatten_dict({**trainable, **frozen})


def make_optimizer(
  options: LearnerOptions, *, updates: int, adapter_scale: Sequence[float] | None = None
) -> optax.GradientTransformation:
  """Returns AdamW with global-norm clipping and a learning-rate schedule.

  Update `k` of the first `warmup_updates` has the rate `learning_rate * k / warmup_updates`; then
  it stays, or decays to 0 at `updates`. Weight decay is decoupled and applies to matrices alone.

  Args:
    options: Learner options; only those of the optimizer are read.
    updates: Optimizer steps of the whole run, for the decaying schedules.
    adapter_scale: Learning-rate factor of each of `N` adapters, `[N]`, see `scale_adapters`; 1 by
      default.
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
  """Multiplies the update of adapter `n` by `factors[n]`; factor 0 keeps its weights.

  Goes after the learning rate and weight decay, for parameters that are all adapters: leaves
  `[N, ...]`, or of any shape with one factor.
  """

  def scaled(update: jax.Array) -> jax.Array:
    factor = jnp.asarray(factors, update.dtype).reshape((-1,) + (1,) * (update.ndim - 1))
    # Adding -0.0 changes no bit, but for denormals; adding 0.0 turns -0.0 into 0.0.
    return jnp.where(factor == 0, -0.0, factor * update)

  return optax.stateless(lambda updates, _: jax.tree.map(scaled, updates))
