"""The loss of packed messages, as it is traced: log-probs, objective, penalties, measures.

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
  """A pure function of parameters and a micro-batch; the attributes are what it is made of.

  Attributes:
    model: the policy.
    objective: what is maximised, from packed tokens.
    temperature: of the rollout; log-probs are taken at the same one.
    kl_coef: weight of the penalty towards the reference policy; 0 runs no reference.
    kl_estimator: of `kl.LOSS_ESTIMATORS`.
    tis_cap: highest weight that corrects for a sampler unlike the trainer, see
      `behaviour.truncated_weights`; 0 for no correction.
    tis_level: of `behaviour.LEVELS`.
    entropy: whether to measure it.
    placement: of rows. What follows the decoder is local to a device.
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
    """Minus the objective's total over a micro-batch, not yet divided by any count.

    Args:
      trainable, frozen: parameters of the policy.
      reference: what is trained of the reference policy; read if `kl_coef > 0`.
      batch: packed messages.

    Returns:
      A float32 scalar, and the sums and maxima (`*_max`) that metrics are made of.
    """
    policies = [trainable]
    if self.kl_coef:
      if reference is None:
        raise ValueError(f'kl_coef={self.kl_coef} needs a state that holds a reference policy.')
      policies.append(reference)
    heads, hidden = zip(*(self._hidden(x, frozen, batch) for x in policies), strict=True)
    total, sums = self._by_rows(self._of_rows, heads)(heads, hidden, batch)
    return total.sum(), merge(sums)

  def _of_rows(
    self, heads: tuple[Params, ...], hidden: tuple[jax.Array, ...], batch: TrainBatch
  ) -> tuple[jax.Array, Sums]:
    """`[1]` each: loss and sums of some rows, to which all of their messages belong.

    Args:
      heads: parameters of the LM head: of the policy, and of the reference policy if there is one.
      hidden: final hidden states `[R, T, D]` of the same.
      batch: packed messages.
    """
    logprobs, entropy = self._token_logprobs(heads[0], hidden[0], batch)
    rows, slots = batch.advantages.shape
    flat: Callable[[Any], Any] = lambda values: None if values is None else values.reshape(-1)
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
    sampler_logprobs = flat(batch.sampler_logprobs)
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
      difference = estimate(x.logprobs, reference_logprobs.reshape(-1))
      x = dataclasses.replace(x, token_penalty=self.kl_coef * difference)
      divergence = jnp.sum(message_mean(difference, x) * x.message_mask)
    result = self.objective(x)
    sums |= _sums(x, result, entropy) | _gaps(x, sampler_logprobs)
    sums['kl'] = jax.lax.stop_gradient(divergence)
    return jax.tree.map(lambda x: x.reshape(1), (-result.total, sums))

  def token_logprobs(
    self, trainable: Flat, frozen: Flat, batch: TrainBatch
  ) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each loss token and entropy where it was sampled, nats, float32 `[R, L]` each."""
    head, hidden = self._hidden(trainable, frozen, batch)
    return self._by_rows(self._token_logprobs, head)(head, hidden, batch)

  def _by_rows(self, function: Callable[..., Any], heads: Any) -> Callable[..., Any]:
    """`function` of LM heads and rows, run by each device on its own rows."""
    kept = partition.shardings(heads, self.model.config, self.placement)
    return self.placement.by_rows(function, kept)

  def _hidden(self, trainable: Flat, frozen: Flat, batch: TrainBatch) -> tuple[Params, jax.Array]:
    """Parameters of the LM head, and the final hidden states `[R, T, D]`."""
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
    """`token_logprobs` from hidden states."""
    rows, slots = batch.loss_target.shape
    hidden = jnp.take_along_axis(hidden, batch.loss_source[..., None], axis=1)
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
    """What `__call__` sums up, before the first micro-batch."""
    names = _SUMS + (('tis_weight', 'tis_truncated') if self.tis_cap else ())
    names += tuple(f'{kind}_{low}' for low, _ in LENGTH_RANGES for kind in ('clipped', 'count'))
    return dict.fromkeys(names, np.float32(0))


def merge(sums: Sums) -> Sums:
  """Scalars, from sums and maxima `[n]` of `n` parts of a batch."""
  return {k: v.max() if k.endswith('_max') else v.sum() for k, v in sums.items()}


def _sums(x: PackedTokens, result: Objective, entropy: jax.Array) -> Sums:
  """What the metrics are made of: sums over messages and tokens, and maxima."""
  tokens = x.token_mask
  # An objective of the user's own may say anything of padding, NaN as well.
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
  """How far log-probs are from the old ones and from the sampler's, over tokens."""
  found: Sums = {}
  for name, other in (('gap', x.old_logprobs), ('sampler_gap', sampler_logprobs)):
    gap = jax.lax.stop_gradient(jnp.abs(x.logprobs - other) * x.token_mask)
    found |= {name: gap.sum(), f'{name}_max': gap.max()}
  return found
