"""Selects the attention implementation by device and config."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agent_gspo.ops import device_kind
from agent_gspo.ops.attention import IMPLEMENTATIONS, blockwise, gpu, own_column, reference
from agent_gspo.ops.attention.masks import CacheMask, Mask

_ACCELERATORS = ('tpu', 'gpu')
# Columns up to which 'reference' is used. It compiles faster; on an H100 in float32 it is 25 times
# as fast as 'blockwise' at 1024 columns (docs/results/performance.md).
_SHORT = {'cpu': 128, 'gpu': 1024, 'tpu': 128}


def check(implementation: str, dtype: str) -> None:
  """Checks that the devices, see `device_kind`, support an implementation.

  Raises:
    ValueError: They do not; names `model.attention` and the remedy.
  """
  backend = device_kind.current()
  if implementation in _ACCELERATORS and implementation != backend:
    raise ValueError(
      f'model.attention={implementation!r} does not run here: the devices are of kind {backend!r}. '
      "Use 'auto', or 'blockwise', which runs anywhere."
    )
  if implementation == 'gpu' and jnp.dtype(dtype) == jnp.float32:
    raise ValueError(
      f"model.attention='gpu' has no {dtype}. Set model.dtype='bfloat16', or use 'auto'."
    )


def chosen(
  implementation: str,
  backend: str,
  dtype: jnp.dtype,
  *,
  columns: int,
  head_dim: int,
  cap: float | None,
) -> str:
  """Returns the implementation for trees: the given one, or the choice of 'auto'.

  Args:
    implementation: See `attend`.
    backend: Kind of the devices: 'cpu', 'gpu' or 'tpu'.
    dtype: Dtype of the operands.
    columns: Columns of a row, T.
    head_dim: Width of a head, d.
    cap: See `attend`.
  """
  if implementation != 'auto':
    return implementation
  if backend == 'tpu':
    return 'tpu'
  cudnn = backend == 'gpu' and cap is None
  cudnn &= dtype != jnp.float32  # cuDNN has no float32 attention
  if cudnn and gpu.has_heads_of(head_dim):
    return 'gpu'
  return 'blockwise' if columns > _SHORT.get(backend, 128) else 'reference'


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: Mask,
  parts: own_column.Parts | None = None,
  *,
  implementation: str = 'auto',
  cap: float | None = None,
) -> jax.Array:
  """Computes attention of `q` to `k` and `v`, `[B, K, g, T, d]`.

  Args:
    q, k, v, mask, cap: See the package.
    parts: Parts of `k` and `v` if they are a KV cache with one new token per row.
    implementation: Implementation for trees; caches use the reference. 'reference' stores all
      scores, 'blockwise' one block, 'tpu' is a Pallas kernel, 'gpu' cuDNN's (bfloat16, no cap).
      'auto' takes the default device's, elsewhere 'blockwise', or 'reference' for short rows.
  """
  backend = jax.default_backend()
  implementation = chosen(
    implementation, backend, q.dtype, columns=q.shape[3], head_dim=q.shape[4], cap=cap
  )
  if isinstance(mask, CacheMask):
    many = implementation == 'tpu' and q.shape[0] >= own_column.ROWS
    if many and parts is not None and mask.before is not None:
      return own_column.attend(q, parts, mask.before, cap=cap)
    on_cpu = implementation not in _ACCELERATORS and backend == 'cpu'
    return reference.attend(q, k, v, mask, cap=cap, sum_values=on_cpu)
  if implementation == 'gpu' and cap is not None:
    raise ValueError(
      "model.attention='gpu' has no attn_logit_softcapping, which this model needs; must be 'auto' "
      "or 'blockwise'."
    )
  caps = {} if cap is None else {'cap': cap}
  return _tree_attention(implementation)(q, k, v, mask, **caps)


def _tree_attention(implementation: str) -> Callable[..., jax.Array]:
  if implementation == 'reference':
    return reference.attend
  if implementation == 'blockwise':
    return blockwise.attend
  if implementation == 'tpu':
    from agent_gspo.ops.attention import tpu  # Pallas takes half a second to import

    return tpu.attend
  if implementation == 'gpu':
    return gpu.attend
  raise ValueError(
    f'attention={implementation!r} is unknown; use one of {", ".join(IMPLEMENTATIONS)}.'
  )
