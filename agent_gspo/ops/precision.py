"""Products of operands in one dtype, summed in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def operand(x: jax.Array, dtype: DTypeLike) -> jax.Array:
  """Float32 `x` rounded to `dtype`, in every program alike.

  XLA drops casts to bfloat16 and back where it fuses them away, in one program and not in
  another (`xla_allow_excess_precision`); a reduced precision it keeps.
  """
  if x.dtype == dtype:
    return x
  kind = jnp.finfo(dtype)
  return jax.lax.reduce_precision(x, kind.nexp, kind.nmant).astype(dtype)


def matmul(x: jax.Array, kernel: jax.Array, dtype: DTypeLike) -> jax.Array:
  """Float32 `x @ kernel` of operands in `dtype`."""
  return jnp.matmul(operand(x, dtype), operand(kernel, dtype), preferred_element_type=jnp.float32)
