"""Compares KL estimators with exact sums over a small vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agent_gspo.algorithms.objectives import kl

_ALL = (kl.k1, kl.k2, kl.k3)


def _policies():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(rng.normal(size=(2, 50)), jnp.float32)
  return jax.nn.log_softmax(logits, axis=-1)


def _exact():
  log_p, log_q = (np.asarray(v, np.float64) for v in _policies())
  return np.exp(log_p), log_p - log_q


@pytest.mark.parametrize('wrap', [jax.jit, lambda f: f])
def test_equal_the_formulas(wrap):
  p, q = np.log([0.5, 0.2, 0.3]), np.log([0.1, 0.6, 0.3])
  d = p - q
  for estimator, expected in zip(_ALL, (d, d**2 / 2, np.exp(-d) + d - 1), strict=True):
    found = wrap(estimator)(jnp.float32(p), jnp.float32(q))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_k1_and_k3_are_unbiased_and_k2_is_nearly():
  p, d = _exact()
  log_p, log_q = _policies()
  exact = np.sum(p * d)
  for estimator in (kl.k1, kl.k3):
    np.testing.assert_allclose(np.sum(p * np.asarray(estimator(log_p, log_q))), exact, rtol=1e-5)
  near = log_p + 0.05 * (log_q - log_p)
  near = jax.nn.log_softmax(near)
  small = float(jnp.sum(jnp.exp(log_p) * kl.k3(log_p, near)))
  np.testing.assert_allclose(jnp.sum(jnp.exp(log_p) * kl.k2(log_p, near)), small, rtol=0.05)


def test_k2_and_k3_are_never_negative():
  p, _ = _exact()
  log_p, log_q = _policies()
  drawn = np.random.default_rng(1).choice(50, 2_000, p=p / p.sum())
  k1, k2, k3 = (np.asarray(k(log_p[drawn], log_q[drawn])) for k in _ALL)
  assert k1.min() < 0
  assert k2.min() >= 0
  assert k3.min() >= 0
  for estimator in (kl.k2, kl.k3):
    np.testing.assert_array_equal(estimator(log_p, log_p), 0.0)
    assert (np.asarray(estimator(log_p, log_p + 1e-4)) >= 0).all()


def test_as_a_loss_k1_has_no_pull_k2_pulls_like_the_reverse_kl_and_k3_like_the_forward_kl():
  p, d = _exact()
  log_p, log_q = _policies()
  expected_loss = lambda logits, estimator: jnp.sum(
    jax.lax.stop_gradient(jnp.exp(log_p)) * estimator(jax.nn.log_softmax(logits), log_q)
  )
  gradient = lambda estimator: jax.grad(expected_loss)(log_p, estimator)
  np.testing.assert_allclose(gradient(kl.k1), 0.0, atol=1e-7)
  # d/dlogits of KL(pi || ref) = p (d - KL), and of KL(ref || pi) = p - q.
  np.testing.assert_allclose(gradient(kl.k2), p * (d - np.sum(p * d)), atol=1e-6)
  np.testing.assert_allclose(gradient(kl.k3), p - np.exp(np.log(p) - d), atol=1e-6)
  assert set(kl.LOSS_ESTIMATORS.values()) == {kl.k2, kl.k3}
  assert kl.LOSS_ESTIMATORS['k3'] is kl.k3


@pytest.mark.parametrize('estimator', _ALL)
def test_no_gradient_flows_into_the_reference(estimator):
  log_p, log_q = _policies()
  nothing = jax.grad(lambda reference: estimator(log_p, reference).sum())(log_q)
  np.testing.assert_array_equal(nothing, 0.0)
  with pytest.raises(AssertionError):
    estimator(log_p, log_q[:-1])


@pytest.mark.parametrize('d', [-1e3, -25.0, 25.0, 1e3])
def test_k3_of_an_excluded_token_is_finite(d):
  value, gradient = jax.value_and_grad(lambda p: kl.k3(p, jnp.zeros(1))[0])(jnp.full(1, d))
  assert np.isfinite(value)
  assert np.isfinite(gradient).all()
  expected = np.exp(20.0) - 21 if d < 0 else d - 1  # bounded at d = -20, exact above it
  np.testing.assert_allclose(value, expected, rtol=1e-6)
