"""Tests families whose layers differ, in the sampler and in packed rows.

Windows are shorter than the sequences.
"""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from agent_gspo.models.config import SlidingWindow
from agent_gspo.models.transformer import Transformer
from agent_gspo.ops.attention import masks
from agent_gspo.packing import prefix_tree
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler

_WIDTH = 5
_NEAR = SlidingWindow(_WIDTH, (True, False), 1e4)
_CONFIG = tiny.CONFIG.replace(family='gemma3_text', sliding=_NEAR, query_scalar=24)
_CONFIGS = {
  'gemma3': _CONFIG,
  'gemma2': tiny.CONFIG.replace(family='gemma2', sliding=_NEAR, attention_cap=1.5, logit_cap=3.0),
  'mistral': tiny.CONFIG.replace(
    family='mistral', sliding=SlidingWindow(_WIDTH, (True, True), 1e4), tie_embeddings=False
  ),
  'smollm3': tiny.CONFIG.replace(family='smollm3', rope_layers=(True, False)),
  'olmo2': tiny.CONFIG.replace(family='olmo2'),
  'qwen3_moe': tiny.MIXTURE,
  'olmoe': tiny.MIXTURE.replace(family='olmoe', norm_topk=False),
}


def _params(config=_CONFIG):
  return tiny.params(config)


def test_a_token_beyond_all_windows_changes_nothing():
  config = _CONFIG.replace(sliding=SlidingWindow(_WIDTH, (True, True), 1e4))
  sequence = np.arange(40, 60)
  read = functools.partial(tiny.logits, config, _params())
  far = 2 * (_WIDTH - 1)  # tokens back that two layers reach
  changes = np.abs(read(sequence) - read([7, *sequence[1:]])).max(axis=1) > 1e-6
  np.testing.assert_array_equal(changes, np.arange(20) <= far)


@pytest.mark.parametrize('name', _CONFIGS)
def test_decode_equals_full_recomputation(name):
  config = _CONFIGS[name]
  rng = np.random.default_rng(0)
  context = rng.integers(0, 300, 6)
  prompts = [np.append(context, rng.integers(0, 300, n)).astype(np.int32) for n in (1, 2, 9, 9, 20)]
  columns = [(0, n, 0, 0, 0) for n in range(len(prompts))]
  row_keys = keys.row_keys(keys.stream(0, 'train'), np.asarray(columns))
  sampler = Sampler(config, max_new_tokens=4 * _WIDTH, prefill_length=64)
  samples = sampler(_params(config), prompts, row_keys, temperature=1.0, stop_ids=[299])
  assert max(map(len, samples.token_ids)) == 4 * _WIDTH
  for prompt, ids, found in zip(prompts, samples.token_ids, samples.logprobs, strict=True):
    logits = tiny.logits(config, _params(config), np.append(prompt, ids))
    logprobs = jax.nn.log_softmax(logits)[len(prompt) - 1 : -1]
    expected = jnp.take_along_axis(logprobs, ids[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
  ('name', 'attention'),
  [
    ('gemma3', 'reference'),
    ('qwen3_moe', 'blockwise'),
    *(
      pytest.param(name, attention, marks=pytest.mark.slow)
      for name in ('gemma3', 'gemma2', 'mistral', 'qwen3_moe')
      for attention in ('reference', 'blockwise')
      if (name, attention) not in (('gemma3', 'reference'), ('qwen3_moe', 'blockwise'))
    ),
  ],
)
def test_gradient_of_a_packed_row_is_that_of_its_sequences(name, attention):
  """Branches lie between a prompt and its later samples: more columns than the window holds."""
  rng = np.random.default_rng(1)
  context = rng.integers(0, 300, 9)
  sequences = [np.append(context[:n], rng.integers(0, 300, 12)) for n in (9, 9, 8, 4, 9, 0)]
  tree = prefix_tree.pack(sequences, 96)
  assert len(tree.tokens) == 1
  config = _CONFIGS[name]
  model = Transformer(config.replace(attention=attention))

  def nll(logits, sequence):
    found = jnp.take_along_axis(jax.nn.log_softmax(logits[:-1]), sequence[1:, None], axis=1)
    return -found.mean()

  def packed(params):
    mask = masks.TreeMask(jnp.asarray(tree.subtree_end))
    hidden, _ = model.apply({'params': params}, tree.tokens, tree.positions, mask)
    logits = model.apply({'params': params}, hidden, method='logits')[0]
    return sum(nll(logits[at], s) for at, s in zip(tree.columns, sequences, strict=True))

  def apart(params):
    return sum(nll(tiny.logits(config, params, s), s) for s in sequences)

  found, expected = (jax.jit(jax.value_and_grad(f))(_params(config)) for f in (packed, apart))
  chex.assert_trees_all_close(found, expected, atol=2e-5, rtol=1e-4)
