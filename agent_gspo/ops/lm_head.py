"""Computes token log-probs and entropies from hidden states, one chunk of logits at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.ops import soft_cap
from agent_gspo.ops.precision import matmul, operand

CHUNK_BYTES = 640 << 20
"""Size of a chunk's float32 logits, bytes; up to 8 % more, since chunks are whole tiles."""

_LOWEST = float(np.finfo(np.float32).min)  # -inf times its weight of 0 would be NaN
_CHUNKS = 4  # fewest chunks of at least _SMALL tokens: unused chunks are skipped
_SMALL = 256
_TILE = 128


def chunk_tokens(vocab_size: int, tokens: int) -> int:
  """Returns the number of tokens per chunk of logits."""
  most = min(CHUNK_BYTES // (4 * vocab_size), max(tokens // _CHUNKS, _SMALL))
  most = max(most, _TILE)
  chunks = -(-tokens // most)
  # Chunks of equal size, so that padding fills none of its own; multiples of a TPU tile.
  return tokens if chunks == 1 else -(-tokens // (chunks * _TILE)) * _TILE


def mask_unsaid(logits: jax.Array, unsaid: Sequence[tuple[int, int]], low: float) -> jax.Array:
  """Sets logits `[..., V]` of the ids in ranges `(first, end)` to `low`."""
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
  cap: float | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Computes target log-probs and entropies of their distributions, nats, float32 `[N]` each.

  Logits are computed again in the backward pass, which turns each chunk into its gradient with the
  saved log-normalizer. The entropy has no gradient.

  Args:
    hidden: Hidden states `[N, D]`, in the dtype of the operands.
    kernel: LM head, float32 `[D, V]`.
    targets: Target ids, int32 `[N]`.
    used: Tokens to compute, bool `[N]`; chunks without any are skipped and give 0.
    temperature: Divisor of the logits.
    entropy: Computes entropies; else 0.
    unsaid: Ranges `(first, end)` of ids with probability 0, none of them a target.
    cap: Logits are `cap * tanh(logits / cap)`, before the temperature; None for no cap.
  """
  n = len(targets)
  size = chunk_tokens(kernel.shape[1], n)
  order = jnp.argsort(~used)  # used tokens first, `[N]`
  cut = lambda x: jnp.pad(x[order], ((0, -n % size),) + ((0, 0),) * (x.ndim - 1))
  arguments = (cut(hidden), kernel, cut(targets), cut(used))
  logprobs, entropies, _ = _padded(size, temperature, entropy, unsaid, cap, *arguments)
  back = lambda x: jnp.zeros(n).at[order].set(x[:n])
  return back(logprobs), back(entropies)


def any_logprobs(
  logprobs: jax.Array,
  hidden: jax.Array,
  kernel: jax.Array,
  targets: jax.Array,
  ids: jax.Array,
  *,
  temperature: float = 1.0,
  cap: float | None = None,
) -> jax.Array:
  """Returns log-probs `[N]` in which some ids count as one token: any of them.

  Args:
    logprobs: Result of `token_logprobs`, `[N]`; returned for other targets.
    hidden, kernel, targets, temperature, cap: See `token_logprobs`.
    ids: Different ids with a probability, int32 `[K]`.
  """
  kernel = operand(kernel[:, ids], hidden.dtype)  # [D, K]
  logits = _logits(hidden, kernel, temperature, (), cap)  # [N, K]
  same = targets[:, None] == ids[None, :]  # [N, K], at most one each
  more = jax.nn.logsumexp(logits, axis=1) - jnp.where(same, logits, 0).sum(axis=1)
  return logprobs + jnp.where(same.any(axis=1), more, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3, 4))
def _padded(size, temperature, entropy, unsaid, cap, hidden, kernel, targets, used):
  """Computes `token_logprobs` of a multiple of `size` tokens, and their log-normalizers."""
  kernel = operand(kernel, hidden.dtype)  # [D, V], cast once for all chunks

  def of_chunk(chunk):
    hidden, targets, _ = chunk  # [size, D], [size]
    logits = _logits(hidden, kernel, temperature, unsaid, cap)  # [size, V]
    highest = logits.max(axis=1)  # [size]
    weights = jnp.exp(logits - highest[:, None])
    total = weights.sum(axis=1)  # [size]
    log_total = highest + jnp.log(total)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    mean = (weights * logits).sum(axis=1) / total if entropy else log_total
    return chosen - log_total, log_total - mean, log_total

  nothing = lambda chunk: (jnp.zeros(size),) * 3
  by_chunk = lambda chunk: jax.lax.cond(chunk[2].any(), of_chunk, nothing, chunk)
  found = jax.lax.map(by_chunk, _cut(size, hidden, targets, used))
  return tuple(x.reshape(-1) for x in found)


def _logits(hidden, kernel, temperature, unsaid, cap):
  logits = soft_cap.apply(matmul(hidden, kernel, hidden.dtype), cap)
  return mask_unsaid(logits / temperature, unsaid, _LOWEST)


def _keep(size, temperature, entropy, unsaid, cap, hidden, kernel, targets, used):
  found = _padded(size, temperature, entropy, unsaid, cap, hidden, kernel, targets, used)
  return found, (hidden, kernel, targets, used, found[2])


def _backward(size, temperature, entropy, unsaid, cap, kept, gradients):
  hidden, kernel, targets, used, log_total = kept
  kernel = operand(kernel, hidden.dtype)

  def of_chunk(total, chunk):
    hidden, targets, _, log_total, gradient = chunk
    logits = _logits(hidden, kernel, temperature, unsaid, cap)  # [size, V]
    chosen = jnp.arange(logits.shape[1])[None, :] == targets[:, None]  # one-hot [size, V]
    dlogits = chosen - jnp.exp(logits - log_total[:, None])
    dlogits = soft_cap.times_slope(dlogits, logits * temperature, cap)
    dlogits = operand(dlogits * (gradient / temperature)[:, None], hidden.dtype)  # [size, V]
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    total += product('nd,nv->dv', hidden, dlogits)  # kernel gradient, float32 [D, V]
    return total, operand(product('nv,dv->nd', dlogits, kernel), hidden.dtype)

  def by_chunk(total, chunk):
    nothing = lambda total, chunk: (total, jnp.zeros_like(chunk[0]))
    return jax.lax.cond(chunk[2].any(), of_chunk, nothing, total, chunk)

  chunks = _cut(size, hidden, targets, used, log_total, gradients[0])
  dkernel, dhidden = jax.lax.scan(by_chunk, jnp.zeros(kernel.shape, jnp.float32), chunks)
  return dhidden.reshape(hidden.shape), dkernel, None, None


_padded.defvjp(_keep, _backward)


def _cut(size: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
  return tuple(x.reshape(-1, size, *x.shape[1:]) for x in arrays)  # [chunks, size, ...]
