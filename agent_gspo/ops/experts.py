"""Routes tokens to experts and applies them: no expert has a limit, so no token is dropped."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from agent_gspo.ops.precision import grouped_matmul


def route(
  x: jax.Array, router: jax.Array, count: int, *, normalize: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Chooses the most probable experts of each token, in float32 on any device.

  Args:
    x: Float32 `[..., D]`.
    router: Kernel `[D, E]`.
    count: Experts per token, `k`.
    normalize: Whether the weights of the chosen experts are normalized to sum to 1.

  Returns:
    Weights of the chosen experts, float32 `[..., k]`; the experts, int32 `[..., k]`, the most
    probable first; probabilities of all experts, float32 `[..., E]`.
  """
  logits = jnp.matmul(x, router, precision=jax.lax.Precision.HIGHEST)
  probabilities = jax.nn.softmax(logits)
  weights, experts = jax.lax.top_k(probabilities, count)
  if normalize:
    weights /= weights.sum(axis=-1, keepdims=True)
  return weights, experts, probabilities


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
    weights, experts: Results of `route`, `[N, k]`.
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
