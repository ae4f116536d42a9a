"""Samples one token per row, with its log-probability."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

HIGHEST = 1e37
"""Highest temperature: XLA rounds the inverse of a higher one to 0."""

_BLOCKS = (256, 128, 64, 32, 16, 8)
"""Candidate block sizes: the first that divides the vocabulary; padding would copy all logits."""


def draw(
  logits: jax.Array, uniforms: jax.Array, temperature: jax.Array, *, parts: int = 1
) -> tuple[jax.Array, jax.Array]:
  """Samples from `softmax(logits / temperature)` by inverting its CDF.

  One uniform per row is enough, where the Gumbel trick needs `V`. The CDF is summed in
  two levels (blocks, then within the block), which also keeps float32 error small.

  Args:
    logits: Logits, float32 `[N, V]`.
    uniforms: Random numbers in `[0, 1)`, float32 `[N]`.
    temperature: Scalar; 0 takes the most likely token.
    parts: Number of vocabulary shards; no block spans two shards if sizes allow.

  Returns:
    Tokens, int32 `[N]`, and log-probabilities at `temperature`, float32 `[N]` (at
    temperature 1 for greedy choices, whose own distribution is a point).
  """
  n, vocab = logits.shape
  greedy = temperature <= 0
  size = next((size for size in _BLOCKS if vocab % (parts * size) == 0), _BLOCKS[0])
  blocks = -(-vocab // size)
  # Differences are scaled where they are used: scaling all logits would write them once more.
  scale = 1.0 / jnp.where(greedy, 1.0, temperature)
  padded = jnp.pad(logits, ((0, 0), (0, blocks * size - vocab)), constant_values=-jnp.inf)
  by_block = padded.reshape(n, blocks, size)  # [N, blocks, size]
  highest = by_block.max(axis=-1)  # [N, blocks]
  top = highest.max(axis=-1)  # [N]

  # [N, blocks], unnormalized
  cdf = jnp.cumsum(jnp.exp((by_block - top[:, None, None]) * scale).sum(axis=-1), axis=-1)
  total = cdf[:, -1]  # [N]
  target = uniforms * total
  block = jnp.minimum((cdf <= target[:, None]).sum(axis=-1), blocks - 1)
  before = jnp.where(block > 0, _pick(cdf, jnp.maximum(block - 1, 0)), 0.0)
  # Rounding of the sums may put the target in a block where every token has probability 0.
  likely = jnp.argmax(highest, axis=-1)
  block = jnp.where(greedy | jnp.isneginf(_pick(highest, block)), likely, block)

  # A masked sum works for any layout of the logits; for a gather a TPU would first copy them all.
  own = jnp.arange(blocks)[None, :, None] == block[:, None, None]
  inside = jnp.where(own, by_block, 0.0).sum(axis=1)  # [N, size]
  weights = jnp.exp((inside - top[:, None]) * scale)
  offset = (jnp.cumsum(weights, axis=-1) <= (target - before)[:, None]).sum(axis=-1)
  # Rounding may put the target just beyond the block or at a token of probability 0: take the
  # most likely token.
  missed = (offset >= size) | jnp.isneginf(_pick(inside, jnp.minimum(offset, size - 1)))
  offset = jnp.where(greedy | missed, jnp.argmax(inside, axis=-1), offset)
  token = (block * size + offset).astype(jnp.int32)
  return token, (_pick(inside, offset) - top) * scale - jnp.log(total)


def draw_first(
  draw: Callable[..., tuple[jax.Array, jax.Array]],
  must_speak: jax.Array,
  silence: jax.Array,
  logits: jax.Array,
  uniforms: jax.Array,
  temperature: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Samples the first tokens of messages, some of which may not be silent.

  Args:
    draw: Samples a token, as the function of that name.
    must_speak: Rows in which the ids `silence`, int32 `[S]`, are masked, bool `[N]`.
    silence, logits, uniforms, temperature: See `must_speak` and `draw`.

  Returns:
    Tokens, int32 `[N]`; their log-probs and those of speaking, without the mask, float32 `[N]`.
  """
  silent = (jnp.arange(logits.shape[-1])[:, None] == silence[None, :]).any(axis=-1)  # [V]
  masked = jnp.where(silent[None, :], -jnp.inf, logits)
  scale = 1.0 / jnp.where(temperature <= 0, 1.0, temperature)
  mass = lambda x: jax.nn.logsumexp(x * scale, axis=-1)
  log_speak = mass(masked) - mass(logits)  # [N]
  token, logprob = draw(jnp.where(must_speak[:, None], masked, logits), uniforms, temperature)
  # log pi(token) = log q(token) + log pi(not silent), q being pi given that the row speaks.
  return token, logprob + jnp.where(must_speak, log_speak, 0.0), log_speak


def _pick(values: jax.Array, index: jax.Array) -> jax.Array:
  """Returns `values[n, index[n]]`, `[N]`."""
  return jnp.take_along_axis(values, index[:, None], axis=-1)[:, 0]
