"""Compares results and gradients of every attention with the reference's."""

from __future__ import annotations

import functools
import types

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from hypothesis import strategies as st

from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.ops.attention import (
  attend,
  blockwise,
  gpu,
  masks,
  own_column,
  reference,
  tpu,
)
from agent_gspo.packing import prefix_tree

_TREES = {  # sequences that share a row of 80 columns
  'one text': [range(1, 60)],
  'samples of a prompt': [[*range(1, 20), 90 + n, *range(30, 30 + 4 * n)] for n in range(5)],
  'branches of one token': [[*range(1, 30), 40 + n] for n in range(40)],
  'single tokens': [[n] for n in range(1, 40)],
  'strangers': [range(20 * n, 20 * n + 19) for n in range(1, 4)],
  'a tree that fills its row': [range(1, 81)],
}
_OTHERS = {
  'blockwise': blockwise.attend,
  'tpu': functools.partial(tpu.attend, interpret=True),
  'gpu': functools.partial(gpu.attend, implementation='xla'),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
  """Splits rows into several blocks; those of the kernel are at least a tile wide."""
  monkeypatch.setattr(blockwise, 'BLOCK', 16)
  monkeypatch.setattr(tpu, 'BLOCK', 128)


def _mask(name: str, width: int = 80, window: int | None = None) -> masks.TreeMask:
  """Returns the mask of one row, and of one that is all padding."""
  tree = prefix_tree.pack([np.asarray(x, np.int32) for x in _TREES[name]], width)
  assert len(tree.tokens) == 1
  padding = np.arange(1, width + 1, dtype=np.int32)[None]
  mask = masks.TreeMask(jnp.asarray(np.concatenate([tree.subtree_end, padding])))
  positions = np.concatenate([tree.positions, np.zeros_like(padding)])
  return mask if window is None else mask.within(window, jnp.asarray(positions))


def _inputs(rows: int, width: int, *, heads: int = 2, group: int = 3, dtype=jnp.float32, seed=0):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
  q = draw(rows, heads, group, width, 8)
  return q, draw(rows, heads, width, 8), draw(rows, heads, width, 8), draw(*q.shape)


def _value_and_gradients(attention, q, k, v, weights):
  def weighted(q, k, v):
    out = attention(q, k, v)
    return (out.astype(jnp.float32) * weights).sum(), out

  gradients, out = jax.jit(jax.grad(weighted, (0, 1, 2), has_aux=True))(q, k, v)
  return out, gradients


@functools.partial(jax.jit, static_argnames=('attention', 'cap'))
def _computed(attention, mask, inputs, cap):
  """Returns output and gradients; compiled once for masks of one shape."""
  return _value_and_gradients(lambda *of: attention(*of, mask, **dict(cap)), *inputs)


def _assert_like_the_reference(name, mask, inputs, **cap):
  expected, expected_gradients = _computed(reference.attend, mask, inputs, (*cap.items(),))
  found, gradients = _computed(_OTHERS[name], mask, inputs, (*cap.items(),))
  np.testing.assert_allclose(found, expected, atol=1e-5)
  chex.assert_trees_all_close(gradients, expected_gradients, atol=1e-4)


@pytest.mark.parametrize('tree', _TREES)
@pytest.mark.parametrize('name', _OTHERS)
def test_like_the_reference(name, tree):
  _assert_like_the_reference(name, _mask(tree), _inputs(2, 80))


@pytest.mark.parametrize('tree', ['samples of a prompt', 'strangers'])
@pytest.mark.parametrize('name', ['blockwise', 'tpu'])
def test_over_several_blocks_some_of_which_nobody_sees(name, tree):
  _assert_like_the_reference(name, _mask(tree, 300), _inputs(2, 300, group=2))


@pytest.mark.parametrize('tree', ['samples of a prompt', 'branches of one token', 'one text'])
@pytest.mark.parametrize('name', _OTHERS)
def test_windows_count_along_the_sequence(name, tree):
  mask = _mask(tree, 100, window=9)
  packed = prefix_tree.pack([np.asarray(x, np.int32) for x in _TREES[tree]], 100)
  expected = np.zeros((100, 100), bool)
  for columns in packed.columns:
    for at, query in enumerate(columns):
      expected[query, columns[max(0, at - 8) : at + 1]] = True
  np.fill_diagonal(expected, True)  # padding
  np.testing.assert_array_equal(mask.dense()[0], expected)
  _assert_like_the_reference(name, mask, _inputs(2, 100))


@pytest.mark.parametrize('window', [9, 140, 250])
@pytest.mark.parametrize('name', ['blockwise', 'tpu'])
def test_windows_over_several_blocks(name, window):
  """Later samples of a prompt lie farther from it in the row than in their own sequence."""
  shared = list(range(1, 130))
  texts = [[*shared, 900 + n, *range(300, 370)] for n in range(4)]
  tree = prefix_tree.pack([np.asarray(x, np.int32) for x in [*texts, list(range(1, 60))]], 512)
  mask = masks.TreeMask(jnp.asarray(tree.subtree_end)).within(window, jnp.asarray(tree.positions))
  _assert_like_the_reference(name, mask, _inputs(len(tree.tokens), 512, heads=1, group=2))


@pytest.mark.parametrize('window', [None, 9])
@pytest.mark.parametrize('name', ['blockwise', 'tpu'])
def test_capped_scores(name, window):
  mask, inputs = _mask('samples of a prompt', 100, window), _inputs(2, 100)
  _assert_like_the_reference(name, mask, inputs, cap=1.5)
  q, k, v, _ = inputs
  capped, plain = (reference.attend(q, k, v, mask, cap=cap) for cap in (1.5, None))
  assert np.abs(capped - plain).max() > 0.1
  np.testing.assert_allclose(reference.attend(q, k, v, mask, cap=1e6), plain, atol=1e-5)


def test_cudnn_refuses_to_cap_scores():
  q, k, v, _ = _inputs(2, 80)
  with pytest.raises(ValueError, match=r"model.attention='gpu' has no attn_logit_softcapping"):
    attend.attend(q, k, v, _mask('one text'), implementation='gpu', cap=50.0)


@hypothesis.settings(deadline=None, max_examples=15)
@hypothesis.given(st.data())
@pytest.mark.parametrize('name', ['blockwise', 'tpu'])
def test_random_trees(name, data):
  tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12)
  sequences = data.draw(st.lists(tokens, min_size=1, max_size=8))
  tree = prefix_tree.pack([np.asarray(x, np.int32) for x in sequences], 40)
  mask = masks.TreeMask(jnp.asarray(np.resize(tree.subtree_end, (3, 40))))  # three rows
  seed = data.draw(st.integers(0, 99))
  _assert_like_the_reference(name, mask, _inputs(3, 40, heads=1, group=2, seed=seed))


