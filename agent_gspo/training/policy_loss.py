"""Computes the loss of packed messages, jit-traced: log-probs, objective, penalties, metrics.

`R` rows of `T` columns, `L` loss tokens and `S` message slots, see `types.TrainBatch`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.algorithms.objectives import behaviour, kl
from agent_gspo.algorithms.objectives.losses import Objective, PackedTokens, message_mean
from agent_gspo.models import partition
from agent_gspo.models.transformer import Params, Transformer, head_kernel, head_params
from agent_gspo.ops import lm_head
from agent_gspo.ops.attention.masks import TreeMask
from agent_gspo.sharding.placement import ONE_DEVICE, Placement
from agent_gspo.training import state as state_lib
from agent_gspo.training.state import Flat
from agent_gspo.training.update_metrics import LENGTH_RANGES
from agent_gspo.types import TrainBatch

Sums = dict[str, jax.Array]


_SUMS = (
  'objective',
  'count',
  'messages',
  'tokens',
  'ratio',
  'ratio_error_max',
  'clipped',
  'entropy',
  'gap',
  'gap_max',
  'sampler_gap',
  'sampler_gap_max',
  'kl',
)


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
      `behaviour.truncated_weights`; 0 for no correction.
    tis_level: Key of `options.TIS_LEVELS`.
    entropy: Measure the policy's entropy.
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
    heads, hidden = zip(*(self._hidden(x, frozen, batch) for x in policies), strict=True)
    # total and each entry of sums: [n], one value for each of the replica's n row shards.
    total, sums = self._by_rows(self._of_rows, heads)(heads, hidden, batch)
    return total.sum(), merge(sums)

  def _of_rows(
    self, heads: tuple[Params, ...], hidden: tuple[jax.Array, ...], batch: TrainBatch
  ) -> tuple[jax.Array, Sums]:
    """Returns loss and sums of the rows of a device, `[1]` each; no message spans two rows.

    Args:
      heads: LM head parameters of the policy, and of the reference policy if there is one.
      hidden: Final hidden states `[R, T, D]` of the same policies.
      batch: Packed messages.
    """
    logprobs, entropy = self._token_logprobs(heads[0], hidden[0], batch)  # [R, L] each
    rows, slots = batch.advantages.shape
    # Flatten to R*L tokens and R*S messages; message_ids maps each token to its message.
    flat: Callable[[Any], Any] = lambda values: None if values is None else values.reshape(-1)
    x = PackedTokens(
      logprobs=logprobs.reshape(-1),  # [R*L]
      old_logprobs=flat(batch.old_logprobs),
      message_ids=(batch.loss_message + slots * jnp.arange(rows)[:, None]).reshape(-1),  # [R*L]
      token_mask=flat(batch.loss_mask),
      advantages=flat(batch.advantages),  # [R*S]
      message_mask=flat(batch.message_mask),
      clip_scale=flat(batch.clip_scale),
      token_weights=flat(batch.token_weights),  # [R*L]
      span_log_ratio=flat(batch.span_log_ratio),  # [R*S]
      span_share=flat(batch.span_share),
    )
    sampler_logprobs = flat(batch.sampler_logprobs)  # [R*L]
    sums: Sums = {}
    if self.tis_cap:
      weights, truncated = behaviour.truncated_weights(
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
    sums |= _sums(x, result, entropy) | _gaps(x, sampler_logprobs)
    sums['kl'] = jax.lax.stop_gradient(divergence)
    return jax.tree.map(lambda x: x.reshape(1), (-result.total, sums))

  def token_logprobs(
    self, trainable: Flat, frozen: Flat, batch: TrainBatch
  ) -> tuple[jax.Array, jax.Array]:
    """Returns log-prob and entropy at each loss token, nats, float32 `[R, L]` each."""
    head, hidden = self._hidden(trainable, frozen, batch)
    return self._by_rows(self._token_logprobs, head)(head, hidden, batch)

  def _by_rows(self, function: Callable[..., Any], heads: Any) -> Callable[..., Any]:
    """Maps a function of LM heads and rows over devices, each on its own rows."""
    kept = partition.shardings(heads, self.model.config, self.placement)
    return self.placement.by_rows(function, kept)

  def _hidden(self, trainable: Flat, frozen: Flat, batch: TrainBatch) -> tuple[Params, jax.Array]:
    """Returns the parameters of the LM head, and the final hidden states `[R, T, D]`."""
    params = state_lib.merge(trainable, frozen)
    hidden, _ = self.model.apply(
      {'params': params},
      batch.tokens,
      batch.positions,
      TreeMask(batch.subtree_end),
      adapter=batch.adapters,
    )
    return head_params(params), hidden

  def _token_logprobs(
    self, head: Params, hidden: jax.Array, batch: TrainBatch
  ) -> tuple[jax.Array, jax.Array]:
    """Computes `token_logprobs` from hidden states `[R, T, D]`."""
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
    )
    logprobs, entropy = (x.reshape(rows, slots) for x in found)
    return logprobs, entropy

  def no_sums(self) -> dict[str, np.float32]:
    """Returns zero-initialized accumulators for the sums of `__call__`."""
    names = _SUMS + (('tis_weight', 'tis_truncated') if self.tis_cap else ())
    names += tuple(f'{kind}_{low}' for low, _ in LENGTH_RANGES for kind in ('clipped', 'count'))
    return dict.fromkeys(names, np.float32(0))


def merge(sums: Sums) -> Sums:
  """Reduces sums and maxima `[n]` of `n` parts of a batch to scalars."""
  return {k: v.max() if k.endswith('_max') else v.sum() for k, v in sums.items()}


def _sums(x: PackedTokens, result: Objective, entropy: jax.Array) -> Sums:
  """Returns sums over messages and tokens, and maxima, from which metrics are computed."""
  tokens = x.token_mask  # [N] tokens; ratio, clipped and length are [M] messages
  # A custom objective may return anything for padding, NaN as well.
  ratio, clipped = (jnp.where(x.message_mask > 0, v, 0) for v in (result.ratio, result.clipped))
  length = jax.ops.segment_sum(tokens, x.message_ids, x.advantages.shape[0])
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
  for low, high in LENGTH_RANGES:
    inside = x.message_mask * (length >= low) * (length < high)
    sums[f'clipped_{low}'] = jnp.sum(clipped * inside)
    sums[f'count_{low}'] = jnp.sum(inside)
  return jax.tree.map(jax.lax.stop_gradient, sums)


def _gaps(x: PackedTokens, sampler_logprobs: jax.Array) -> Sums:
  """Returns sum and maximum of `|log pi - log pi_old|` and `|log pi - log pi_sampler|`."""
  found: Sums = {}
  for name, other in (('gap', x.old_logprobs), ('sampler_gap', sampler_logprobs)):
    gap = jax.lax.stop_gradient(jnp.abs(x.logprobs - other) * x.token_mask)
    found |= {name: gap.sum(), f'{name}_max': gap.max()}
  return found
