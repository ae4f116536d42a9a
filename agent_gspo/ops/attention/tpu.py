"""Computes tree attention with two Pallas kernels for TPUs, forward and backward.

Each grid program loads the keys and values of a row into VMEM and computes scores block by block,
so that inputs and outputs cross HBM once. Columns lie along the lanes, `[d, T]`, since heads are
often 64 wide, half of a tile. Fully masked blocks are skipped by prefetched scalars: the last
column that attends to any key of a block (as for column-wise masks in FlashMask, arXiv 2410.01359),
and with a window the range of positions in a block.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from agent_gspo.ops import soft_cap
from agent_gspo.ops.attention import blockwise, padding
from agent_gspo.ops.attention.masks import TreeMask
from agent_gspo.ops.precision import score_offset

BLOCK = 512
"""Maximum number of queries, and of keys, per block."""

NAME, GRADIENT_NAME = 'tree_attention', 'tree_attention_gradient'
"""Names of the kernels in a compiled program."""

_LANES = 128
_LOW = -1e30
_VMEM_BYTES = 96 << 20  # of 128 MiB; the compiler's default is 16


class _How(NamedTuple):
  """Static options of the kernels."""

  block: int
  window: int | None
  cap: float | None
  interpret: bool


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: TreeMask,
  *,
  cap: float | None = None,
  interpret: bool = False,
) -> jax.Array:
  """Computes tree attention (see `agent_gspo.ops.attention`).

  Args:
    q, k, v, mask, cap: See the package.
    interpret: Interprets the kernels on any device, for tests.
  """
  length = q.shape[3]
  how = _How(block_of(length), mask.window, cap, interpret)
  q, k, v, mask = padding.to_multiple(how.block, q, k, v, mask)
  # Ends of subtrees and, for windows, positions: [B, 1 or 2, T].
  columns = [mask.subtree_end]
  if mask.positions is not None and mask.window is not None:
    columns.append(mask.positions)
  columns_last = lambda x: jnp.swapaxes(x, -1, -2)
  out = _attend(how, *map(columns_last, (q, k, v)), jnp.stack(columns, axis=1))
  return columns_last(out)[:, :, :, :length]


def block_of(length: int) -> int:
  """Returns the block size of a row: as many tiles as divide those of the row."""
  tiles = -(-length // _LANES)
  return _LANES * max(n for n in range(1, BLOCK // _LANES + 1) if tiles % n == 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how, q, k, v, columns):
  return _forward(how, q, k, v, columns)[0]


def _backward(how, kept, gradient):
  q, k, v, columns, out, log_total = kept
  return (*_gradients(how, q, k, v, columns, out, log_total, gradient), None)


def _forward(how, q, k, v, columns):
  """Returns the output `[B, K, g, d, T]` and the log-sum-exp of the scores `[B, K, g, 1, T]`."""
  (b, heads, g, d, t), block = q.shape, how.block
  of_queries = lambda rows: pl.BlockSpec(
    (None, None, None, rows, block), lambda b, h, n, i, *_: (b, h, n, 0, i)
  )
  of_keys = pl.BlockSpec((None, None, d, t), lambda b, h, n, i, *_: (b, h, 0, 0))
  of_columns = pl.BlockSpec((None, columns.shape[1], t), lambda b, h, n, i, *_: (b, 0, 0))
  return pl.pallas_call(
    functools.partial(_forward_kernel, how=how),
    out_shape=(
      jax.ShapeDtypeStruct(q.shape, v.dtype),
      jax.ShapeDtypeStruct((b, heads, g, 1, t), jnp.float32),
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(b, heads, g, t // block),
      in_specs=[of_queries(d), of_keys, of_keys, of_columns],
      out_specs=(of_queries(d), of_queries(1)),
      scratch_shapes=[
        pltpu.VMEM((d, block), jnp.float32),
        pltpu.VMEM((1, block), jnp.float32),
        pltpu.VMEM((1, block), jnp.float32),
      ],
    ),
    **_options(how.interpret, NAME, 2, q, k, v),
  )(_ranges(how, columns), q, k, v, columns)


_attend.defvjp(functools.partial(blockwise.keep, _forward), _backward)


def _gradients(how, q, k, v, columns, out, log_total, gradient):
  """Returns the gradients of queries, keys and values, each like its array."""
  b, heads, g, d, t = q.shape
  of_head = lambda rows: pl.BlockSpec(
    (None, None, None, rows, t), lambda b, h, n, *_: (b, h, n, 0, 0)
  )
  of_keys = pl.BlockSpec((None, None, d, t), lambda b, h, n, *_: (b, h, 0, 0))
  of_columns = pl.BlockSpec((None, columns.shape[1], t), lambda b, h, n, *_: (b, 0, 0))
  return pl.pallas_call(
    functools.partial(_backward_kernel, how=how),
    out_shape=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(b, heads, g),
      in_specs=[of_head(d), of_keys, of_keys, of_columns, of_head(d), of_head(1), of_head(d)],
      out_specs=(of_head(d), of_keys, of_keys),
      scratch_shapes=[pltpu.VMEM((d, t), jnp.float32)] * 3,
    ),
    **_options(how.interpret, GRADIENT_NAME, 5, q, k, v),
  )(_ranges(how, columns), q, k, v, columns, out, log_total, gradient)


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


def _ranges(how, columns):
  """Returns numbers by which blocks are skipped, int32 `[B, n]` or with a window `[B, 3 * n]`.

  Of each of the `n = T / block` blocks: the end of the columns that attend to any of its keys, its
  lowest and its highest position.
  """
  blocks = columns.reshape(*columns.shape[:2], -1, how.block)  # [B, 1 or 2, n, block]
  ends = blocks[:, 0].max(axis=2)
  if how.window is None:
    return ends
  return jnp.concatenate([ends, blocks[:, 1].min(axis=2), blocks[:, 1].max(axis=2)], axis=1)


def _forward_kernel(ranges, q, k, v, columns, out, log_total, sums, highest, total, *, how):
  row, i, block = pl.program_id(0), pl.program_id(3), how.block
  sums[...] = jnp.zeros_like(sums)
  highest[...] = jnp.full_like(highest, _LOW)
  total[...] = jnp.zeros_like(total)

  def add(j):
    keys = pl.ds(pl.multiple_of(j * block, block), block)
    # [keys, queries] of a block; q [d, block], k and v [d, T], sums [d, block], total [1, block]
    scores = _scores(how, q[...], k[:, keys], columns, i, j)
    before = highest[...]
    now = jnp.maximum(before, score_offset(scores.max(axis=0, keepdims=True)))
    weights, rescale = jnp.exp(scores - now), jnp.exp(before - now)
    highest[...] = now
    total[...] = total[...] * rescale + weights.sum(axis=0, keepdims=True)
    sums[...] = sums[...] * rescale + _product(v[:, keys], weights.astype(v.dtype), 1, 0)

  _over_keys(how, ranges, row, i, k.shape[1] // block, add)
  out[...] = (sums[...] / total[...]).astype(out.dtype)
  log_total[...] = highest[...] + jnp.log(total[...])


def _backward_kernel(
  ranges, q, k, v, columns, out, log_total, gradient, dq, dk, dv, dq_sum, dk_sum, dv_sum, *, how
):
  row, n, block = pl.program_id(0), pl.program_id(2), how.block
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
      scores = _scores(how, q_i, k[:, keys], columns, i, j)
      weights = jnp.exp(scores - log_total[:, queries])
      dweights = _product(v[:, keys], gradient_i, 0, 0)
      dscores = soft_cap.times_slope(weights * (dweights - common), scores, how.cap)
      dscores = dscores.astype(q.dtype)
      dq_sum[:, queries] += _product(k[:, keys], dscores, 1, 0)
      dk_sum[:, keys] += _product(q_i, dscores, 1, 1)
      dv_sum[:, keys] += _product(gradient_i, weights.astype(v.dtype), 1, 1)

    _over_keys(how, ranges, row, i, k.shape[1] // block, add)
    return carry

  jax.lax.fori_loop(0, q.shape[1] // block, of_queries, 0)
  dq[...] = dq_sum[...].astype(dq.dtype)

  @pl.when(n == pl.num_programs(2) - 1)
  def _():
    dk[...] = dk_sum[...].astype(dk.dtype)
    dv[...] = dv_sum[...].astype(dv.dtype)


def _over_keys(how, ranges, row, i, n, add) -> None:
  """Runs `add(j)` for each of `n` key blocks with a key visible to query block `i`."""

  def maybe(j, carry):
    seen = ranges[row, j] > i * how.block
    if how.window is not None:
      seen &= ranges[row, n + i] - ranges[row, 2 * n + j] < how.window
    pl.when(seen)(lambda: add(j))
    return carry

  jax.lax.fori_loop(0, i + 1, maybe, 0)


def _scores(how, q, k, columns, i, j):
  """Computes masked scores, float32 `[keys, queries]` of a block."""
  block = how.block
  key = j * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 0)
  query = i * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 1)
  of = lambda x, at: columns[x : x + 1, pl.ds(pl.multiple_of(at * block, block), block)]
  upright = lambda x: jnp.broadcast_to(x, (_LANES, block)).T[:, :1]  # [keys, 1], like the scores
  seen = (key <= query) & (query < upright(of(0, j)))
  if how.window is not None:
    seen &= of(1, i) - upright(of(1, j)) < how.window
  return jnp.where(seen, soft_cap.apply(_product(k, q, 0, 0), how.cap), _LOW)


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