@pytest.mark.parametrize('name', ['blockwise', 'tpu'])
def test_bfloat16_is_as_near_as_it_gets(name):
  mask = _mask('samples of a prompt')
  q, k, v, weights = _inputs(2, 80, dtype=jnp.bfloat16)
  wide = tuple(x.astype(jnp.float32) for x in (q, k, v, weights))
  dense = lambda q, k, v: reference.attend(q, k, v, mask)
  expected, expected_gradients = _value_and_gradients(dense, *wide)
  found, gradients = _value_and_gradients(lambda *of: _OTHERS[name](*of, mask), q, k, v, wide[3])
  for one, other in zip((found, *gradients), (expected, *expected_gradients), strict=True):
    assert one.dtype == jnp.bfloat16
    error = np.linalg.norm(one.astype(jnp.float32) - other) / np.linalg.norm(other)
    assert 0 < error < 0.01


def test_weights_are_rounded_alike_in_one_block_and_in_several():
  """Rows of decoding and of training must agree, see `scale.above`."""
  mask = masks.causal(jnp.array([300]), 300)
  q, k, v, _ = _inputs(1, 300, dtype=jnp.bfloat16)
  expected = np.asarray(reference.attend(q, k, v, mask), np.float32)
  for name in ('blockwise', 'tpu'):
    found = np.asarray(_OTHERS[name](q, k, v, mask), np.float32)
    assert (found != expected).mean() < 0.01  # sums in another order, rounded at the end


