"""Compiles the policy update: the loss of packed messages, its gradient, an optimizer step.

`R` rows of `T` columns, `L` loss tokens and `S` message slots, see `types.TrainBatch`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax

from agent_gspo.algorithms.objectives import kl, off_policy
from agent_gspo.algorithms.objectives.losses import Objective, PackedTokens, message_mean
from agent_gspo.models import partition
from agent_gspo.models.transformer import (
  ROUTING,
  Params,
  Transformer,
  head_kernel,
  head_params,
  routing,
)
from agent_gspo.ops import lm_head
from agent_gspo.ops.attention.masks import TreeMask
from agent_gspo.sharding.placement import ONE_DEVICE, Placement
from agent_gspo.training import host_memory
from agent_gspo.training import state as state_lib
from agent_gspo.training.state import Flat, TrainState
from agent_gspo.types import TrainBatch

Sums = dict[str, jax.Array]
Totals = tuple[Flat, Sums]
"""Gradients and sums, `[replicas, ...]` each."""

_SUMS = (
  'objective', 'count', 'messages', 'tokens', 'ratio', 'ratio_error_max', 'clipped', 'entropy',
  'gap', 'gap_max', 'sampler_gap', 'sampler_gap_max', 'kl',
)  # fmt: skip


class NonFiniteLossError(FloatingPointError):
  """The loss or gradient of a mini-batch is NaN or infinite."""


class UncountedLossError(ValueError):
  """A custom objective counted nothing in a mini-batch, yet its total is not 0."""


class PolicyParams(NamedTuple):
  """Parameters of a policy, flat, as `TrainState` has them."""

  trainable: Any
  frozen: Any

  @classmethod
  def of(cls, params: Params, name: str = '') -> PolicyParams:
    """Returns `state.params_of` in that form."""
    return cls(flax.traverse_util.flatten_dict(state_lib.params_of(params, name)), {})


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
  """Pure function of parameters and a micro-batch.

  Attributes:
    model: Policy model.
    objective: Objective to maximize, a function of packed tokens.
    temperature: Sampling temperature of the rollout; log-probs use the same one.
    kl_coef: Weight of the KL penalty to the reference policy; 0 runs no reference.
    kl_estimator: Key of `kl.LOSS_ESTIMATORS`.
    tis_cap: Cap of the importance weights that correct sampler-trainer mismatch, see
      `off_policy.truncated_weights`; 0 for no correction.
    tis_level: Key of `options.TIS_LEVELS`.
    entropy: Measure the policy's entropy.
    replay_routing: See `LearnerOptions`.
    placement: Placement of rows. All computation after the decoder is local to a device.
  """

  model: Transformer
  objective: Callable[[PackedTokens], Objective]
  temperature: float
  kl_coef: float = 0.0
  kl_estimator: str = 'k3'
  tis_cap: float = 0.0
  tis_level: str = 'message'
  entropy: bool = True
  replay_routing: str = ''
  placement: Placement = ONE_DEVICE

  def __call__(
    self, trainable: Flat, frozen: Flat, reference: Flat | None, batch: TrainBatch
  ) -> tuple[jax.Array, Sums]:
    """Returns minus the objective's total over a micro-batch, not divided by any count.

    Args:
      trainable, frozen: Parameters of the policy.
      reference: Trainable parameters of the reference policy; read if `kl_coef > 0`.
      batch: Packed messages.

    Returns:
      A float32 scalar, and the sums and maxima (`*_max`) from which metrics are computed.
    """
    policies = [trainable]
    if self.kl_coef:
      if reference is None:
        raise ValueError(f'kl_coef={self.kl_coef} needs a state that holds a reference policy.')
      policies.append(reference)
    # hidden: [R, T, D] of the policy, and of the reference policy under a KL penalty.
    replayed = self._replayed(batch)
    heads, hidden, routed = zip(
      *(self._hidden(x, frozen, batch, replayed if x is trainable else None) for x in policies),
      strict=True,
    )
    # total and each entry of sums: [n, ...], one for each of the replica's n row shards.
    total, sums = self._by_rows(self._of_rows, heads)(heads, hidden, routed[0], batch)
    return total.sum(), _merge(sums)

  def _of_rows(
    self,
    heads: tuple[Params, ...],
    hidden: tuple[jax.Array, ...],
    routed: Mapping[str, jax.Array],
    batch: TrainBatch,
  ) -> tuple[jax.Array, Sums]:
    """Returns loss and sums of the rows of a device, `[1, ...]`; no message spans two rows.

    Args:
      heads: LM head parameters of the policy, and of the reference policy if there is one.
      hidden: Final hidden states `[R, T, D]` of the same policies.
      routed: Result of `transformer.routing` for the policy.
      batch: Packed messages.
    """
    logprobs, entropy = self._token_logprobs(heads[0], hidden[0], batch)  # [R, L] each
    rows, slots = batch.advantages.shape
    # Flatten to R*L tokens and R*S messages; message_ids maps each token to its message.
    flat: Callable[[Any], Any] = lambda values: None if values is None else values.reshape(-1)
    sampler_logprobs = flat(batch.sampler_logprobs)  # [R*L]
    x = PackedTokens(
      logprobs=logprobs.reshape(-1),  # [R*L]
      old_logprobs=flat(batch.old_logprobs),
      message_ids=(batch.loss_message + slots * jnp.arange(rows)[:, None]).reshape(-1),  # [R*L]
      token_mask=flat(batch.loss_mask),
      advantages=flat(batch.advantages),  # [R*S]
      message_mask=flat(batch.message_mask),
      token_weights=flat(batch.token_weights),  # [R*L]
      sampler_logprobs=sampler_logprobs,
      span_log_ratio=flat(batch.span_log_ratio),  # [R*S]
      span_share=flat(batch.span_share),
    )
    sums: Sums = {}
    if self.tis_cap:
      weights, truncated = off_policy.truncated_weights(
        x, sampler_logprobs, cap=self.tis_cap, level=self.tis_level
      )
      x = dataclasses.replace(x, importance=weights)
      by_message = lambda values: jnp.sum(message_mean(values, x) * x.message_mask)
      sums = {'tis_weight': by_message(weights), 'tis_truncated': by_message(truncated)}
    divergence = jnp.float32(0)
    if self.kl_coef:
      reference_logprobs, _ = self._token_logprobs(heads[1], hidden[1], batch)
      estimate = kl.LOSS_ESTIMATORS[self.kl_estimator]
      difference = estimate(x.logprobs, reference_logprobs.reshape(-1))  # [R*L]
      x = dataclasses.replace(x, token_penalty=self.kl_coef * difference)
      divergence = jnp.sum(message_mean(difference, x) * x.message_mask)
    result = self.objective(x)
    sums |= _sums(x, result, entropy) | _gaps(x, sampler_logprobs) | _routing_sums(routed, batch)
    sums['kl'] = jax.lax.stop_gradient(divergence)
    return jax.tree.map(lambda x: x[None], (-result.total, sums))

  def scored(
    self, trainable: Flat, frozen: Flat, batch: TrainBatch
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the log-prob of each loss token, nats, float32 `[R, L]`, and experts.

    The experts are those of each token, int32 `[R, T, num_layers, k]`, None for a dense model.
    """
    head, hidden, routed = self._hidden(trainable, frozen, batch, self._replayed(batch))
    logprobs, _ = self._by_rows(self._token_logprobs, head)(head, hidden, batch)
    return logprobs * batch.loss_mask, routed.get('experts')

  def _replayed(self, batch: TrainBatch) -> jax.Array | None:
    """Returns the experts that tokens are routed to; None for the router's own choice."""
    # In the old policy's own pass `old_experts` is None.
    known = {'': None, 'trainer': batch.old_experts, 'sampler': batch.sampler_experts}
    return known[self.replay_routing]

  def _by_rows(self, function: Callable[..., Any], heads: Any) -> Callable[..., Any]:
    """Maps a function of LM heads and rows over devices, each on its own rows."""
    kept = partition.shardings(heads, self.model.config, self.placement)
    return self.placement.by_rows(function, kept)

  def _hidden(
    self, trainable: Flat, frozen: Flat, batch: TrainBatch, experts: jax.Array | None
  ) -> tuple[Params, jax.Array, dict[str, jax.Array]]:
    """Returns LM head parameters, final hidden states `[R, T, D]` and `transformer.routing`."""
    params = state_lib.merge(trainable, frozen)
    (hidden, _), sown = self.model.apply(
      {'params': params},
      batch.tokens,
      batch.positions,
      TreeMask(batch.subtree_end),
      adapter=batch.adapters,
      experts=experts,
      mutable=[ROUTING],
    )
    return head_params(params), hidden, routing(sown)

  def _token_logprobs(
    self, head: Params, hidden: jax.Array, batch: TrainBatch
  ) -> tuple[jax.Array, jax.Array]:
    """Returns log-prob and entropy at each loss token, nats, float32 `[R, L]` each."""
    rows, slots = batch.loss_target.shape  # R, L
    # [R, T, D] -> [R, L, D]: loss tokens may share a source position.
    hidden = jnp.take_along_axis(hidden, batch.loss_source[..., None], axis=1)
    # Log-probs over the vocabulary are computed in chunks of the R*L tokens.
    found = lm_head.token_logprobs(
      hidden.reshape(rows * slots, -1),
      head_kernel(head),
      batch.loss_target.reshape(-1),
      batch.loss_mask.reshape(-1) > 0,
      temperature=self.temperature,
      entropy=self.entropy,
      unsaid=self.model.config.unsaid,
      cap=self.model.config.logit_cap,
    )
    logprobs, entropy = (x.reshape(rows, slots) for x in found)
    if batch.loss_any is not None:
      of_row = functools.partial(
        lm_head.any_logprobs, temperature=self.temperature, cap=self.model.config.logit_cap
      )
      of_rows = jax.vmap(of_row, in_axes=(0, 0, None, 0, 0))
      logprobs = of_rows(logprobs, hidden, head_kernel(head), batch.loss_target, batch.loss_any)
    return logprobs, entropy

  def no_sums(self) -> dict[str, Any]:
    """Returns zero-initialized accumulators for the sums of `__call__`."""
    names = _SUMS + (('tis_weight', 'tis_truncated') if self.tis_cap else ())
    found: dict[str, Any] = dict.fromkeys(names, np.float32(0))
    if experts := self.model.config.num_experts:
      zeros = np.zeros(experts, np.float32)
      found |= {'chosen': zeros, 'probability': zeros}
      found |= dict.fromkeys(('rerouted', 'sampler_rerouted'), np.float32(0))
    return found


