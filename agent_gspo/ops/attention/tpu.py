"""Computes tree attention with two Pallas kernels for TPUs, forward and backward.

Each grid program loads the keys and values of a row into VMEM and computes scores block by block,
so that inputs and outputs cross HBM once. Columns lie along the lanes, `[d, T]`, since heads are
often 64 wide, half of a tile. Fully masked blocks are skipped by a prefetched scalar, the last
column that attends to any key of a block (as for column-wise masks in FlashMask, arXiv 2410.01359).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from agent_gspo.ops.attention import KEPT, padding, scale
from agent_gspo.ops.attention.masks import TreeMask

BLOCK = 512
"""Maximum number of queries, and of keys, per block."""

NAME, GRADIENT_NAME = 'tree_attention', 'tree_attention_gradient'
"""Names of the kernels in a compiled program."""

_LANES = 128
_LOW = -1e30
_VMEM_BYTES = 96 << 20  # of 128 MiB; the compiler's default is 16


def attend(
  q: jax.Array, k: jax.Array, v: jax.Array, mask: TreeMask, *, interpret: bool = False
) -> jax.Array:
  """Computes tree attention (see `agent_gspo.ops.attention`) without windows.

  Args:
    q, k, v, mask: See the package.
    interpret: Interprets the kernels on any device, for tests.
  """
  length = q.shape[3]
  block = block_of(length)
  q, k, v, mask = padding.to_multiple(block, q, k, v, mask)
  columns_last = lambda x: jnp.swapaxes(x, -1, -2)
  out = _attend(block, interpret, *map(columns_last, (q, k, v)), mask.subtree_end)
  return columns_last(out)[:, :, :, :length]


def block_of(length: int) -> int:
  """Returns the block size of a row: as many tiles as divide those of the row."""
  tiles = -(-length // _LANES)
  return _LANES * max(n for n in range(1, BLOCK // _LANES + 1) if tiles % n == 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(block, interpret, q, k, v, subtree_end):
  return _forward(block, interpret, q, k, v, subtree_end)[0]


def _keep(block, interpret, q, k, v, subtree_end):
  out, log_total = checkpoint_name(_forward(block, interpret, q, k, v, subtree_end), KEPT)
  return out, (q, k, v, subtree_end, out, log_total)


def _backward(block, interpret, kept, gradient):
  q, k, v, subtree_end, out, log_total = kept
  results = (out, log_total, gradient)
  return (*_gradients(block, interpret, q, k, v, subtree_end, *results), None)


_attend.defvjp(_keep, _backward)


def _forward(block, interpret, q, k, v, subtree_end):
  """Returns the output `[B, K, g, d, T]` and the log-sum-exp of the scores `[B, K, g, 1, T]`."""
  b, heads, g, d, t = q.shape
  of_queries = lambda rows: pl.BlockSpec(
    (None, None, None, rows, block), lambda b, h, n, i, *_: (b, h, n, 0, i)
  )
  of_keys = pl.BlockSpec((None, None, d, t), lambda b, h, n, i, *_: (b, h, 0, 0))
  ends = pl.BlockSpec((None, 1, t), lambda b, h, n, i, *_: (b, 0, 0))
  return pl.pallas_call(
    functools.partial(_forward_kernel, block=block),
    out_shape=(
      jax.ShapeDtypeStruct(q.shape, v.dtype),
      jax.ShapeDtypeStruct((b, heads, g, 1, t), jnp.float32),
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(b, heads, g, t // block),
      in_specs=[of_queries(d), of_keys, of_keys, ends],
      out_specs=(of_queries(d), of_queries(1)),
      scratch_shapes=[
        pltpu.VMEM((d, block), jnp.float32),
        pltpu.VMEM((1, block), jnp.float32),
        pltpu.VMEM((1, block), jnp.float32),
      ],
    ),
    **_options(interpret, NAME, 2, q, k, v),
  )(_last_seen(subtree_end, block), q, k, v, subtree_end[:, None])


def _gradients(block, interpret, q, k, v, subtree_end, out, log_total, gradient):
  """Returns the gradients of queries, keys and values, each like its array."""
  b, heads, g, d, t = q.shape
  of_head = lambda rows: pl.BlockSpec(
    (None, None, None, rows, t), lambda b, h, n, *_: (b, h, n, 0, 0)
  )
  of_keys = pl.BlockSpec((None, None, d, t), lambda b, h, n, *_: (b, h, 0, 0))
  ends = pl.BlockSpec((None, 1, t), lambda b, h, n, *_: (b, 0, 0))
  return pl.pallas_call(
    functools.partial(_backward_kernel, block=block),
    out_shape=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(b, heads, g),
      in_specs=[of_head(d), of_keys, of_keys, ends, of_head(d), of_head(1), of_head(d)],
      out_specs=(of_head(d), of_keys, of_keys),
      scratch_shapes=[pltpu.VMEM((d, t), jnp.float32)] * 3,
    ),
    **_options(interpret, GRADIENT_NAME, 5, q, k, v),
  )(_last_seen(subtree_end, block), q, k, v, subtree_end[:, None], out, log_total, gradient)


def _options(interpret: bool, name: str, products: int, q: Any, k: Any, v: Any) -> dict[str, Any]:
  """Returns `pallas_call` options for a kernel with `products` matmuls per block of scores."""
  d, t = q.shape[-2:]
  heads = q.size // (d * t)
  size = lambda x: x.size * x.dtype.itemsize
  return {
    'name': name,
    'interpret': interpret,
    # Half of the scores, as for a causal mask: what trees skip is unknown at compile time.
    'cost_estimate': pl.CostEstimate(
      flops=products * heads * d * t * t,
      transcendentals=heads * t * t // 2,
      bytes_accessed=products * size(q) + 2 * (size(k) + size(v)),
    ),
    'compiler_params': pltpu.CompilerParams(vmem_limit_bytes=_VMEM_BYTES),
  }


def _last_seen(subtree_end: jax.Array, block: int) -> jax.Array:
  """Returns the end of the columns that attend to any key of a block, int32 `[B, T / block]`."""
  return subtree_end.reshape(subtree_end.shape[0], -1, block).max(axis=2)


def _forward_kernel(last_seen, q, k, v, ends, out, log_total, sums, highest, total, *, block):
  row, i = pl.program_id(0), pl.program_id(3)
  sums[...] = jnp.zeros_like(sums)
  highest[...] = jnp.full_like(highest, _LOW)
  total[...] = jnp.zeros_like(total)

  def add(j):
    keys = pl.ds(pl.multiple_of(j * block, block), block)
    # [keys, queries] of a block; q [d, block], k and v [d, T], sums [d, block], total [1, block]
    scores = _scores(q[...], k[:, keys], ends[:, keys], i, j, block)
    before = highest[...]
    now = jnp.maximum(before, scale.above(scores.max(axis=0, keepdims=True)))
    weights, rescale = jnp.exp(scores - now), jnp.exp(before - now)
    highest[...] = now
    total[...] = total[...] * rescale + weights.sum(axis=0, keepdims=True)
    sums[...] = sums[...] * rescale + _product(v[:, keys], weights.astype(v.dtype), 1, 0)

  _over_keys(last_seen, row, i, block, add)
  out[...] = (sums[...] / total[...]).astype(out.dtype)
  log_total[...] = highest[...] + jnp.log(total[...])


def _backward_kernel(
  last_seen, q, k, v, ends, out, log_total, gradient, dq, dk, dv, dq_sum, dk_sum, dv_sum, *, block
):
  row, n = pl.program_id(0), pl.program_id(2)
  dq_sum[...] = jnp.zeros_like(dq_sum)

  @pl.when(n == 0)  # All query heads of a key head add to its gradient.
  def _():
    dk_sum[...] = jnp.zeros_like(dk_sum)
    dv_sum[...] = jnp.zeros_like(dv_sum)

  def of_queries(i, carry):
    queries = pl.ds(pl.multiple_of(i * block, block), block)
    q_i, gradient_i = q[:, queries], gradient[:, queries]
    # Common term of the weights' gradients, since weights sum to 1: [1, block].
    common = out[:, queries].astype(jnp.float32) * gradient_i.astype(jnp.float32)
    common = common.sum(axis=0, keepdims=True)

    def add(j):
      keys = pl.ds(pl.multiple_of(j * block, block), block)
      scores = _scores(q_i, k[:, keys], ends[:, keys], i, j, block)
      weights = jnp.exp(scores - log_total[:, queries])
      dweights = _product(v[:, keys], gradient_i, 0, 0)
      dscores = (weights * (dweights - common)).astype(q.dtype)
      dq_sum[:, queries] += _product(k[:, keys], dscores, 1, 0)
      dk_sum[:, keys] += _product(q_i, dscores, 1, 1)
      dv_sum[:, keys] += _product(gradient_i, weights.astype(v.dtype), 1, 1)

    _over_keys(last_seen, row, i, block, add)
    return carry

  jax.lax.fori_loop(0, q.shape[1] // block, of_queries, 0)
  dq[...] = dq_sum[...].astype(dq.dtype)

  @pl.when(n == pl.num_programs(2) - 1)
  def _():
    dk[...] = dk_sum[...].astype(dk.dtype)
    dv[...] = dv_sum[...].astype(dv.dtype)


def _over_keys(last_seen, row, i, block, add) -> None:
  """Runs `add(j)` for each key block with a key visible to query block `i`."""

  def maybe(j, carry):
    pl.when(last_seen[row, j] > i * block)(lambda: add(j))
    return carry

  jax.lax.fori_loop(0, i + 1, maybe, 0)


def _scores(q, k, ends, i, j, block):
  """Computes masked scores, float32 `[keys, queries]` of a block."""
  key = j * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 0)
  query = i * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 1)
  ends = jnp.broadcast_to(ends, (_LANES, block)).T[:, :1]  # [keys, 1], like the scores
  return jnp.where((key <= query) & (query < ends), _product(k, q, 0, 0), _LOW)


def _product(a, b, a_axis: int, b_axis: int):
  """Contracts two matrices over these axes, with a float32 result."""
  exact = a.dtype == jnp.float32
  return jax.lax.dot_general(
    a,
    b,
    (((a_axis,), (b_axis,)), ((), ())),
    precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
    preferred_element_type=jnp.float32,
  )