@pytest.mark.parametrize('name', ['blockwise', 'tpu'])
def test_a_decoder_with_adapters_computes_the_same_with_any(name, monkeypatch):
  monkeypatch.setattr(tpu, 'attend', _OTHERS['tpu'])
  mask = _mask('samples of a prompt')
  tokens = np.random.default_rng(0).integers(0, 300, mask.subtree_end.shape)
  tokens = jnp.asarray(tokens, jnp.int32)
  adapter = tokens % 3 - 1  # -1 for none
  config = tiny.CONFIG.replace(lora_rank=2, num_adapters=2)
  params = tiny.params(config)

  def loss(params, attention):
    model = Transformer(config.replace(attention=attention))
    positions = jnp.zeros_like(tokens)
    hidden, _ = model.apply({'params': params}, tokens, positions, mask, adapter=adapter)
    return (hidden * jnp.cos(jnp.arange(hidden.shape[-1]))[None, None]).sum(), hidden

  of = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
  (gradients, hidden), expected = of(params, name), of(params, 'reference')
  np.testing.assert_allclose(hidden, expected[1], atol=1e-4)
  chex.assert_trees_all_close(gradients, expected[0], atol=1e-3, rtol=1e-3)


def test_a_causal_mask_is_that_of_rows_with_padding():
  seen = np.asarray(masks.causal(jnp.array([3, 5]), 5).dense())
  for row, length in zip(seen, (3, 5), strict=True):
    np.testing.assert_array_equal(row[:length, :length], np.tril(np.ones((length, length), bool)))
    assert not row[:length, length:].any()


def test_queries_see_what_their_cache_mask_says():
  q, k, v, _ = _inputs(2, 6)
  seen = jnp.asarray([[True, False, True, True, False, False], [True] * 6])
  for one_by_one in (False, True):
    out = reference.attend(q[:, :, :, :1], k, v, masks.CacheMask(seen), sum_values=one_by_one)
    for row in range(2):
      kept = np.flatnonzero(seen[row])
      scores = np.einsum('kgtd,ksd->kgts', q[row, :, :, :1], k[row][:, kept])
      weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
      expected = np.einsum('kgts,ksd->kgtd', weights, v[row][:, kept])
      np.testing.assert_allclose(out[row], expected, atol=1e-5)


@pytest.mark.slow
def test_many_rows_read_a_cache_as_it_was(monkeypatch):
  """On a TPU; a step of the decoder gives what it gives where the cache is written first."""
  monkeypatch.setattr(own_column, 'ROWS', 4)
  calls = []
  attend_apart = own_column.attend
  counted = lambda *of, cap: (calls.append(1), attend_apart(*of, cap=cap))[1]
  monkeypatch.setattr(own_column, 'attend', counted)
  params = init_params(tiny.CONFIG, jax.random.key(0))
  config = tiny.CONFIG.replace(attention='tpu', attention_cap=1.0)
  rng = np.random.default_rng(0)
  cache = jax.tree.map(
    lambda _: jnp.asarray(rng.normal(size=(4, config.num_kv_heads, 24, config.head_dim)), 'f4'),
    ((0, 0),) * config.num_layers,
  )
  before = jnp.asarray(rng.random((4, 24)) < 0.6).at[:, 20].set(False)
  seen = before.at[:, 20].set(True)
  step = lambda rows, mask: Transformer(config).apply(
    {'params': params},
    jnp.arange(5, 5 + rows)[:, None],
    jnp.full((rows, 1), 20),
    jax.tree.map(lambda x: x[:rows], mask),
    jax.tree.map(lambda x: x[:rows], cache),
    20,
  )
  expected = step(4, masks.CacheMask(seen))
  assert not calls
  found = step(4, masks.CacheMask(seen, before))
  assert len(calls) == config.num_layers
  chex.assert_trees_all_close(found, expected, atol=1e-5)
  step(3, masks.CacheMask(seen, before))  # too few
  assert len(calls) == config.num_layers


