"""Estimates of the memory that compiled programs take beside their arguments and results.

A compiler decides what it keeps at a time. These sums name the arrays that do not fit a cache, as
many of each as TPU's compiler was seen to hold at its peak (`benchmarks/tpu_fit.py` compares them).
All sizes are bytes on one device.
"""

from __future__ import annotations

from agent_gspo.models.config import ModelConfig
from agent_gspo.ops import lm_head
from agent_gspo.sharding.placement import Placement

_FLOAT = 4


def of_update(
  config: ModelConfig,
  placement: Placement,
  rows: int,
  length: int,
  weights: int,
) -> int:
  """Of the gradients of a micro-batch.

  Args:
    config: of the model.
    placement: of its parameters.
    rows: of the micro-batch that a device has.
    length: columns of a row.
    weights: how many the model has.
  """
  tensor = placement.size('tensor')
  positions = rows * length
  layer = _layer(config, tensor, rows, length)
  kept = config.num_layers * (
    _remat_kept(config, tensor, positions) if config.remat else _kept(config, tensor, rows, length)
  )
  chunk = lm_head.chunk_tokens(config.vocab_size, positions)
  logits = chunk * config.vocab_size * _FLOAT // tensor
  table, block = _parts(config, weights)
  # Its gradient; or, where it has none, its operand.
  head = logits * 5 // 4 + table * _FLOAT // tensor // (2 if config.lora_rank else 1)
  gathered = 0
  if placement.cut_by_fsdp:  # two blocks' operands or more, and the gradients that leave
    gathered = (table + 4 * block) * _size(config) // tensor
  return kept + max(head, layer) + gathered


def of_forward(config: ModelConfig, placement: Placement, rows: int, length: int) -> int:
  """Of a pass over rows without gradients: `rows` of a device, `length` columns each."""
  return _layer(config, placement.size('tensor'), rows, length)


def of_decode(
  config: ModelConfig, placement: Placement, rows: int, weights: int, *, gather_once: bool
) -> int:
  """Of the decode loop of so many rows of a device; `weights` is how many the model has.

  In bfloat16 they are cast before the loop and kept through it. Under fsdp they are gathered before
  it as well; or, without `gather_once`, the head and a layer at a time are.
  """
  size = _size(config)
  kept = 0 if config.dtype == 'float32' else size * weights
  if placement.cut_by_fsdp and gather_once:
    kept = size * weights
  elif placement.cut_by_fsdp:
    kept = kept // placement.size('fsdp') + size * sum(_parts(config, weights))
  return (kept + 3 * rows * config.vocab_size * _FLOAT) // placement.size('tensor')


def _size(config: ModelConfig) -> int:
  """Of a weight as an operand."""
  return _FLOAT if config.dtype == 'float32' else 2


def _parts(config: ModelConfig, weights: int) -> tuple[int, int]:
  """How many weights of the model the embedding has, and a block."""
  table = config.vocab_size * config.embed_dim
  return table, (weights - table * (2 - config.tie_embeddings)) // config.num_layers


def _layer(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """Of one layer while it is computed: attention scores, or the MLP's width."""
  scores = _scores(config, tensor, rows, length)
  mlp = rows * length * config.mlp_dim * _FLOAT // tensor
  return 3 * max(scores, mlp)


def _remat_kept(config: ModelConfig, tensor: int, positions: int) -> int:
  """What a layer keeps that is computed again: what comes in, and attention's result."""
  size = config.embed_dim * _FLOAT
  if config.remat_keeps == 'attention':
    head = config.head_dim * (_FLOAT if config.dtype == 'float32' else 2) + _FLOAT
    size += config.num_heads // tensor * head
  return positions * size


def _kept(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """What a layer keeps for its gradient where it is not computed again."""
  heads = (config.num_heads + config.num_kv_heads) * config.head_dim
  width = 6 * config.embed_dim + (2 * heads + 4 * config.mlp_dim) // tensor
  return rows * length * width * _FLOAT + _scores(config, tensor, rows, length)


def _scores(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """Of a layer's attention, which the reference alone keeps."""
  if config.attention != 'reference':
    return 0
  return rows * config.num_heads * length**2 * _FLOAT // tensor
