"""Attention by the implementation that the device, or the config, asks for."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agent_gspo.ops.attention import IMPLEMENTATIONS, blockwise, gpu, own_column, reference
from agent_gspo.ops.attention.masks import CacheMask, Mask, TreeMask

_ACCELERATORS = ('tpu', 'gpu')
_TOO_WIDE = ('gpu', jnp.float32)  # cuDNN has no such attention
_SHORT = 128  # columns of a row that has few scores: the reference compiles sooner


def check(implementation: str, dtype: str) -> None:
  """Checks that the devices of this process have an implementation.

  Raises:
    ValueError: they have not; it names `model.attention` and what to use.
  """
  backend = jax.default_backend()
  if implementation in _ACCELERATORS and implementation != backend:
    raise ValueError(
      f'model.attention={implementation!r} does not run here: the devices are of kind {backend!r}. '
      "Use 'auto', or 'blockwise', which runs anywhere."
    )
  if (implementation, jnp.dtype(dtype)) == _TOO_WIDE:
    raise ValueError(
      f"model.attention='gpu' has no {dtype}. Set model.dtype='bfloat16', or use 'auto'."
    )


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: Mask,
  parts: own_column.Parts | None = None,
  *,
  implementation: str = 'auto',
) -> jax.Array:
  """Attention of `q` to `k` and `v`.

  Args:
    q, k, v, mask: see the package.
    parts: of `k` and `v`, where they are a cache that one token a row was written to.
    implementation: of trees; caches have one, the reference. 'reference' keeps all scores,
      'blockwise' a block of them, 'tpu' is a Pallas kernel, 'gpu' cuDNN's (bfloat16 alone).
      'auto' takes what the default device has, elsewhere 'blockwise' but for short rows.
  """
  if implementation == 'auto':
    implementation = _best(q)
  if isinstance(mask, CacheMask):
    many = implementation == 'tpu' and q.shape[0] >= own_column.ROWS
    if many and parts is not None and mask.before is not None:
      return own_column.attend(q, parts, mask.before)
    return reference.attend(q, k, v, mask, sum_values=implementation not in _ACCELERATORS)
  return _tree_attention(implementation)(q, k, v, mask.subtree_end)


def _best(q: jax.Array) -> str:
  backend = jax.default_backend()
  if backend in _ACCELERATORS and (backend, q.dtype) != _TOO_WIDE:
    return backend
  return 'blockwise' if q.shape[3] > _SHORT else 'reference'


def _tree_attention(implementation: str) -> Callable[..., jax.Array]:
  if implementation == 'reference':
    return lambda q, k, v, end: reference.attend(q, k, v, TreeMask(end))
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