class Programs:
  """Compiled programs that learn from packed messages; immutable.

  Attributes:
    loss: Loss of a micro-batch.
    accumulate: Compiled; adds gradients and sums of one micro-batch.
    apply: Compiled; takes the optimizer step on the accumulated gradients.
    optimizer, placement: See `__init__`.
  """

  def __init__(
    self,
    model: Transformer,
    objective: Callable[[PackedTokens], Objective],
    optimizer: optax.GradientTransformation,
    temperature: float,
    *,
    placement: Placement = ONE_DEVICE,
    takes_turns: bool = False,
    **options: Any,
  ):
    """Prepares the programs; each is compiled when it first runs.

    Args:
      model: Policy model.
      objective: Objective to maximize, a function of packed tokens.
      optimizer: Optimizer of the trainable parameters.
      temperature: Sampling temperature of the rollout.
      placement: Placement of parameters, gradients and micro-batch rows.
      takes_turns: Queue one micro-batch at a time, so that another thread's programs run between.
        CPUs always do, where queued programs already hold their memory.
      **options: Further attributes of `PolicyLoss`.
    """
    self.loss = PolicyLoss(model, objective, temperature, placement=placement, **options)
    self.optimizer, self.placement = optimizer, placement
    self._takes_turns = takes_turns or jax.default_backend() == 'cpu'
    self._config = model.config
    self.accumulate = jax.jit(self._accumulated, donate_argnums=3)
    self.apply = jax.jit(self._applied, donate_argnums=(0, 1))
    self._no_totals = jax.jit(self.no_totals, out_shardings=placement.one_device)
    whole = placement.replicated if placement.spans_processes else None  # read by all processes
    self._scored = jax.jit(placement.by_replica(self.loss.scored, 2), out_shardings=whole)

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
    self._compile(state, micro_batches[0])
    totals, memory = self._no_totals(state.trainable), host_memory.Ceiling()
    for batch in map(self.placement.shard_rows, micro_batches):
      totals = self.accumulate(state.trainable, state.frozen, state.reference, totals, batch)
      if self._takes_turns:
        jax.block_until_ready(totals)
        memory.check()
    trainable, opt_state, sums = self.apply(state.trainable, state.opt_state, totals)
    found: dict[str, Any] = {k: np.asarray(v, float) for k, v in sums.items()}
    found |= {k: float(v) for k, v in found.items() if not v.ndim}
    grad_norm = found.pop('grad_norm')
    objective = found['objective'] / max(found['count'], 1.0)
    metrics = metrics_of_sums(found, grad_norm)
    if found['count'] < 0 or (found['count'] == 0 and found['objective'] != 0):
      raise UncountedLossError(f'count={found["count"]} for total={found["objective"]}')
    if not (np.isfinite(objective) and np.isfinite(metrics['policy/grad_norm'])):
      raise NonFiniteLossError(
        f'objective={objective}, gradient norm={metrics["policy/grad_norm"]}'
      )
    return dataclasses.replace(state, trainable=trainable, opt_state=opt_state), metrics

  def _compile(self, state: TrainState, batch: TrainBatch) -> None:
    """Compiles `accumulate` on a CPU before its arrays are there, unless it has run.

    Memory that the compiler frees is scattered and given back.
    """
    # Any: the types of jitted functions lack `_cache_size`.
    accumulate: Any = self.accumulate
    if jax.default_backend() == 'cpu' and not accumulate._cache_size():
      totals = jax.eval_shape(self._no_totals, state.trainable)
      batch = self.placement.shard_rows(batch)
      accumulate.lower(state.trainable, state.frozen, state.reference, totals, batch).compile()
      host_memory.give_back()

  def logprobs(
    self, state: TrainState | PolicyParams, micro_batches: Sequence[TrainBatch]
  ) -> list[np.ndarray]:
    """Returns the trainer's log-prob of each loss token, float32 `[R, L]` per micro-batch."""
    placed = map(self.placement.shard_rows, micro_batches)
    return [np.asarray(self._scored(state.trainable, state.frozen, b)[0]) for b in placed]

  def scored(
    self, state: TrainState | PolicyParams, micro_batches: Sequence[TrainBatch]
  ) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Returns the results of `PolicyLoss.scored` per micro-batch."""
    placed = map(self.placement.shard_rows, micro_batches)
    return [
      jax.tree.map(np.asarray, self._scored(state.trainable, state.frozen, b)) for b in placed
    ]

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
    sums = _merge(sums)
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


def metrics_of_sums(sums: Mapping[str, Any], grad_norm: float) -> dict[str, float]:
  """Returns means from the sums of `PolicyLoss` over the micro-batches of a mini-batch."""
  count, tokens = max(sums['messages'], 1.0), max(sums['tokens'], 1.0)
  metrics = {
    'policy/objective': sums['objective'] / max(sums['count'], 1.0),
    'policy/ratio_mean': sums['ratio'] / count,
    'policy/ratio_error_max': sums['ratio_error_max'],
    'policy/clip_fraction': sums['clipped'] / count,
    'policy/entropy': sums['entropy'] / tokens,
    'policy/logprob_gap_mean': sums['gap'] / tokens,
    'policy/logprob_gap_max': sums['gap_max'],
    'policy/sampler_gap_mean': sums['sampler_gap'] / tokens,
    'policy/sampler_gap_max': sums['sampler_gap_max'],
    'policy/grad_norm': grad_norm,
    'policy/kl': sums['kl'] / count,
  }
  if 'tis_weight' in sums:
    metrics['policy/tis_weight_mean'] = sums['tis_weight'] / count
    metrics['policy/tis_truncated'] = sums['tis_truncated'] / count
  if 'chosen' in sums:
    # [E] shares of tokens and layers: that choose an expert, and its mean probability.
    total = max(sums['probability'].sum(), 1.0)
    shares = sums['chosen'] / total, sums['probability'] / total
    metrics['router/balance'] = len(sums['chosen']) * float(np.sum(shares[0] * shares[1]))
    metrics['router/changed_update'] = sums['rerouted'] / tokens
    metrics['router/changed_sampler'] = sums['sampler_rerouted'] / tokens
  return metrics


def _merge(sums: Sums) -> Sums:
  """Reduces sums and maxima `[n, ...]` of `n` parts of a batch to `[...]`."""
  return {k: v.max(axis=0) if k.endswith('_max') else v.sum(axis=0) for k, v in sums.items()}


def _sums(x: PackedTokens, result: Objective, entropy: jax.Array) -> Sums:
  """Returns sums over messages and tokens, and maxima, from which metrics are computed."""
  tokens = x.token_mask  # [N] tokens; ratio and clipped are [M] messages
  # A custom objective may return anything for padding, NaN as well.
  ratio, clipped = (jnp.where(x.message_mask > 0, v, 0) for v in (result.ratio, result.clipped))
  sums = {
    'objective': result.total,
    'count': result.count,
    'messages': jnp.sum(x.message_mask),
    'tokens': tokens.sum(),
    'ratio': ratio.sum(),
    'ratio_error_max': jnp.max(jnp.abs(ratio - 1.0) * x.message_mask),
    'clipped': clipped.sum(),
    'entropy': jnp.sum(entropy.reshape(-1) * tokens),
  }
  return jax.tree.map(jax.lax.stop_gradient, sums)


def _routing_sums(routed: Mapping[str, jax.Array], batch: TrainBatch) -> Sums:
  """Returns sums over loss tokens of `transformer.routing`; {} for a dense model.

  Returns:
    `chosen` and `probability` of each expert, `[E]`, over layers too; `rerouted` and
    `sampler_rerouted`, the share of layers in which the set of experts is not that of `old_experts`
    and of `sampler_experts`.
  """
  if not routed:
    return {}
  experts, probabilities = map(jax.lax.stop_gradient, (routed['experts'], routed['probabilities']))
  rows = jnp.arange(len(batch.tokens))[:, None]
  # Loss tokens that each position predicts. [R, T]
  weight = jnp.zeros(batch.tokens.shape).at[rows, batch.loss_source].add(batch.loss_mask)
  of_choices = jnp.broadcast_to(weight[..., None, None], experts.shape)

  def rerouted(others: jax.Array | None) -> jax.Array:
    if others is None:
      return jnp.float32(0)
    differs = (jnp.sort(experts) != jnp.sort(others)) & (others >= 0)  # [R, T, num_layers, k]
    return jnp.sum(weight * differs.any(axis=-1).mean(axis=-1))

  return {
    'chosen': jnp.zeros(probabilities.shape[-1]).at[experts].add(of_choices),
    'probability': jnp.einsum('rt,rtle->e', weight, probabilities),
    'rerouted': rerouted(batch.old_experts),
    'sampler_rerouted': rerouted(batch.sampler_experts),
  }


def _gaps(x: PackedTokens, sampler_logprobs: jax.Array) -> Sums:
  """Returns sum and maximum of `|log pi - log pi_old|` and `|log pi - log pi_sampler|`."""
  found: Sums = {}
  for name, other in (('gap', x.old_logprobs), ('sampler_gap', sampler_logprobs)):
    gap = jax.lax.stop_gradient(jnp.abs(x.logprobs - other) * x.token_mask)
    found |= {name: gap.sum(), f'{name}_max': gap.max()}
  return found
