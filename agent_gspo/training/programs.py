"""Compiles the programs of an update, and loops over micro-batches with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agent_gspo.algorithms.objectives.losses import Objective, PackedTokens
from agent_gspo.models import partition
from agent_gspo.models.transformer import Transformer
from agent_gspo.sharding.placement import ONE_DEVICE, Placement
from agent_gspo.training import update_metrics
from agent_gspo.training.policy_loss import PolicyLoss, Sums, merge
from agent_gspo.training.scoring import PolicyParams
from agent_gspo.training.state import Flat, TrainState
from agent_gspo.types import TrainBatch

Totals = tuple[Flat, Sums]
"""Gradients and sums, `[replicas, ...]` each."""


class NonFiniteLossError(FloatingPointError):
  """The loss or gradient of a mini-batch is NaN or infinite."""


class UncountedLossError(ValueError):
  """A custom objective counted nothing in a mini-batch, yet its total is not 0."""


class Programs:
  """Compiled programs that learn from packed messages; immutable.

  Attributes:
    optimizer: Optimizer of the trainable parameters.
    loss: Loss of a micro-batch.
    accumulate: Compiled; adds gradients and sums of one micro-batch.
    apply: Compiled; takes the optimizer step on the accumulated gradients.
    placement: Placement of parameters, gradients and micro-batch rows.
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
    """Prepares the programs; each is compiled when it first runs.

    Args:
      model: Policy model.
      objective: Objective to maximize, a function of packed tokens.
      optimizer: Optimizer of the trainable parameters.
      temperature: Sampling temperature of the rollout.
      placement: Placement of parameters, gradients and micro-batch rows.
      **options: Further attributes of `PolicyLoss`.
    """
    self.loss = PolicyLoss(model, objective, temperature, placement=placement, **options)
    self.optimizer, self.placement = optimizer, placement
    self._config = model.config
    self.accumulate = jax.jit(self._accumulated, donate_argnums=3)
    self.apply = jax.jit(self._applied, donate_argnums=(0, 1))
    self._no_totals = jax.jit(self.no_totals)
    whole = placement.replicated if placement.spans_processes else None  # read by all processes
    scores = lambda i: jax.jit(
      placement.by_replica(lambda *of: self.loss.token_logprobs(*of)[i] * of[-1].loss_mask, 2),
      out_shardings=whole,
    )
    self._logprobs, self._entropies = scores(0), scores(1)

  def optimizer_step(
    self, state: TrainState, micro_batches: Sequence[TrainBatch]
  ) -> tuple[TrainState, dict[str, float]]:
    """Takes one optimizer step on the micro-batches of a mini-batch; consumes `state`.

    Gradients, objective and counts are summed over micro-batches and divided once.

    Args:
      state: State before the step; its trainable buffers are donated. Its `reference` is read if
        `kl_coef > 0`.
      micro_batches: Micro-batches of one shape.

    Returns:
      The new state and the mini-batch's metrics.

    Raises:
      NonFiniteLossError: Loss or gradient is not finite.
      UncountedLossError: The objective's count is 0 but its total is not.
    """
    totals = self._no_totals(state.trainable)
    for batch in map(self.placement.shard_rows, micro_batches):
      totals = self.accumulate(state.trainable, state.frozen, state.reference, totals, batch)
    trainable, opt_state, sums = self.apply(state.trainable, state.opt_state, totals)
    found = {name: float(value) for name, value in sums.items()}
    grad_norm = found.pop('grad_norm')
    objective = found['objective'] / max(found['count'], 1.0)
    metrics = update_metrics.of_sums(found, grad_norm)
    if found['count'] < 0 or (found['count'] == 0 and found['objective'] != 0):
      raise UncountedLossError(f'count={found["count"]} for total={found["objective"]}')
    if not (np.isfinite(objective) and np.isfinite(metrics['policy/grad_norm'])):
      raise NonFiniteLossError(
        f'objective={objective}, gradient norm={metrics["policy/grad_norm"]}'
      )
    return dataclasses.replace(state, trainable=trainable, opt_state=opt_state), metrics

  def logprobs(
    self, state: TrainState | PolicyParams, micro_batches: Sequence[TrainBatch]
  ) -> list[np.ndarray]:
    """Returns the trainer's log-prob of each loss token, float32 `[R, L]` per micro-batch."""
    placed = map(self.placement.shard_rows, micro_batches)
    return [np.asarray(self._logprobs(state.trainable, state.frozen, b)) for b in placed]

  def entropies(self, state: TrainState, micro_batches: Sequence[TrainBatch]) -> list[np.ndarray]:
    """Returns the policy's entropy at each loss token, nats, float32 `[R, L]` per micro-batch.

    Raises:
      ValueError: These programs do not measure entropy.
    """
    if not self.loss.entropy:
      raise ValueError('Programs.entropies needs entropy=True.')
    placed = map(self.placement.shard_rows, micro_batches)
    return [np.asarray(self._entropies(state.trainable, state.frozen, b)) for b in placed]

  def no_totals(self, trainable: Flat) -> Totals:
    """Returns zero-initialized accumulators `[replicas, ...]` for `accumulate`."""
    zeros = lambda x: jnp.zeros((self.placement.replicas, *x.shape), x.dtype)
    grads = jax.tree.map(zeros, trainable)
    return self._cut_totals((grads, jax.tree.map(zeros, self.loss.no_sums())))

  def _accumulated(self, trainable, frozen, reference, totals: Totals, batch: TrainBatch) -> Totals:
    """Adds the gradients and sums of one more micro-batch to `totals`."""

    def of_replica(trainable, frozen, reference, totals, batch):  # totals: [1, ...] each
      grads, sums = jax.grad(self.loss, has_aux=True)(trainable, frozen, reference, batch)
      old_grads, old_sums = totals
      return jax.tree.map(jnp.add, old_grads, jax.tree.map(lambda g: g[None], grads)), {
        name: (jnp.maximum if name.endswith('_max') else jnp.add)(old_sums[name], value[None])
        for name, value in sums.items()
      }

    mapped = self.placement.by_replica(of_replica, whole=3)
    return self._cut_totals(mapped(trainable, frozen, reference, totals, batch))

  def _applied(self, trainable, opt_state, totals: Totals):
    """Returns parameters and optimizer state after one step on the mean gradient, and the sums."""
    grads, sums = totals
    sums = merge(sums)
    count = jnp.maximum(sums['count'], 1.0)
    # The all-reduce over replicas, once per mini-batch: [replicas, ...] -> [...].
    grads = self._cut(jax.tree.map(lambda g: g.sum(axis=0) / count, grads))
    updates, opt_state = self.optimizer.update(grads, opt_state, trainable)
    trainable = optax.apply_updates(trainable, updates)
    sums['grad_norm'] = optax.tree.norm(grads)
    return self._cut(trainable), self._cut(opt_state), sums

  def _cut(self, tree: Any) -> Any:
    return self.placement.constrain(tree, partition.shardings(tree, self._config, self.placement))

  def _cut_totals(self, totals: Totals) -> Totals:
    return self.placement.constrain(
      totals, partition.replica_shardings(totals, self._config, self.placement)
    )
