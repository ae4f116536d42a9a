"""Checks that bfloat16 rounds operands of matrix products, and nothing else.

Sampler and trainer then give nearly equal log-probs, whatever XLA fuses.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models.transformer import Layout, Transformer
from agent_gspo.ops.attention import masks, own_column, reference
from agent_gspo.packing import train_batches
from agent_gspo.sampling import keys, loop_weights
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding.placement import ONE_DEVICE
from agent_gspo.training import state as state_lib
from agent_gspo.training.policy_loss import Programs

_CONFIG = tiny.CONFIG.replace(dtype='bfloat16', num_layers=4)


def _rounded(x) -> np.ndarray:
  return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.parametrize('tied', [True, False])
def test_logits_are_sums_in_float32(tied):
  config = _CONFIG.replace(tie_embeddings=tied)
  params = tiny.params(config)
  head = params['embed']['embedding'].T if tied else params['lm_head']['kernel']
  hidden = np.random.default_rng(0).normal(size=(5, config.embed_dim)).astype(ml_dtypes.bfloat16)
  found = Transformer(config).apply({'params': params}, jnp.asarray(hidden), method='logits')
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, _rounded(hidden) @ _rounded(head), atol=1e-5)


@pytest.mark.parametrize(('queries', 'apart'), [(1, False), (3, False), (1, True)])
def test_attention_rounds_its_weights_once(queries, apart):
  """Decoding has one query a row, and forms of its own."""
  rng = np.random.default_rng(0)
  draw = lambda *shape: rng.normal(size=shape).astype(ml_dtypes.bfloat16)
  q, k, v = draw(2, 2, 3, queries, 8), draw(2, 2, 200, 8), draw(2, 2, 200, 8)
  seen = rng.random((2, 200)) < 0.8
  seen[:, 7] |= apart
  if apart:  # column 7 is the query's own, written to a cache that held other things there
    own = tuple(jnp.asarray(x[:, :, 7:8]) for x in (k, v))
    cache = tuple(jnp.asarray(x).at[:, :, 7].set(9) for x in (k, v))
    found = jax.jit(own_column.attend)(q, (cache, own), seen & (np.arange(200) != 7))
  else:
    attend = jax.jit(functools.partial(reference.attend, sum_values=True))
    found = attend(*map(jnp.asarray, (q, k, v)), masks.CacheMask(jnp.asarray(seen)))
  scores = np.einsum('bkgtd,bksd->bkgts', _rounded(q), _rounded(k))
  scores = np.where(seen[:, None, None, None], scores, -np.inf)
  highest = np.ceil(scores.max(axis=-1, keepdims=True) / np.log(2)) * np.log(2)
  weights = np.exp(scores - highest)
  expected = np.einsum('bkgts,bksd->bkgtd', _rounded(weights), _rounded(v))
  expected /= weights.sum(axis=-1, keepdims=True)
  # The result is rounded as well. XLA's exp differs in its last bit, which may round a weight the
  # other way; weights that are not rounded, or twice, change 17 % of the results.
  assert np.isclose(_rounded(found), expected, rtol=2**-8, atol=1e-5).mean() > 0.97


def test_routers_are_not_rounded_for_the_loop_of_tokens():
  config = tiny.MIXTURE.replace(dtype='bfloat16')
  _, weights = loop_weights.make(config, ONE_DEVICE, Layout(), gather_once=True)
  of_tokens, _ = weights(jax.tree.map(jnp.asarray, tiny.params(config)))(0)
  mlp = of_tokens['layers_1']['mlp']
  assert mlp['router']['kernel'].dtype == jnp.float32
  assert mlp['gate']['kernel'].dtype == jnp.bfloat16


def test_sampler_and_trainer_differ_little():
  params = tiny.params(_CONFIG)
  rng = np.random.default_rng(1)
  prompts = [rng.integers(0, 300, 20 + n % 3).astype(np.int32) for n in range(16)]
  found = Sampler(_CONFIG, max_new_tokens=24, prefill_length=128)(
    jax.tree.map(jnp.asarray, params),
    prompts,
    keys.row_keys(keys.stream(0, 'train'), np.arange(16)[:, None]),
    temperature=1.0,
    stop_ids=(),
  )
  messages = [
    tiny.message(prompt, ids, logprobs, ended=False)
    for prompt, ids, logprobs in zip(prompts, found.token_ids, found.logprobs, strict=True)
  ]
  updater = Programs(Transformer(_CONFIG), losses.gspo, optax.sgd(0.0), 1.0, entropy=False)
  batches = train_batches.pack_messages(messages, pack_length=96, micro_batch_size=2)
  trainer = updater.logprobs(state_lib.init(params, optax.sgd(0.0)), batches)
  gap = [np.abs(t - s.old_logprobs) for t, s in zip(trainer, batches, strict=True)]
  mean = sum(x.sum() for x in gap) / sum(b.loss_mask.sum() for b in batches)
  assert 0 < mean < 1e-3
