"""Defines architectures of models to train from scratch (`random:<preset>`)."""

from __future__ import annotations

import functools
from typing import Any

from agent_gspo.models.config import ModelConfig


def decoder(
  layers: int, width: int, heads: int, kv_heads: int, mlp: int, **others: Any
) -> ModelConfig:
  """Returns a decoder with `head_dim = width // heads`; `others` are further fields."""
  return ModelConfig(
    num_layers=layers,
    embed_dim=width,
    num_heads=heads,
    num_kv_heads=kv_heads,
    head_dim=width // heads,
    mlp_dim=mlp,
    **others,
  )


_preset = functools.partial(decoder, family='llama', vocab_size=0, max_positions=2048)
PRESETS = {
  'micro': _preset(layers=2, width=64, heads=4, kv_heads=2, mlp=192),
  'micro_moe': _preset(
    layers=2,
    width=64,
    heads=4,
    kv_heads=2,
    mlp=96,
    family='qwen3_moe',
    num_experts=8,
    experts_per_token=2,
    norm_topk=True,
  ),
  'tiny': _preset(layers=3, width=96, heads=4, kv_heads=2, mlp=256),
  'small': _preset(layers=8, width=512, heads=8, kv_heads=4, mlp=1536),
}
"""Architectures by name; `vocab_size` is 0 and set from the tokenizer."""
