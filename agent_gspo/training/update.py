"""The jitted update: log-probs of packed messages, objective, gradient, optimiser step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agent_gspo.algorithms.objectives import behaviour, kl
from agent_gspo.algorithms.objectives.losses import Objective, PackedTokens, message_mean
from agent_gspo.models.transformer import Transformer
from agent_gspo.packing import prefix_tree
from agent_gspo.sharding.placement import ONE_DEVICE, Placement
from agent_gspo.training import state as state_lib
from agent_gspo.training.state import Flat, TrainState
from agent_gspo.types import TrainBatch

_HEAD_CHUNK = 384
# Message lengths (stop token included) at which the clip fraction is reported apart.
LENGTH_BUCKETS = (1, 8, 16, 32)

Sums = dict[str, jax.Array]


class NonFiniteLossError(FloatingPointError):
  """The loss or gradient of a mini-batch is NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class Updater:
  """Compiled functions of one model, objective and optimiser.

  Attributes:
    model: the policy.
    objective: what is maximised, from packed tokens.
    optimizer: of the trainable parameters.
    temperature: of the rollout; log-probs are taken at the same one.
    kl_coef: weight of the penalty towards the reference policy; 0 runs no reference.
    kl_estimator: of `kl.LOSS_ESTIMATORS`.
    tis_cap: highest weight that corrects for a sampler unlike the trainer, see
      `behaviour.truncated_weights`; 0 for no correction.
    tis_level: of `behaviour.LEVELS`.
    entropy: whether to measure it (one more pass over the logits).
    placement: of the rows of micro-batches.
  """

  model: Transformer
  objective: Callable[[PackedTokens], Objective]
  optimizer: optax.GradientTransformation
  temperature: float
  kl_coef: float = 0.0
  kl_estimator: str = 'k3'
  tis_cap: float = 0.0
  tis_level: str = 'message'
  entropy: bool = True
  placement: Placement = ONE_DEVICE

  def __post_init__(self):
    compiled = {
      '_accumulate': jax.jit(self._accumulate_impl, donate_argnums=3),
      '_apply': jax.jit(self._apply_impl, donate_argnums=(0, 1)),
      '_score': jax.jit(self._score_impl),
      '_entropy': jax.jit(self._entropy_impl),
    }
    for name, function in compiled.items():
      object.__setattr__(self, name, function)

  def minibatch(
    self, state: TrainState, batches: Sequence[TrainBatch]
  ) -> tuple[TrainState, dict[str, float]]:
    """One optimiser step on the micro-batches of a mini-batch; `state` is consumed.

    Gradients, objective and counts are summed over micro-batches and divided once.

    Args:
      state: before the step; the buffers of what is trained are donated. Its `reference` is read
        if `kl_coef > 0`.
      batches: micro-batches of one shape.

    Returns:
      The new state and the mini-batch's metrics.

    Raises:
      NonFiniteLossError: loss or gradient is not finite.
    """
    totals = jax.tree.map(jnp.zeros_like, state.trainable), self._no_sums()
    for batch in map(self.placement.by_rows, batches):
      totals = self._accumulate(state.trainable, state.frozen, state.reference, totals, batch)
    grads, sums = totals
    count = float(sums['count'])
    objective = float(sums['objective']) / max(count, 1.0)
    trainable, opt_state, grad_norm = self._apply(state.trainable, state.opt_state, grads, count)
    metrics = self._metrics({k: float(v) for k, v in sums.items()}, float(grad_norm))
    if not (np.isfinite(objective) and np.isfinite(metrics['policy/grad_norm'])):
      raise NonFiniteLossError(
        f'objective={objective}, gradient norm={metrics["policy/grad_norm"]}'
      )
    return state.replace(trainable=trainable, opt_state=opt_state), metrics

  def score(self, state: TrainState, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
    """The batches with `old_logprobs` recomputed by the trainer under `state`."""
    return [
      b.replace(old_logprobs=np.asarray(self._score(state.trainable, state.frozen, placed)))
      for b, placed in zip(batches, map(self.placement.by_rows, batches), strict=True)
    ]

  def entropies(self, state: TrainState, batches: Sequence[TrainBatch]) -> list[np.ndarray]:
    """The policy's entropy where each loss token was sampled, nats, float32 `[R, L]` a batch.

    Raises:
      ValueError: this updater does not measure it.
    """
    if not self.entropy:
      raise ValueError('Updater.entropies needs Updater.entropy=True.')
    placed = map(self.placement.by_rows, batches)
    return [np.asarray(self._entropy(state.trainable, state.frozen, b)) for b in placed]

  def _token_logprobs(self, trainable: Flat, frozen: Flat, batch: TrainBatch):
    """Log-prob and entropy of each loss token, float32 `[R, L]`."""
    model, variables = self.model, {'params': state_lib.merge(trainable, frozen)}
    mask = prefix_tree.mask(batch.subtree_end)
    hidden, _ = model.apply(variables, batch.tokens, batch.positions, mask, adapter=batch.adapters)
    hidden = jnp.take_along_axis(hidden, batch.loss_source[..., None], axis=1)

    @jax.checkpoint
    def of_chunk(hidden, target):
      logits = model.apply(variables, hidden, method='logits') / self.temperature
      logprobs = jax.nn.log_softmax(logits, axis=-1)
      chosen = jnp.take_along_axis(logprobs, target[:, None], axis=-1)[:, 0]
      if not self.entropy:
        return chosen, jnp.zeros_like(chosen)
      logprobs = jax.lax.stop_gradient(logprobs)
      return chosen, -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)

    def of_chunk_if_used(chunk):
      hidden, target, used = chunk
      skip = lambda hidden, target: (jnp.zeros(target.shape), jnp.zeros(target.shape))
      return jax.lax.cond(used.any(), of_chunk, skip, hidden, target)

    rows, slots = batch.loss_target.shape
    size = min(_HEAD_CHUNK, slots)
    pad = (-rows * slots) % size
    cut = lambda x: jnp.pad(x, ((0, pad),) + ((0, 0),) * (x.ndim - 1)).reshape(
      -1, size, *x.shape[1:]
    )
    flat = lambda x: x.reshape(rows * slots, *x.shape[2:])
    chunks = (cut(flat(hidden)), cut(flat(batch.loss_target)), cut(flat(batch.loss_mask) > 0))
    logprobs, entropy = jax.lax.map(of_chunk_if_used, chunks)
    restore = lambda x: x.reshape(-1)[: rows * slots].reshape(rows, slots)
    return restore(logprobs), restore(entropy)

  def _objective(self, trainable, frozen, reference, batch: TrainBatch):
    logprobs, entropy = self._token_logprobs(trainable, frozen, batch)
    rows, slots = batch.advantages.shape
    flat = lambda values: None if values is None else values.reshape(-1)
    x = PackedTokens(
      logprobs=logprobs.reshape(-1),
      old_logprobs=flat(batch.old_logprobs),
      message_ids=(batch.loss_message + slots * jnp.arange(rows)[:, None]).reshape(-1),
      token_mask=flat(batch.loss_mask),
      advantages=flat(batch.advantages),
      message_mask=flat(batch.message_mask),
      clip_scale=flat(batch.clip_scale),
      token_weights=flat(batch.token_weights),
      span_log_ratio=flat(batch.span_log_ratio),
      span_share=flat(batch.span_share),
    )
    sampler_logprobs, sums = flat(batch.sampler_logprobs), {}
    if self.tis_cap:
      weights, truncated = behaviour.truncated_weights(
        x, sampler_logprobs, cap=self.tis_cap, level=self.tis_level
      )
      x = x.replace(importance=weights)
      by_message = lambda values: jnp.sum(message_mean(values, x) * x.message_mask)
      sums = {'tis_weight': by_message(weights), 'tis_truncated': by_message(truncated)}
    divergence = jnp.float32(0)
    if self.kl_coef:
      reference_logprobs, _ = self._token_logprobs(reference, frozen, batch)
      estimate = kl.LOSS_ESTIMATORS[self.kl_estimator]
      difference = estimate(x.logprobs, reference_logprobs.reshape(-1))
      x = x.replace(token_penalty=self.kl_coef * difference)
      divergence = jnp.sum(message_mean(difference, x) * x.message_mask)
    result = self.objective(x)
    sums |= self._sums(x, result, entropy) | self._gaps(x, sampler_logprobs)
    sums['kl'] = jax.lax.stop_gradient(divergence)
    return -result.total, sums

  def _accumulate_impl(self, trainable, frozen, reference, totals, batch: TrainBatch):
    grads, sums = jax.grad(self._objective, has_aux=True)(trainable, frozen, reference, batch)
    old_grads, old_sums = totals
    sums = {
      k: jnp.maximum(old_sums[k], v) if k.endswith('_max') else old_sums[k] + v
      for k, v in sums.items()
    }
    return jax.tree.map(jnp.add, old_grads, grads), sums

  def _apply_impl(self, trainable, opt_state, grads, count):
    grads = jax.tree.map(lambda g: g / jnp.maximum(count, 1.0), grads)
    updates, opt_state = self.optimizer.update(grads, opt_state, trainable)
    return optax.apply_updates(trainable, updates), opt_state, optax.tree.norm(grads)

  def _score_impl(self, trainable, frozen, batch):
    return self._token_logprobs(trainable, frozen, batch)[0] * batch.loss_mask

  def _entropy_impl(self, trainable, frozen, batch):
    return self._token_logprobs(trainable, frozen, batch)[1] * batch.loss_mask

  def _sums(self, x: PackedTokens, result: Objective, entropy: jax.Array) -> Sums:
    """What the metrics are made of: sums over messages and tokens, and maxima."""
    tokens = x.token_mask
    length = jax.ops.segment_sum(tokens, x.message_ids, x.advantages.shape[0])
    sums = {
      'objective': result.total,
      'count': result.count,
      'messages': jnp.sum(x.message_mask),
      'tokens': tokens.sum(),
      'ratio': result.ratio.sum(),
      'ratio_error_max': jnp.max(jnp.abs(result.ratio - 1.0) * x.message_mask),
      'clipped': result.clipped.sum(),
      'entropy': jnp.sum(entropy.reshape(-1) * tokens),
    }
    for low, high in _length_ranges():
      inside = x.message_mask * (length >= low) * (length < high)
      sums[f'clipped_{low}'] = jnp.sum(result.clipped * inside)
      sums[f'count_{low}'] = jnp.sum(inside)
    return jax.tree.map(jax.lax.stop_gradient, sums)

  def _gaps(self, x: PackedTokens, sampler_logprobs: jax.Array) -> Sums:
    """How far log-probs are from the old ones and from the sampler's, over tokens."""
    found = {}
    for name, other in (('gap', x.old_logprobs), ('sampler_gap', sampler_logprobs)):
      gap = jax.lax.stop_gradient(jnp.abs(x.logprobs - other) * x.token_mask)
      found |= {name: gap.sum(), f'{name}_max': gap.max()}
    return found

  def _no_sums(self) -> Sums:
    names = (
      'objective',
      'count',
      'messages',
      'tokens',
      'ratio',
      'ratio_error_max',
      'clipped',
      'entropy',
    )
    names += ('gap', 'gap_max', 'sampler_gap', 'sampler_gap_max', 'kl')
    names += ('tis_weight', 'tis_truncated') if self.tis_cap else ()
    names += tuple(f'{kind}_{low}' for low in LENGTH_BUCKETS for kind in ('clipped', 'count'))
    return {name: jnp.float32(0) for name in names}

  def _metrics(self, sums: dict[str, float], grad_norm: float) -> dict[str, float]:
    count, tokens = max(sums['messages'], 1.0), max(sums['tokens'], 1.0)
    metrics: dict[str, Any] = {
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
    if self.tis_cap:
      metrics['policy/tis_weight_mean'] = sums['tis_weight'] / count
      metrics['policy/tis_truncated'] = sums['tis_truncated'] / count
    for low, high in _length_ranges():
      if sums[f'count_{low}']:
        name = f'{low}' if high == low + 1 else f'{low}_up' if high > 1e6 else f'{low}-{high - 1}'
        share = sums[f'clipped_{low}'] / sums[f'count_{low}']
        metrics[f'policy/clip_fraction_length_{name}'] = share
    return metrics


def _length_ranges() -> list[tuple[int, int]]:
  return list(zip(LENGTH_BUCKETS, (*LENGTH_BUCKETS[1:], 10**9), strict=True))
