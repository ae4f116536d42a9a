"""Estimates the memory that compiled programs take beside their arguments and results.

The compiler decides which arrays are live at a time. These sums count the large ones, as many of
each as TPU's compiler was seen to keep at its peak (`benchmarks/tpu_fit.py` compares them).
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
  """Estimates the temporaries of a micro-batch's gradients.

  Args:
    config: Model config.
    placement: Placement of parameters.
    rows: Rows of the micro-batch on a device.
    length: Columns of a row.
    weights: Number of parameters of the model.
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
  # The head's gradient; under LoRA, where it has none, its operand.
  head = logits * 5 // 4 + table * _FLOAT // tensor // (2 if config.lora_rank else 1)
  gathered = 0
  if placement.cut_by_fsdp:  # two blocks' all-gathered operands or more, and outgoing gradients
    gathered = (table + 4 * block) * _size(config) // tensor
  return kept + max(head, layer) + gathered


def of_forward(config: ModelConfig, placement: Placement, rows: int, length: int) -> int:
  """Estimates a forward pass without gradients: `rows` per device, `length` columns each."""
  return _layer(config, placement.size('tensor'), rows, length)


def of_decode(
  config: ModelConfig, placement: Placement, rows: int, weights: int, *, gather_once: bool
) -> int:
  """Estimates the decode loop over `rows` per device, for a model of `weights` parameters.

  In bfloat16 weights are cast once, before the loop. Under FSDP they are all-gathered there too;
  without `gather_once`, the head and one layer at a time are gathered within the loop.
  """
  size = _size(config)
  kept = 0 if config.dtype == 'float32' else size * weights
  if placement.cut_by_fsdp and gather_once:
    kept = size * weights
  elif placement.cut_by_fsdp:
    kept = kept // placement.size('fsdp') + size * sum(_parts(config, weights))
  return (kept + 3 * rows * config.vocab_size * _FLOAT) // placement.size('tensor')


def _size(config: ModelConfig) -> int:
  """Returns the bytes of a weight as an operand."""
  return _FLOAT if config.dtype == 'float32' else 2


def _parts(config: ModelConfig, weights: int) -> tuple[int, int]:
  """Returns the number of weights of the embedding, and of a block."""
  table = config.vocab_size * config.embed_dim
  return table, (weights - table * (2 - config.tie_embeddings)) // config.num_layers


def _layer(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """Returns the peak of one layer: attention scores or MLP activations, whichever is larger."""
  scores = _scores(config, tensor, rows, length)
  mlp = rows * length * config.mlp_dim * _FLOAT // tensor
  return 3 * max(scores, mlp)


def _remat_kept(config: ModelConfig, tensor: int, positions: int) -> int:
  """Returns what a rematerialized layer keeps: its input, maybe attention's output."""
  size = config.embed_dim * _FLOAT
  if config.remat_keeps == 'attention':
    head = config.head_dim * (_FLOAT if config.dtype == 'float32' else 2) + _FLOAT
    size += config.num_heads // tensor * head
  return positions * size


def _kept(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """Returns what a layer keeps for its gradient without rematerialization."""
  heads = (config.num_heads + config.num_kv_heads) * config.head_dim
  width = 6 * config.embed_dim + (2 * heads + 4 * config.mlp_dim) // tensor
  return rows * length * width * _FLOAT + _scores(config, tensor, rows, length)


def _scores(config: ModelConfig, tensor: int, rows: int, length: int) -> int:
  """Returns the attention scores of a layer; only the reference implementation stores them."""
  if config.attention != 'reference':
    return 0
  return rows * config.num_heads * length**2 * _FLOAT // tensor
