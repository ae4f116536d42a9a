"""Draws one token a row, and the log-probability it was drawn with."""

from __future__ import annotations

import jax
import jax.numpy as jnp

_BLOCKS = (256, 128, 64, 32, 16, 8)
"""Tokens of a block: the first that divides the vocabulary, or padding would copy all logits."""


def draw(
  logits: jax.Array, uniforms: jax.Array, temperature: jax.Array, *, parts: int = 1
) -> tuple[jax.Array, jax.Array]:
  """Samples from `softmax(logits / temperature)` by inverting its CDF.

  One uniform a row is enough, where the Gumbel trick needs `V`. The CDF is summed in
  two levels (blocks, then within the block), which also keeps float32 error small.

  Args:
    logits: float32 `[N, V]`.
    uniforms: float32 `[N]` in `[0, 1)`.
    temperature: scalar; 0 takes the most likely token.
    parts: that the vocabulary is cut into on a mesh; no block is in two, where its size allows.

  Returns:
    int32 `[N]` tokens and float32 `[N]` log-probabilities at `temperature` (at
    temperature 1 for greedy choices, whose own distribution is a point).
  """
  n, vocab = logits.shape
  greedy = temperature <= 0
  size = next((size for size in _BLOCKS if vocab % (parts * size) == 0), _BLOCKS[0])
  blocks = -(-vocab // size)
  # Differences are scaled, where they are used: scaled logits would be written once more.
  scale = 1.0 / jnp.where(greedy, 1.0, temperature)
  padded = jnp.pad(logits, ((0, 0), (0, blocks * size - vocab)), constant_values=-jnp.inf)
  by_block = padded.reshape(n, blocks, size)
  highest = by_block.max(axis=-1)
  top = highest.max(axis=-1)

  cdf = jnp.cumsum(jnp.exp((by_block - top[:, None, None]) * scale).sum(axis=-1), axis=-1)
  total = cdf[:, -1]
  target = uniforms * total
  block = jnp.minimum((cdf <= target[:, None]).sum(axis=-1), blocks - 1)
  before = jnp.where(block > 0, _pick(cdf, jnp.maximum(block - 1, 0)), 0.0)
  # Rounding of the sums may leave the target at a block in which no token is possible.
  likely = jnp.argmax(highest, axis=-1)
  block = jnp.where(greedy | jnp.isneginf(_pick(highest, block)), likely, block)

  # A sum, for any layout of the logits; to gather a row's block, a TPU would first copy all.
  own = jnp.arange(blocks)[None, :, None] == block[:, None, None]
  inside = jnp.where(own, by_block, 0.0).sum(axis=1)
  weights = jnp.exp((inside - top[:, None]) * scale)
  offset = (jnp.cumsum(weights, axis=-1) <= (target - before)[:, None]).sum(axis=-1)
  # Rounding may leave the target a hair beyond the block, or at a token that is impossible: take
  # the most likely one.
  missed = (offset >= size) | jnp.isneginf(_pick(inside, jnp.minimum(offset, size - 1)))
  offset = jnp.where(greedy | missed, jnp.argmax(inside, axis=-1), offset)
  token = (block * size + offset).astype(jnp.int32)
  return token, (_pick(inside, offset) - top) * scale - jnp.log(total)


def _pick(values: jax.Array, index: jax.Array) -> jax.Array:
  """`values[n, index[n]]`."""
  return jnp.take_along_axis(values, index[:, None], axis=-1)[:, 0]
