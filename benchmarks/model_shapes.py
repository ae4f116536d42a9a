"""Defines shapes of published models, for programs that are compiled and never run."""

from __future__ import annotations

import functools

from agent_gspo.models.config import RopeScaling, SlidingWindow
from agent_gspo.models.presets import decoder

_qwen2 = functools.partial(
  decoder, family='qwen2', rope_theta=1e6, norm_eps=1e-6, max_positions=32_768
)


def _gemma3(layers: int, width: int, heads: int, kv_heads: int, mlp: int, window: int, **others):
  near = tuple((i + 1) % 6 > 0 for i in range(layers))
  others |= {'rope_theta': 1e6, 'norm_eps': 1e-6, 'max_positions': 32_768, 'query_scalar': 256}
  model = decoder(layers, width, heads, kv_heads, mlp, family='gemma3_text', **others)
  return model.replace(head_dim=256, sliding=SlidingWindow(window, near, 1e4))


# From the config.json of each on the hub.
MODELS = {
  'smollm2-135m': decoder(
    30, 576, 9, 3, 1536, family='llama', vocab_size=49_152, rope_theta=1e5, max_positions=8192
  ),
  'qwen2.5-0.5b': _qwen2(24, 896, 14, 2, 4864, vocab_size=151_936),
  'qwen2.5-1.5b': _qwen2(28, 1536, 12, 2, 8960, vocab_size=151_936),
  'qwen2.5-7b': _qwen2(28, 3584, 28, 4, 18_944, vocab_size=152_064, tie_embeddings=False),
  'qwen2.5-32b': _qwen2(64, 5120, 40, 8, 27_648, vocab_size=152_064, tie_embeddings=False),
  'qwen3-30b-a3b': decoder(
    *(48, 2048, 32, 4, 768),
    family='qwen3_moe',
    vocab_size=151_936,
    num_experts=128,
    experts_per_token=8,
    norm_topk=True,
    rope_theta=1e6,
    norm_eps=1e-6,
    tie_embeddings=False,
    max_positions=40_960,
  ).replace(head_dim=128),
  'gemma3-1b': _gemma3(26, 1152, 4, 1, 6912, window=512, vocab_size=262_144),
  'gemma3-4b': _gemma3(  # the text part
    34, 2560, 8, 4, 10_240, window=1024, vocab_size=262_208, rope_scaling=RopeScaling(8.0)
  ),
}
