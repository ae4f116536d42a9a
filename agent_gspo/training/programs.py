"""The compiled programs of an update, and the loops over micro-batches that call them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agent_gspo.algorithms.objectives.losses import Objective, PackedTokens
from agent_gspo.models.transformer import Transformer
from agent_gspo.sharding.placement import ONE_DEVICE, Placement
from agent_gspo.training import update_metrics
from agent_gspo.training.policy_loss import PolicyLoss
from agent_gspo.training.state import TrainState
from agent_gspo.types import TrainBatch


class NonFiniteLossError(FloatingPointError):
  """The loss or gradient of a mini-batch is NaN or infinite."""


class Programs:
  """All that is compiled to learn from packed messages; nothing in it changes.

  Attributes:
    optimizer: of the trainable parameters.
    loss: of a micro-batch.
    placement: of the rows of micro-batches.
  """

  def __init__(
    self,
    model: Transformer,
    objective: Callable[[PackedTokens], Objective],
    optimizer: optax.GradientTransformation,
    temperature: float,
    *,
    placement: Placement = ONE_DEVICE,
    **options: Any,
  ):
    """Compiles nothing yet: each program is when it first runs.

    Args:
      model: the policy.
      objective: what is maximised, from packed tokens.
      optimizer: of the trainable parameters.
      temperature: of the rollout.
      placement: of the rows of micro-batches.
      **options: further attributes of `PolicyLoss`.
    """
    self.loss = PolicyLoss(model, objective, temperature, **options)
    self.optimizer, self.placement = optimizer, placement
    self._accumulate = jax.jit(self._accumulated, donate_argnums=3)
    self._apply = jax.jit(self._applied, donate_argnums=(0, 1))
    self._logprobs = jax.jit(lambda *of: self.loss.token_logprobs(*of)[0] * of[-1].loss_mask)
    self._entropies = jax.jit(lambda *of: self.loss.token_logprobs(*of)[1] * of[-1].loss_mask)

  def optimizer_step(
    self, state: TrainState, micro_batches: Sequence[TrainBatch]
  ) -> tuple[TrainState, dict[str, float]]:
    """One optimiser step on the micro-batches of a mini-batch; `state` is consumed.

    Gradients, objective and counts are summed over micro-batches and divided once.

    Args:
      state: before the step; the buffers of what is trained are donated. Its `reference` is read
        if `kl_coef > 0`.
      micro_batches: of one shape.

    Returns:
      The new state and the mini-batch's metrics.

    Raises:
      NonFiniteLossError: loss or gradient is not finite.
    """
    totals = jax.tree.map(jnp.zeros_like, state.trainable), self.loss.no_sums()
    for batch in map(self.placement.shard_batch, micro_batches):
      totals = self._accumulate(state.trainable, state.frozen, state.reference, totals, batch)
    grads, sums = totals
    count = float(sums['count'])
    objective = float(sums['objective']) / max(count, 1.0)
    trainable, opt_state, grad_norm = self._apply(state.trainable, state.opt_state, grads, count)
    metrics = update_metrics.of_sums({k: float(v) for k, v in sums.items()}, float(grad_norm))
    if not (np.isfinite(objective) and np.isfinite(metrics['policy/grad_norm'])):
      raise NonFiniteLossError(
        f'objective={objective}, gradient norm={metrics["policy/grad_norm"]}'
      )
    return dataclasses.replace(state, trainable=trainable, opt_state=opt_state), metrics

  def logprobs(self, state: TrainState, micro_batches: Sequence[TrainBatch]) -> list[np.ndarray]:
    """The trainer's log-prob of each loss token under `state`, float32 `[R, L]` a batch."""
    placed = map(self.placement.shard_batch, micro_batches)
    return [np.asarray(self._logprobs(state.trainable, state.frozen, b)) for b in placed]

  def entropies(self, state: TrainState, micro_batches: Sequence[TrainBatch]) -> list[np.ndarray]:
    """The policy's entropy where each loss token was sampled, nats, float32 `[R, L]` a batch.

    Raises:
      ValueError: these programs do not measure it.
    """
    if not self.loss.entropy:
      raise ValueError('Programs.entropies needs entropy=True.')
    placed = map(self.placement.shard_batch, micro_batches)
    return [np.asarray(self._entropies(state.trainable, state.frozen, b)) for b in placed]

  def _accumulated(self, trainable, frozen, reference, totals, batch: TrainBatch):
    """`totals` (gradients, sums) and those of one more micro-batch."""
    grads, sums = jax.grad(self.loss, has_aux=True)(trainable, frozen, reference, batch)
    old_grads, old_sums = totals
    sums = {
      k: jnp.maximum(old_sums[k], v) if k.endswith('_max') else old_sums[k] + v
      for k, v in sums.items()
    }
    return jax.tree.map(jnp.add, old_grads, grads), sums

  def _applied(self, trainable, opt_state, grads, count):
    """Parameters, optimiser state and gradient norm after one step on `grads / count`."""
    grads = jax.tree.map(lambda g: g / jnp.maximum(count, 1.0), grads)
    updates, opt_state = self.optimizer.update(grads, opt_state, trainable)
    return optax.apply_updates(trainable, updates), opt_state, optax.tree.norm(grads)
