"""Compares routing and experts with a float64 loop over tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agent_gspo.ops import experts as experts_lib

_TOKENS, _WIDTH, _INNER, _EXPERTS, _K = 40, 8, 12, 5, 2


def _inputs(favorite: bool = False):
  """Returns tokens, router, gate, up, down; all tokens prefer a favorite expert."""
  rng = np.random.default_rng(0)
  draw = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)
  x = rng.normal(size=(_TOKENS, _WIDTH)).astype(np.float32)
  router = 4 * draw(_WIDTH, _EXPERTS)
  if favorite:
    x[:, 0], router[0, 3] = 1, 50
  kernels = draw(_EXPERTS, _WIDTH, _INNER), draw(_EXPERTS, _WIDTH, _INNER)
  return x, router, *kernels, draw(_EXPERTS, _INNER, _WIDTH)


def _mixture(dtype: str, normalize: bool, x, router, *kernels, experts=None):
  chosen, probabilities = experts_lib.route(x, router, _K)
  experts = chosen if experts is None else experts
  weights = experts_lib.weights_of(experts, probabilities, normalize=normalize)
  return experts_lib.apply(x, weights, experts, kernels, jax.nn.silu, dtype)


def _loop(normalize: bool, x, router, gate, up, down, experts=None) -> np.ndarray:
  """Computes one token and one expert at a time."""
  found = np.zeros_like(x)
  for n, token in enumerate(x):
    scores = np.exp(token @ router)
    chosen = np.argsort(-scores)[:_K] if experts is None else experts[n]
    for e in chosen:
      inner = token @ gate[e]
      out = (inner / (1 + np.exp(-inner)) * (token @ up[e])) @ down[e]
      found[n] += scores[e] / (scores[chosen].sum() if normalize else scores.sum()) * out
  return found


@pytest.mark.parametrize('favorite', [False, True])
@pytest.mark.parametrize('normalize', [False, True])
def test_experts_equal_a_loop_over_tokens(normalize, favorite):
  inputs = _inputs(favorite)
  expected = _loop(normalize, *(np.float64(x) for x in inputs))
  with jax.default_matmul_precision('highest'):
    found = _mixture('float32', normalize, *inputs)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  half = _mixture('bfloat16', normalize, *inputs)
  assert half.dtype == jnp.float32
  # The same experts, since tokens and router are not rounded for the choice.
  assert 0 < np.abs(half - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize('normalize', [False, True])
def test_experts_that_are_given_equal_a_loop(normalize):
  inputs = _inputs()
  rng = np.random.default_rng(2)
  experts = np.stack([rng.permutation(_EXPERTS)[:_K] for _ in range(_TOKENS)])
  expected = _loop(normalize, *(np.float64(x) for x in inputs), experts=experts)
  with jax.default_matmul_precision('highest'):
    found = _mixture('float32', normalize, *inputs, experts=experts)
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize('normalize', [False, True])
def test_gradient_equals_finite_differences(normalize):
  """Includes an expert without tokens, whose gradient is 0."""
  inputs = tuple(np.float64(x) for x in _inputs(favorite=True))
  rng = np.random.default_rng(1)
  target = rng.normal(size=inputs[0].shape)
  loss = lambda dtype, *of: jnp.sum(_mixture(dtype, normalize, *of) * target)
  gradient = jax.grad(loss, argnums=range(1, 6))
  with jax.default_matmul_precision('highest'):
    exact = gradient('float32', *map(np.float32, inputs))
  half = gradient('bfloat16', *map(np.float32, inputs))
  for i, (found, rounded) in enumerate(zip(exact, half, strict=True)):
    direction = rng.normal(size=inputs[i].shape)
    ends = []
    for step in (1e-6, -1e-6):
      moved = [*inputs[:i], inputs[i] + step * direction, *inputs[i + 1 :]]
      ends.append(np.sum(_loop(normalize, *moved) * target))
    assert np.sum(found * direction) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-3)
    error = np.linalg.norm(np.float32(rounded - found))
    assert 0 < error < 0.05 * np.linalg.norm(found)
