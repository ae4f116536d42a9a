"""Computes tree attention with cuDNN, for NVIDIA GPUs from Ampere on."""

from __future__ import annotations

from typing import Literal

import jax

from agent_gspo.ops.attention import padding
from agent_gspo.ops.attention.masks import TreeMask

_MULTIPLE = 64  # columns; the backward pass does not support an odd number


def has_heads_of(width: int) -> bool:
  """Returns whether cuDNN supports attention heads of this width on the GPUs of this process.

  Assumes Ampere if this process has no GPUs, as in a plan for another machine.
  """
  unknown = '' if jax.default_backend() == 'gpu' else '8.0'
  capability = str(getattr(jax.local_devices()[0], 'compute_capability', unknown))
  generation = capability.partition('.')[0]  # '9' of '9.0'; AMD's are 'gfx90a'
  if not generation.isdigit() or int(generation) < 8:
    return False
  return width % 8 == 0 and width <= (256 if int(generation) >= 9 else 128)


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: TreeMask,
  *,
  implementation: Literal['cudnn', 'xla'] = 'cudnn',
) -> jax.Array:
  """Computes tree attention of bfloat16 or float16 operands (see `agent_gspo.ops.attention`).

  The mask becomes a `[B, 1, T, T]` array shared by all heads; scores stay on the chip. Rows are
  padded to a multiple of 64 columns.

  Args:
    q, k, v, mask: See the package.
    implementation: Passed to `jax.nn.dot_product_attention`; 'xla' runs anywhere, for tests.
  """
  length = q.shape[3]
  q, k, v, mask = padding.to_multiple(_MULTIPLE, q, k, v, mask)
  b, heads, g, t, d = q.shape
  out = jax.nn.dot_product_attention(
    q.transpose(0, 3, 1, 2, 4).reshape(b, t, heads * g, d),  # [B, T, K * g, d]
    k.swapaxes(1, 2),  # [B, T, K, d]
    v.swapaxes(1, 2),
    mask=mask.dense()[:, None],
    scale=1.0,
    implementation=implementation,
  )
  return out.reshape(b, t, heads, g, d).transpose(0, 2, 3, 1, 4)[:, :, :, :length]
