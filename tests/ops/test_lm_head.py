"""Compares log-probs, entropies and gradients with a softmax over all logits."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agent_gspo.ops import lm_head
from agent_gspo.ops.precision import matmul

_N, _D, _V = 300, 16, 50


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
  monkeypatch.setattr(lm_head, 'CHUNK_BYTES', 128 * 4 * _V)  # 300 tokens are three chunks


def _inputs(dtype=jnp.float32):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  targets = jnp.asarray(rng.integers(0, _V, _N), jnp.int32)
  return draw(_N, _D).astype(dtype), draw(_D, _V), targets, draw(_N)


def _plain(hidden, kernel, targets, temperature, cap=None):
  logits = hidden @ kernel
  logits = logits if cap is None else cap * jnp.tanh(logits / cap)
  logprobs = jax.nn.log_softmax(logits / temperature)
  entropy = -(jnp.exp(logprobs) * logprobs).sum(axis=1)
  return logprobs[jnp.arange(len(targets)), targets], entropy


class LmHeadTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_a_plain_softmax(self):
    hidden, kernel, targets, weights = _inputs()
    used = jnp.ones(_N, bool)
    ours = self.variant(functools.partial(lm_head.token_logprobs, temperature=0.7))
    expected = _plain(hidden, kernel, targets, 0.7)
    chex.assert_trees_all_close(ours(hidden, kernel, targets, used), expected, atol=1e-5)

    total = lambda logprobs: (logprobs * weights).sum()
    found = jax.grad(lambda h, k: total(ours(h, k, targets, used)[0]), (0, 1))(hidden, kernel)
    plain = jax.grad(lambda h, k: total(_plain(h, k, targets, 0.7)[0]), (0, 1))(hidden, kernel)
    chex.assert_trees_all_close(found, plain, atol=1e-4)


def test_capped_logits_with_ids_that_are_never_said():
  hidden, kernel, targets, weights = _inputs()
  used, targets, unsaid = jnp.ones(_N, bool), targets % 40, ((40, 45), (48, _V))
  said = np.r_[0:40, 45:48]
  ours = lambda h, k: lm_head.token_logprobs(
    h, k, targets, used, temperature=0.7, unsaid=unsaid, cap=1.5
  )
  plain = lambda h, k: _plain(h, k[:, said], targets, 0.7, cap=1.5)
  chex.assert_trees_all_close(ours(hidden, kernel), plain(hidden, kernel), atol=1e-5)
  gradient = lambda f: jax.grad(lambda h, k: (f(h, k)[0] * weights).sum(), (0, 1))(hidden, kernel)
  chex.assert_trees_all_close(gradient(ours), gradient(plain), atol=1e-4)


def test_ids_that_count_as_one_token_have_the_probability_of_them_all():
  hidden, kernel, targets, weights = _inputs()
  used, ids = jnp.ones(_N, bool), jnp.asarray([49, 3, 17])

  def ours(h, k):
    logprobs, _ = lm_head.token_logprobs(h, k, targets, used, temperature=0.7, cap=1.5)
    return lm_head.any_logprobs(logprobs, h, k, targets, ids, temperature=0.7, cap=1.5)

  def plain(h, k):
    each = jnp.exp(jax.nn.log_softmax(1.5 * jnp.tanh(h @ k / 1.5) / 0.7))
    own = each[jnp.arange(_N), targets]
    return jnp.log(jnp.where(jnp.isin(targets, ids), each[:, ids].sum(axis=1), own))

  chex.assert_trees_all_close(ours(hidden, kernel), plain(hidden, kernel), atol=1e-5)
  total = lambda function, h, k: (function(h, k) * weights).sum()
  found, expected = (
    jax.grad(functools.partial(total, f), (0, 1))(hidden, kernel) for f in (ours, plain)
  )
  chex.assert_trees_all_close(found, expected, atol=1e-4)


def test_chunks_that_nobody_uses_are_zeros_without_gradient():
  hidden, kernel, targets, _ = _inputs()
  used = jnp.arange(_N) < 100
  logprobs, entropy = lm_head.token_logprobs(hidden, kernel, targets, used)
  expected, _ = _plain(hidden, kernel, targets, 1.0)
  np.testing.assert_allclose(logprobs[:128], expected[:128], atol=1e-5)  # the chunk that is used
  assert not logprobs[128:].any()
  assert not entropy[128:].any()
  sums = lambda hidden: lm_head.token_logprobs(hidden, kernel, targets, used)[0].sum()
  gradient = jax.grad(sums)(hidden)
  assert gradient[:128].any(axis=1).all()
  assert not gradient[128:].any()


def test_tokens_that_are_used_are_found_wherever_they_stand():
  hidden, kernel, targets, weights = _inputs()
  used = jnp.arange(_N) % 3 == 1
  total = lambda logprobs: (logprobs * weights * used).sum()
  ours = lambda hidden: lm_head.token_logprobs(hidden, kernel, targets, used)
  plain = lambda hidden: _plain(hidden, kernel, targets, 1.0)
  for found, expected in zip(ours(hidden), plain(hidden), strict=True):
    np.testing.assert_allclose(found[used], expected[used], atol=1e-5)
    assert (found == 0).sum() > 100  # a hundred are used, and one chunk of 128 is computed
  gradients = [jax.grad(lambda h, f=f: total(f(h)[0]))(hidden) for f in (ours, plain)]
  np.testing.assert_allclose(*gradients, atol=1e-4)


def test_entropy_costs_nothing_where_nobody_asks_and_has_no_gradient():
  hidden, kernel, targets, _ = _inputs()
  used = jnp.ones(_N, bool)
  without = lm_head.token_logprobs(hidden, kernel, targets, used, entropy=False)
  np.testing.assert_array_equal(without[1], 0)
  with_it = lambda hidden: lm_head.token_logprobs(hidden, kernel, targets, used)
  np.testing.assert_array_equal(without[0], with_it(hidden)[0])
  assert not jax.grad(lambda hidden: with_it(hidden)[1].sum())(hidden).any()


def test_bfloat16_rounds_operands_alone():
  hidden, kernel, targets, weights = _inputs(jnp.bfloat16)
  used = jnp.ones(_N, bool)
  wide = hidden.astype(jnp.float32), kernel.astype(jnp.bfloat16).astype(jnp.float32)
  logprobs, _ = lm_head.token_logprobs(hidden, kernel, targets, used)
  np.testing.assert_allclose(logprobs, _plain(*wide, targets, 1.0)[0], atol=1e-5)

  ours = lambda h, k: (lm_head.token_logprobs(h, k, targets, used)[0] * weights).sum()
  plain = lambda h, k: (_plain(h, k, targets, 1.0)[0] * weights).sum()
  found, expected = jax.grad(ours, (0, 1))(hidden, kernel), jax.grad(plain, (0, 1))(*wide)
  assert [x.dtype for x in found] == [jnp.bfloat16, jnp.float32]
  for one, other in zip(found, expected, strict=True):
    error = np.linalg.norm(one.astype(jnp.float32) - other) / np.linalg.norm(other)
    assert 0 < error < 0.01


@pytest.mark.parametrize('tokens', [1, 128, 129, 300, 1000, 1281])
def test_chunks_are_alike(tokens):
  size = lm_head.chunk_tokens(_V, tokens)
  chunks = -(-tokens // size)
  assert size * 4 * _V <= lm_head.CHUNK_BYTES
  assert chunks * size - tokens < chunks * 128  # less than a tile of padding each


@pytest.mark.parametrize('shape', [(3, 5), (7,), (2, 3, 4)])
def test_gradients_of_a_rounded_product(shape):
  rng = np.random.default_rng(1)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  x, kernel, weights = draw(*shape, _D), draw(_D, 6), draw(*shape, 6)
  loss = lambda x, kernel, dtype: (matmul(x, kernel, dtype) * weights).sum()
  expected = jax.grad(loss, (0, 1))(x, kernel, jnp.float32)
  for one, other in zip(jax.grad(loss, (0, 1))(x, kernel, 'bfloat16'), expected, strict=True):
    assert one.dtype == jnp.float32
    error = np.linalg.norm(one - other) / np.linalg.norm(other)
    assert 0 < error < 0.01