def test_a_row_is_padded_by_less_than_a_tile(monkeypatch):
  monkeypatch.setattr(tpu, 'BLOCK', 512)
  blocks = {length: tpu.block_of(length) for length in (1, 128, 129, 500, 1024, 1088, 1664, 8192)}
  assert blocks == {
    **{1: 128, 128: 128, 129: 256, 500: 512},
    **{1024: 512, 1088: 384, 1664: 128, 8192: 512},
  }
  assert all(-(-length // block) * block - length < 128 for length, block in blocks.items())


def test_long_rows_keep_no_scores():
  """Compiles, without running, a row of 8192 columns, whose scores would take 4 GiB."""
  shape = jax.ShapeDtypeStruct
  arguments = shape((1, 2, 8, 8192, 8), jnp.float32), shape((1, 2, 8192, 8), jnp.float32)
  mask = masks.TreeMask(shape((1, 8192), jnp.int32))
  loss = lambda q, k, v, mask: attend.attend(q, k, v, mask).sum()
  compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(arguments[0], *arguments[1:] * 2, mask)
  assert compiled.compile().memory_analysis().temp_size_in_bytes < 64 * 2**20


def test_an_implementation_that_there_is_not():
  q, k, v, _ = _inputs(1, 4)
  with pytest.raises(ValueError, match="attention='flash' is unknown; use one of auto, reference"):
    attend.attend(q, k, v, masks.causal(jnp.array([4]), 4), implementation='flash')


def test_what_these_devices_have_not_is_refused(monkeypatch):
  attend.check('auto', 'float32')
  with pytest.raises(ValueError, match=r"model.attention='tpu' does not run here: .* Use 'auto'"):
    attend.check('tpu', 'bfloat16')
  monkeypatch.setattr('jax.default_backend', lambda: 'gpu')
  attend.check('gpu', 'bfloat16')
  with pytest.raises(ValueError, match=r"'gpu' has no float32. Set model.dtype='bfloat16'"):
    attend.check('gpu', 'float32')


@pytest.mark.parametrize(
  ('capability', 'width', 'columns', 'chosen'),
  [
    ('8.0', 128, 2048, 'gpu'),
    ('8.0', 256, 2048, 'blockwise'),
    ('8.0', 256, 1024, 'reference'),  # blocks are slow on a GPU
    ('9.0', 256, 2048, 'gpu'),
    ('9.0', 12, 2048, 'blockwise'),
    ('7.5', 64, 2048, 'blockwise'),
    ('gfx90a', 64, 2048, 'blockwise'),
  ],
)
def test_a_gpu_without_such_attention_takes_another(
  monkeypatch, capability, width, columns, chosen
):
  device = types.SimpleNamespace(compute_capability=capability)
  monkeypatch.setattr('jax.default_backend', lambda: 'gpu')
  monkeypatch.setattr('jax.local_devices', lambda: [device])
  monkeypatch.setattr(attend, '_tree_attention', lambda name: lambda *_: name)
  q = jnp.zeros((1, 1, 1, columns, width), jnp.bfloat16)
  mask = masks.causal(jnp.array([columns]), columns)
  assert attend.attend(q, q[:, :, 0], q[:, :, 0], mask) == chosen
  takes = functools.partial(attend.chosen, columns=columns, head_dim=width, cap=None)
  assert takes('auto', 'gpu', q.dtype) == chosen
  assert takes('auto', 'gpu', jnp.dtype('float32')) in ('blockwise', 'reference')
  assert takes('gpu', 'cpu', jnp.dtype('float32')) == 'gpu'


def test_cudnn_gets_rows_that_its_backward_pass_takes(monkeypatch):
  columns = []
  attention = jax.nn.dot_product_attention

  def seen(q, *others, **options):
    columns.append(q.shape[1])
    return attention(q, *others, **options)

  monkeypatch.setattr('jax.nn.dot_product_attention', seen)
  q, k, v, _ = _inputs(1, 13)
  out = _OTHERS['gpu'](q, k, v, masks.causal(jnp.array([13]), 13))
  assert columns == [64]
  assert out.shape == q.shape


@pytest.mark.slow
def test_a_recomputed_block_may_keep_attentions_result():
  config = tiny.CONFIG.replace(attention='blockwise', remat=True)
  params = init_params(config, jax.random.key(0))
  tokens = jnp.arange(128)[None, :] % 7
  mask = masks.causal(jnp.array([128]), 128)

  def gradient(keeps):
    model = Transformer(config.replace(remat_keeps=keeps))
    total = lambda params: model.apply({'params': params}, tokens, tokens, mask)[0].sum()
    return jax.make_jaxpr(jax.grad(total))(params), jax.jit(jax.grad(total))(params)

  (again, expected), (once, found) = gradient('nothing'), gradient('attention')
  chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-4)  # up to 839
  loops = lambda program: str(program).count('while[')  # over blocks
  assert loops(again) == 3 * config.num_layers
  assert loops(once) == 2 * config.num_layers
