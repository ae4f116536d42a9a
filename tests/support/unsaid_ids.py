"""Samples from and trains a model whose embedding has rows that are never written."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models import partition
from agent_gspo.models.transformer import Transformer
from agent_gspo.packing import train_batches
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding import placement
from agent_gspo.training import state as state_lib
from agent_gspo.training.policy_loss import Programs

UNSAID = ((0, 3), (70, 71), (140, 300))
"""Ranges of unwritten ids: within a device's vocabulary shard, and whole shards."""
_TEMPERATURE = 0.8


def said() -> np.ndarray:
  """Returns the ids that can be written."""
  shown = np.ones(tiny.CONFIG.vocab_size, bool)
  for first, end in UNSAID:
    shown[first:end] = False
  return np.flatnonzero(shown)


def first_update(mesh: tuple[int, int, int], *, lora_rank: int = 0, **options: Any) -> dict:
  """Returns samples, and the metrics of the first mini-batch of them.

  Args:
    mesh: Sizes of data, fsdp and tensor.
    lora_rank: Rank of the trained adapters, 0 to train all parameters.
    **options: Options of `Programs`.
  """
  config = tiny.CONFIG.replace(num_layers=1, unsaid=UNSAID, lora_rank=lora_rank)
  where = placement.make_placement(dict(zip(placement.AXES, mesh, strict=True)))
  noise = [(0, 7, n, 0, 0) for n in range(16)]
  prompts = [np.arange(n, n + 6, dtype=np.int32) for n in range(len(noise))]
  samples = Sampler(config, max_new_tokens=8, prefill_length=64, placement=where)(
    partition.place(tiny.params(config), config, where),
    prompts,
    keys.row_keys(keys.stream(0, 'train'), np.asarray(noise)),
    temperature=_TEMPERATURE,
    stop_ids=(4,),
  )
  programs = Programs(
    Transformer(config, partition.layout(config, where, where.replica_rows)),
    losses.gspo,
    optax.sgd(0.1),
    _TEMPERATURE,
    placement=where,
    **options,
  )
  rows = zip(prompts, samples.token_ids, samples.logprobs, samples.ended, strict=True)
  messages = [tiny.message(p, ids, logs, ended=end) for p, ids, logs, end in rows]
  packed = train_batches.pack_messages(messages, pack_length=32, micro_batch_size=16)
  advantages = np.resize([1.0, -1.0], len(messages)).astype(np.float32)
  state = state_lib.init(
    jax.tree.map(lambda x: x.copy(), tiny.params(config)),
    optax.sgd(0.1),
    lora=lora_rank > 0,
    shardings=lambda tree: partition.shardings(tree, config, where),
  )
  batches = train_batches.with_values(packed, advantages=advantages)
  state, metrics = programs.optimizer_step(state, batches)
  return {
    'tokens': np.concatenate(samples.token_ids).tolist(),
    'finite': all(bool(np.isfinite(x).all()) for x in jax.tree.leaves(state.trainable)),
    'metrics': metrics,
  }
