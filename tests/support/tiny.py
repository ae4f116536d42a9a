"""Defines a decoder small enough for a test, and reference computations on it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.models import transformer
from agent_gspo.models.config import ModelConfig
from agent_gspo.ops.attention import masks
from agent_gspo.types import Message

CONFIG = ModelConfig(
  family='llama',
  vocab_size=300,  # no multiple of the sampler's block of 256
  num_layers=2,
  embed_dim=32,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  mlp_dim=48,
  max_positions=160,
)
MIXTURE = CONFIG.replace(family='qwen3_moe', num_experts=6, experts_per_token=2, norm_topk=True)


@functools.cache
def params(config: ModelConfig = CONFIG, sharpness: float = 2.0):
  """Returns random parameters, NumPy arrays; `sharpness` scales the logits. Adapters are off."""
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(functools.partial(transformer.init_params, config), jax.random.key(0))

  def draw(path, leaf):
    noise = rng.normal(size=leaf.shape).astype(np.float32)
    kind = path[-1].key
    if kind == 'scale':
      return (sharpness if path[0].key == 'final_norm' else 1.0) * (1 + 0.1 * noise)
    if kind == 'lora_b':
      return np.zeros(leaf.shape, np.float32)
    stacked = kind == 'kernel' and leaf.ndim == 3  # of experts
    return noise / np.float32(np.sqrt(leaf.shape[1 if stacked or kind == 'embedding' else 0]))

  return jax.tree_util.tree_map_with_path(draw, shapes)


def logits(config: ModelConfig, tree, sequence) -> jax.Array:
  """Returns logits of one sequence without cache or tree, float32 `[T, V]`.

  Pads its end to few lengths, since each is compiled.
  """
  length = len(sequence)
  ids = np.pad(np.asarray(sequence, np.int32), (0, -length % 16))
  return _logits(config)(tree, ids[None], length)[:length]


@functools.cache
def _logits(config: ModelConfig):
  model = transformer.Transformer(config)

  def of(tree, ids, length):
    columns = ids.shape[1]
    mask = masks.causal(length[None], columns)
    hidden, _ = model.apply({'params': tree}, ids, jnp.arange(columns)[None], mask)
    return model.apply({'params': tree}, hidden, method='logits')[0]

  return jax.jit(of)


def message(prompt, sampled, logprobs=None, *, ended: bool = True, agent: int = 0) -> Message:
  """Returns a message with given ids and log-probs, and defaults elsewhere."""
  sampled = np.asarray(sampled, np.int32)
  return Message(
    episode=0,
    agent=agent,
    round=0,
    layer=0,
    prompt_ids=np.asarray(prompt, np.int32),
    token_ids=sampled,
    logprobs=np.zeros(len(sampled), np.float32) if logprobs is None else np.asarray(logprobs),
    ended=ended,
    text='',
  )


def compilations(sampler) -> int:
  """Counts the programs that a sampler has compiled so far."""
  programs = ('pool', 'prefill', 'start', 'decode', 'keep', 'take')
  return sum(getattr(sampler, name)._cache_size() for name in programs)
