"""Shapes of published models, for programs that are compiled and never run."""

from __future__ import annotations

from agent_gspo.models.config import ModelConfig


def _qwen2(layers: int, width: int, heads: int, kv_heads: int, mlp: int, vocab: int, tied: bool):
  return ModelConfig(
    family='qwen2',
    vocab_size=vocab,
    num_layers=layers,
    embed_dim=width,
    num_heads=heads,
    num_kv_heads=kv_heads,
    head_dim=width // heads,
    mlp_dim=mlp,
    rope_theta=1e6,
    norm_eps=1e-6,
    tie_embeddings=tied,
    qkv_bias=True,
    max_positions=32_768,
  )


# From the config.json of each on the hub.
MODELS = {
  'smollm2-135m': ModelConfig(
    family='llama',
    vocab_size=49_152,
    num_layers=30,
    embed_dim=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    mlp_dim=1536,
    rope_theta=1e5,
    max_positions=8192,
  ),
  'qwen2.5-0.5b': _qwen2(24, 896, 14, 2, 4864, 151_936, True),
  'qwen2.5-1.5b': _qwen2(28, 1536, 12, 2, 8960, 151_936, True),
  'qwen2.5-7b': _qwen2(28, 3584, 28, 4, 18_944, 152_064, False),
  'qwen2.5-32b': _qwen2(64, 5120, 40, 8, 27_648, 152_064, False),
}
