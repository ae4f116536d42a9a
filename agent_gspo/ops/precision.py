"""Rounds operands to a reduced dtype, and multiplies matrices with float32 accumulation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def operand(x: jax.Array, dtype: DTypeLike) -> jax.Array:
  """Rounds float32 `x` to `dtype`, identically in every program.

  XLA may drop casts to bfloat16 and back in one program and not in another
  (`xla_allow_excess_precision`); it keeps `reduce_precision`.
  """
  if x.dtype == dtype:
    return x
  kind = jnp.finfo(dtype)
  return jax.lax.reduce_precision(x, kind.nexp, kind.nmant).astype(dtype)


def score_offset(highest: jax.Array) -> jax.Array:
  """Rounds the highest score up to a multiple of `log 2`, to subtract before the exponential.

  Weights `exp(score - offset)` then differ by powers of two between blocks with different maxima
  and have the same mantissa: rounded to bfloat16 they are equal in all implementations, so that
  the sampler's log-probs equal the trainer's.
  """
  return jnp.ceil(highest * (1 / math.log(2))) * math.log(2)


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)


def matmul(x: jax.Array, kernel: jax.Array, dtype: DTypeLike) -> jax.Array:
  """Computes float32 `x @ kernel` of operands in `dtype`, `[..., I]` and `[I, O]`.

  In the backward pass the incoming gradient is rounded to `dtype` once, as an operand of both
  products.
  """
  return _product(operand(x, dtype), operand(kernel, dtype))


def _keep(x, kernel):
  return _product(x, kernel), (x, kernel)


def _backward(kept, gradient):
  """Avoids JAX's own rule, whose transposed kernel gradient makes XLA copy operands."""
  x, kernel = kept
  if x.dtype != jnp.float32:
    # The barrier keeps XLA from fusing the producers into the products in float32.
    x, gradient = jax.lax.optimization_barrier((x, operand(gradient, x.dtype)))
  rows = tuple(range(x.ndim - 1))
  # [..., O] x [I, O] -> dx [..., I]; [..., I] x [..., O] -> dkernel [I, O]
  dx = jax.lax.dot_general(gradient, kernel, (((x.ndim - 1,), (1,)), ((), ())))
  return dx, jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())))


_product.defvjp(_keep, _backward)


@jax.custom_vjp
def _grouped_product(x: jax.Array, kernels: jax.Array, sizes: jax.Array) -> jax.Array:
  return jax.lax.ragged_dot(x, kernels, sizes, preferred_element_type=jnp.float32)


def grouped_matmul(
  x: jax.Array, kernels: jax.Array, sizes: jax.Array, dtype: DTypeLike
) -> jax.Array:
  """Computes float32 `x @ kernel` of each group's own kernel; rounds as `matmul` does.

  Args:
    x: `[N, I]`, sorted by group.
    kernels: `[E, I, O]`.
    sizes: Rows of each group, int32 `[E]`, in all `N`.
    dtype: Dtype of the operands.
  """
  return _grouped_product(operand(x, dtype), operand(kernels, dtype), sizes)


def _keep_grouped(x, kernels, sizes):
  return _grouped_product(x, kernels, sizes), (x, kernels, sizes)


def _grouped_backward(kept, gradient):
  x, kernels, sizes = kept
  gradient = operand(gradient, x.dtype)
  # [N, O] x [E, O, I] -> dx [N, I]; [N, I] x [N, O], contracted by group -> dkernels [E, I, O]
  dx = jax.lax.ragged_dot(gradient, kernels.swapaxes(1, 2), sizes)
  by_group = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
  return dx, jax.lax.ragged_dot_general(x, gradient, sizes, by_group), None


_grouped_product.defvjp(_keep_grouped, _grouped_backward)
