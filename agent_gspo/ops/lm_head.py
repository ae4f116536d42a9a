"""Log-probs of tokens and entropies from hidden states, without all logits in memory at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.ops.precision import matmul, operand

CHUNK_BYTES = 640 << 20
"""Of the float32 logits of a chunk of tokens, at most."""

_LOWEST = float(np.finfo(np.float32).min)  # -inf times its weight of 0 would be NaN
_CHUNKS = 4  # at least, if they are not too small: those that nobody uses cost nothing
_SMALL = 256
_TILE = 128


def chunk_tokens(vocab_size: int, tokens: int) -> int:
  """How many of so many tokens have their logits in memory at a time."""
  most = min(CHUNK_BYTES // (4 * vocab_size), max(tokens // _CHUNKS, _SMALL))
  most = max(most, _TILE)
  chunks = -(-tokens // most)
  # Alike, so that padding is no chunk of its own; a TPU counts tokens in tiles.
  return tokens if chunks == 1 else -(-tokens // (chunks * _TILE)) * _TILE


def mask_unsaid(logits: jax.Array, unsaid: Sequence[tuple[int, int]], low: float) -> jax.Array:
  """Returns logits `[..., V]` with `low` for the ids of some ranges `(first, end)`."""
  if not unsaid:
    return logits
  said = np.ones(logits.shape[-1], bool)
  for first, end in unsaid:
    said[first:end] = False
  return jnp.where(said, logits, low)


def token_logprobs(
  hidden: jax.Array,
  kernel: jax.Array,
  targets: jax.Array,
  used: jax.Array,
  *,
  temperature: float = 1.0,
  entropy: bool = True,
  unsaid: tuple[tuple[int, int], ...] = (),
) -> tuple[jax.Array, jax.Array]:
  """Log-prob of each target and entropy of its distribution, nats, float32 `[N]` each.

  Logits are computed twice, here and for the gradient: the second time they become gradients as
  they are made, since the logarithm of their sum is known. The entropy has no gradient.

  Args:
    hidden: `[N, D]`, in the dtype of the operands.
    kernel: float32 `[D, V]`, of the LM head.
    targets: int32 `[N]`.
    used: bool `[N]`; of the others most cost nothing and give 0.
    temperature: that logits are divided by.
    entropy: whether to compute it; else 0.
    unsaid: ranges `(first, end)` of ids with probability 0, none of them a target.
  """
  n = len(targets)
  size = chunk_tokens(kernel.shape[1], n)
  order = jnp.argsort(~used)  # those that are used stand together
  cut = lambda x: jnp.pad(x[order], ((0, -n % size),) + ((0, 0),) * (x.ndim - 1))
  arguments = (cut(hidden), kernel, cut(targets), cut(used))
  logprobs, entropies, _ = _padded(size, temperature, entropy, unsaid, *arguments)
  back = lambda x: jnp.zeros(n).at[order].set(x[:n])
  return back(logprobs), back(entropies)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _padded(size, temperature, entropy, unsaid, hidden, kernel, targets, used):
  """`token_logprobs` of a multiple of `size` tokens, and the logarithm of their logits' sum."""
  kernel = operand(kernel, hidden.dtype)  # once, not once a chunk

  def of_chunk(chunk):
    hidden, targets, _ = chunk
    logits = _logits(hidden, kernel, temperature, unsaid)
    highest = logits.max(axis=1)
    weights = jnp.exp(logits - highest[:, None])
    total = weights.sum(axis=1)
    log_total = highest + jnp.log(total)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    mean = (weights * logits).sum(axis=1) / total if entropy else log_total
    return chosen - log_total, log_total - mean, log_total

  nothing = lambda chunk: (jnp.zeros(size),) * 3
  by_chunk = lambda chunk: jax.lax.cond(chunk[2].any(), of_chunk, nothing, chunk)
  found = jax.lax.map(by_chunk, _cut(size, hidden, targets, used))
  return tuple(x.reshape(-1) for x in found)


def _logits(hidden, kernel, temperature, unsaid):
  return mask_unsaid(matmul(hidden, kernel, hidden.dtype) / temperature, unsaid, _LOWEST)


def _keep(size, temperature, entropy, unsaid, hidden, kernel, targets, used):
  found = _padded(size, temperature, entropy, unsaid, hidden, kernel, targets, used)
  return found, (hidden, kernel, targets, used, found[2])


def _backward(size, temperature, entropy, unsaid, kept, gradients):
  hidden, kernel, targets, used, log_total = kept
  kernel = operand(kernel, hidden.dtype)

  def of_chunk(total, chunk):
    hidden, targets, _, log_total, gradient = chunk
    logits = _logits(hidden, kernel, temperature, unsaid)
    chosen = jnp.arange(logits.shape[1])[None, :] == targets[:, None]
    dlogits = chosen - jnp.exp(logits - log_total[:, None])
    dlogits = operand(dlogits * (gradient / temperature)[:, None], hidden.dtype)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    total += product('nd,nv->dv', hidden, dlogits)
    return total, operand(product('nv,dv->nd', dlogits, kernel), hidden.dtype)

  def by_chunk(total, chunk):
    nothing = lambda total, chunk: (total, jnp.zeros_like(chunk[0]))
    return jax.lax.cond(chunk[2].any(), of_chunk, nothing, total, chunk)

  chunks = _cut(size, hidden, targets, used, log_total, gradients[0])
  dkernel, dhidden = jax.lax.scan(by_chunk, jnp.zeros(kernel.shape, jnp.float32), chunks)
  return dhidden.reshape(hidden.shape), dkernel, None, None


_padded.defvjp(_keep, _backward)


def _cut(size: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
  return tuple(x.reshape(-1, size, *x.shape[1:]) for x in arrays)
