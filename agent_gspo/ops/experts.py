"""Routes tokens to experts and applies them, without capacity limits: no token is dropped."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from agent_gspo.ops.precision import grouped_matmul


def route(x: jax.Array, router: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Chooses the most probable experts of each token, in float32 on any device.

  Args:
    x: Float32 `[..., D]`.
    router: Kernel `[D, E]`.
    count: Experts per token, `k`.

  Returns:
    The experts, int32 `[..., k]`, the most probable first, and the probabilities of all, float32
    `[..., E]`.
  """
  logits = jnp.matmul(x, router, precision=jax.lax.Precision.HIGHEST)
  probabilities = jax.nn.softmax(logits)
  return jax.lax.top_k(probabilities, count)[1], probabilities


def weights_of(experts: jax.Array, probabilities: jax.Array, *, normalize: bool) -> jax.Array:
  """Gathers `probabilities` `[..., E]` at `experts` `[..., k]`; `normalize` makes them sum to 1."""
  weights = jnp.take_along_axis(probabilities, experts, axis=-1)
  return weights / weights.sum(axis=-1, keepdims=True) if normalize else weights


def apply(
  x: jax.Array,
  weights: jax.Array,
  experts: jax.Array,
  kernels: tuple[jax.Array, jax.Array, jax.Array],
  activation: Callable[[jax.Array], jax.Array],
  dtype: DTypeLike,
) -> jax.Array:
  """Returns the weighted sum of each token's gated MLPs, float32 `[N, D]`.

  Args:
    x: Tokens, float32 `[N, D]`.
    weights, experts: Experts of each token and their weights, `[N, k]`.
    kernels: Gate and up `[E, D, F]`, down `[E, F, D]`.
    activation: Activation of the gate.
    dtype: Dtype of the operands.
  """
  gate, up, down = kernels
  chosen = experts.reshape(-1)  # [N * k]
  order = jnp.argsort(chosen)
  sizes = jnp.bincount(chosen, length=gate.shape[0]).astype(jnp.int32)  # [E]
  rows = x[order // experts.shape[-1]]  # [N * k, D], sorted by expert
  inner = activation(grouped_matmul(rows, gate, sizes, dtype))
  inner *= grouped_matmul(rows, up, sizes, dtype)
  found = grouped_matmul(inner, down, sizes, dtype)[jnp.argsort(order)]
  return (found.reshape(*experts.shape, -1) * weights[..., None]).sum(axis=-2)
