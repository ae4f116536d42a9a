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


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)


def matmul(x: jax.Array, kernel: jax.Array, dtype: DTypeLike) -> jax.Array:
  """Float32 `x @ kernel` of operands in `dtype`, `[..., I]` and `[I, O]`.

  The gradient is one of their operands as well, in both of the products of the backward pass: it
  is rounded to `dtype` once.
  """
  return _product(operand(x, dtype), operand(kernel, dtype))


def _keep(x, kernel):
  return _product(x, kernel), (x, kernel)


def _backward(kept, gradient):
  """JAX's own rule makes the kernel's gradient turned over, for which XLA copies operands."""
  x, kernel = kept
  if x.dtype != jnp.float32:
    # Behind a barrier, or what makes them would be computed in the products, in float32.
    x, gradient = jax.lax.optimization_barrier((x, operand(gradient, x.dtype)))
  rows = tuple(range(x.ndim - 1))
  dx = jax.lax.dot_general(gradient, kernel, (((x.ndim - 1,), (1,)), ((), ())))
  return dx, jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())))


_product.defvjp(_keep, _backward)
