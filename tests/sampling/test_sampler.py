"""Compares the sampler with full recomputation, transformers, the trainer and itself."""

from __future__ import annotations

import collections
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pretrained
import pytest
import scipy.stats
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models.io import hf
from agent_gspo.models.transformer import Layout, Transformer
from agent_gspo.ops.attention import masks
from agent_gspo.packing import train_batches
from agent_gspo.sampling import categorical, keys, loop_weights
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sampling.shapes import bucket
from agent_gspo.sharding.placement import ONE_DEVICE
from agent_gspo.training import state as state_lib
from agent_gspo.training.policy_loss import Programs

_ROWS = 200
_NEW = 8
_TEMPERATURE = 0.8
# About a fifth of all tokens ends a message; 0 also fills whatever is not in use.
_STOPS = (0, *range(4, 300, 5))


@functools.cache
def _sampler(**options: int) -> Sampler:
  return Sampler(tiny.CONFIG, max_new_tokens=_NEW, prefill_length=112, **options)


@functools.cache
def _params():
  """Makes token 0, a stop token, likely: an EOS that looks like padding."""
  embedding = tiny.params()['embed']['embedding'].copy()
  embedding[0] *= 3
  return {**tiny.params(), 'embed': {'embedding': embedding}}


@functools.cache
def _prompts():
  """Returns 50 questions, 4 samples each: shared context, uneven lengths, some all zeros."""
  rng = np.random.default_rng(0)
  system = rng.integers(0, 300, 5)
  prompts = []
  for question in range(_ROWS // 4):
    length = rng.integers(1, 26) if question else 110  # longer than a prefill row
    prompts += [np.concatenate([system, rng.integers(0, 300, length)]).astype(np.int32)] * 4
  prompts[4:12] = [np.zeros(n, np.int32) for n in range(1, 9)]
  return prompts


def _keys(rows=range(_ROWS), *, seed=0, step=3):
  columns = [(step, keys.question_number(f'q{n // 4}'), n % 4, 1, 0) for n in rows]
  return keys.row_keys(keys.stream(seed, 'train'), np.asarray(columns))


def _sample(rows=range(_ROWS), *, sampler=None, row_keys=None, limits=None, **options):
  rows = list(rows)
  options = {'temperature': _TEMPERATURE, 'stop_ids': _STOPS, **options}
  return (sampler or _sampler())(
    _params(),
    [_prompts()[n] for n in rows],
    _keys(rows) if row_keys is None else row_keys,
    limits=limits,
    **options,
  )


@pytest.fixture(scope='module')
def everything():
  """Samples all rows in one call, which decodes 96, 96 and 8 of them together."""
  return _sample()


def _assert_rows(found, expected, rows):
  for i, n in enumerate(rows):
    np.testing.assert_array_equal(found.token_ids[i], expected.token_ids[n], err_msg=f'row {n}')
    np.testing.assert_allclose(found.logprobs[i], expected.logprobs[n], atol=1e-5)
    assert found.ended[i] == expected.ended[n]


@functools.cache
def _full_logits():
  """Returns float32 logits `[N, T, V]` of whole rows without a cache, jitted."""

  def run(params, tokens):
    count, width = tokens.shape
    mask = masks.causal(jnp.full(count, width), width)
    positions = jnp.tile(jnp.arange(width), (count, 1))
    model = Transformer(tiny.CONFIG)
    hidden, _ = model.apply({'params': params}, tokens, positions, mask)
    return model.apply({'params': params}, hidden, method='logits')

  return jax.jit(run)


def _recomputed(samples, rows=range(_ROWS)):
  """Returns for each row the float64 logits `[W, V]` that its tokens were sampled from."""
  tokens = np.full((_ROWS, 124), 3, np.int32)
  for i, n in enumerate(rows):
    path = np.concatenate([_prompts()[n], samples.token_ids[i]])
    tokens[i, : len(path)] = path
  table = np.asarray(_full_logits()(_params(), tokens), np.float64)
  return [
    table[i, len(_prompts()[n]) - 1 :][: len(samples.token_ids[i])] for i, n in enumerate(rows)
  ]


def _log_softmax(logits):
  return logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)


# What is sampled.


def test_cached_decode_equals_full_recomputation(everything):
  """Tokens from the rows' own uniforms, and log-probs at the temperature sampled at."""
  drawn = 0
  for n, (logits, key) in enumerate(zip(_recomputed(everything), _keys(), strict=True)):
    logprobs = _log_softmax(logits / _TEMPERATURE)
    tokens = everything.token_ids[n]
    chosen = np.take_along_axis(logprobs, tokens[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(everything.logprobs[n], chosen, atol=1e-4)
    cdf = np.cumsum(np.exp(logprobs), axis=1)
    for t, token in enumerate(tokens):
      uniform = _uniform(key, t)
      # Beyond rounding error the token is the one whose interval holds the uniform.
      assert cdf[t, token] > uniform - 1e-5, (n, t)
      assert token == 0 or cdf[t, token - 1] <= uniform + 1e-5, (n, t)
      drawn += 1
  assert drawn > 2.5 * _ROWS


@jax.jit
def _uniform(key, t):
  return jax.random.uniform(jax.random.fold_in(key, t))


def test_rows_end_at_their_first_stop_token_or_limit(everything):
  lengths = np.asarray([len(ids) for ids in everything.token_ids])
  for ids, logprobs, ended in zip(
    everything.token_ids, everything.logprobs, everything.ended, strict=True
  ):
    assert len(ids) == len(logprobs)
    stopped = np.isin(ids, _STOPS)
    assert not stopped[:-1].any()
    assert stopped[-1] == ended
    assert ended or len(ids) == _NEW
  assert len(set(lengths)) == _NEW  # ends everywhere, at once too
  assert 0.5 < everything.ended.mean() < 0.95
  assert sum(ids[-1] == 0 for ids in everything.token_ids) > 10


def test_shared_context_is_prefilled_once(everything):
  prefixes = {tuple(p[:n].tolist()) for p in _prompts() for n in range(1, len(p) + 1)}
  assert len(prefixes) <= everything.prefill_positions < sum(map(len, _prompts())) / 2


def test_a_row_does_not_depend_on_its_batch(everything):
  rng = np.random.default_rng(1)
  shuffled = rng.permutation(_ROWS)
  _assert_rows(_sample(shuffled), everything, shuffled)
  shuffled = shuffled[shuffled >= 4]  # here without the one much longer prompt
  for part in shuffled[:192].reshape(-1, 8):
    _assert_rows(_sample(part), everything, part)
  for n in shuffled[:25]:
    _assert_rows(_sample([n]), everything, [n])


def test_decoding_apart_and_leaving_early_change_nothing(everything):
  """Decodes all rows together until the end; by default most leave early."""
  full = _sampler(smallest_batch=256, decode_rows=256)
  _assert_rows(_sample(sampler=full), everything, range(_ROWS))
  assert tiny.compilations(full) == 4  # pool, prefill, start, decode: never a smaller batch
  assert tiny.compilations(_sampler()) > 6


@pytest.mark.slow
def test_few_shapes_write_the_same_with_few_programs(everything):
  few = _sampler(few_shapes=True)
  _assert_rows(_sample(sampler=few), everything, range(_ROWS))
  for rows in (range(1), range(5, 30), range(20, 40), range(_ROWS - 9)):
    _assert_rows(_sample(rows, sampler=few), everything, rows)
  assert few.decode._cache_size() <= 2  # one a doubling of the cache, whatever the rows
  assert few.keep._cache_size() == 0


@pytest.mark.parametrize('at_once', [1, 2, 3])
def test_batches_that_decode_beside_each_other_write_the_same(at_once, everything):
  sampler = _sampler(batches_at_once=at_once, decode_rows=_ROWS - 8)  # the last one is too small
  _assert_rows(_sample(sampler=sampler), everything, range(_ROWS))


@pytest.mark.parametrize('at_once', [1, 2])
def test_a_listener_hears_every_row_grow_and_changes_nothing(at_once):
  sampler, heard = _sampler(batches_at_once=at_once), collections.defaultdict(list)
  alone = _sample(sampler=sampler)
  before = tiny.compilations(sampler)
  found = _sample(sampler=sampler, listener=lambda n, ids: heard[n].append(ids.copy()))
  assert tiny.compilations(sampler) == before
  for n in range(_ROWS):
    np.testing.assert_array_equal(found.token_ids[n], alone.token_ids[n])
    np.testing.assert_array_equal(found.logprobs[n], alone.logprobs[n])
    for begun in heard[n]:
      np.testing.assert_array_equal(begun, found.token_ids[n][: len(begun)])
    lengths = [len(begun) for begun in heard[n]]
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(found.token_ids[n])
  assert np.mean([0 < len(heard[n][0]) < len(heard[n][-1]) for n in range(_ROWS)]) > 0.1


def test_a_listener_can_end_sampling():
  heard = []

  def listen(n, ids):
    heard.append(n)
    raise ZeroDivisionError

  with pytest.raises(ZeroDivisionError):
    _sample(range(80, 88), listener=listen)
  assert heard == [0]


def test_what_goes_wrong_in_a_batch_beside_another_is_raised(monkeypatch):
  sampler = _sampler(batches_at_once=2)
  monkeypatch.setattr(sampler, 'keep', lambda *_: 1 / 0)  # a row leaves
  with pytest.raises(ZeroDivisionError):
    _sample(sampler=sampler)


def test_equal_prompts_differ_by_their_keys_alone(everything):
  same = [n for n in range(12, _ROWS) if n % 4 == 0]  # the first of each question
  assert all((_prompts()[n] == _prompts()[n + 1]).all() for n in same)
  differ = [everything.token_ids[n].tolist() != everything.token_ids[n + 1].tolist() for n in same]
  assert np.mean(differ) > 0.8
  twice = [same[0]] * 8
  found = _sample(twice)
  assert len({tuple(ids.tolist()) for ids in found.token_ids}) == 1


@pytest.mark.parametrize('change', [{'seed': 1}, {'step': 4}])
def test_another_seed_or_step_gives_other_tokens(change, everything):
  rows = range(16, 24)
  found = _sample(rows, row_keys=_keys(rows, **change))
  equal = [
    found.token_ids[i].tolist() == everything.token_ids[n].tolist() for i, n in enumerate(rows)
  ]
  assert np.mean(equal) < 0.3


def test_weights_are_rounded_before_the_loop():
  config = tiny.CONFIG.replace(dtype='bfloat16')
  _, weights = loop_weights.make(config, ONE_DEVICE, Layout(), gather_once=True)
  decoder, head = weights(tiny.params())(jnp.int32(0))
  dtypes = {path[-1].key: x.dtype for path, x in jax.tree.leaves_with_path(decoder)}
  assert dtypes == {'kernel': jnp.bfloat16, 'scale': jnp.float32, 'embedding': jnp.float32}
  assert head['embed']['embedding'].dtype == jnp.bfloat16


@pytest.mark.parametrize('temperature', [0.0, 0.5, 1.7])
def test_logprobs_are_those_of_the_distribution_sampled_from(temperature):
  rows = list(range(40, 48))
  found = _sample(rows, temperature=temperature)
  for i, logits in enumerate(_recomputed(found, rows)):
    logprobs = _log_softmax(logits / (temperature or 1.0))
    chosen = np.take_along_axis(logprobs, found.token_ids[i][:, None], axis=1)[:, 0]
    np.testing.assert_allclose(found.logprobs[i], chosen, atol=1e-4)
    if not temperature:
      np.testing.assert_array_equal(found.token_ids[i], logits.argmax(axis=1))


def test_logprobs_are_those_of_the_trainer(everything):
  messages = [
    tiny.message(prompt, ids, logprobs, ended=ended)
    for prompt, ids, logprobs, ended in zip(
      _prompts(), everything.token_ids, everything.logprobs, everything.ended, strict=True
    )
  ]
  optimizer = optax.sgd(1.0)
  updater = Programs(Transformer(tiny.CONFIG), losses.gspo, optimizer, _TEMPERATURE, entropy=False)
  batches = train_batches.pack_messages(messages, pack_length=128, micro_batch_size=4)
  scored = updater.logprobs(state_lib.init(_params(), optimizer, lora=False), batches)
  for sampler, trainer in zip(batches, scored, strict=True):
    np.testing.assert_allclose(sampler.old_logprobs, trainer, atol=1e-4)
  assert sum(b.loss_mask.sum() for b in batches) == sum(map(len, everything.token_ids))


@pytest.mark.parametrize('temperature', [_TEMPERATURE, 1.7])
def test_rows_that_must_speak_begin_with_no_silence(temperature, everything):
  """Their first token is drawn from the model given that; log-probs are the model's own."""
  free = everything if temperature == _TEMPERATURE else _sample(temperature=temperature)
  silence = _STOPS[:30]
  flags = np.arange(_ROWS) % 3 == 0
  told = {'must_speak': flags, 'silence_ids': silence, 'temperature': temperature}
  found = _sample(**told)
  _assert_rows(_sample(range(150), **{**told, 'must_speak': flags[:150]}), found, range(150))
  changed = 0
  for n, (logits, key) in enumerate(zip(_recomputed(found), _keys(), strict=True)):
    logprobs = _log_softmax(logits / temperature)
    tokens = found.token_ids[n]
    chosen = np.take_along_axis(logprobs, tokens[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(found.logprobs[n], chosen, atol=1e-4)
    probabilities = np.exp(logprobs[0])
    probabilities[list(silence)] = 0.0
    assert found.log_speak[n] == pytest.approx(np.log(probabilities.sum()), abs=1e-4)
    if not flags[n]:
      np.testing.assert_array_equal(tokens, free.token_ids[n])
      continue
    assert tokens[0] not in silence
    cdf = np.cumsum(probabilities / probabilities.sum())
    assert cdf[tokens[0] - 1] - 1e-5 < _uniform(key, 0) < cdf[tokens[0]] + 1e-5
    changed += free.token_ids[n][0] in silence
  assert changed > 5
  before = tiny.compilations(_sampler())
  _sample(**{**told, 'must_speak': ~flags, 'silence_ids': silence[:29]})
  assert tiny.compilations(_sampler()) == before
  assert everything.log_speak is None


# Arguments that are not compiled in.


def _expected_with_stops(ids, stops, limit=_NEW):
  hits = np.nonzero(np.isin(ids, stops))[0]
  return ids[: min(limit, hits[0] + 1 if hits.size else len(ids))]


@pytest.mark.parametrize(('at_once', 'sizes'), [(1, (48, 24, 12)), (2, (24, 12))])
def test_other_lengths_compile_nothing(at_once, sizes, everything):
  """Varies lengths of prompts within `cache_length` and of messages."""
  sampler = _sampler(cache_length=32, batches_at_once=at_once)
  batches = np.arange(8, _ROWS).reshape(-1, 48)  # without the prompts of another width
  free = np.full(48, _NEW)
  _sample(batches[0], sampler=sampler, limits=np.repeat([1, 3, 5, _NEW], 12))  # all sizes
  before = tiny.compilations(sampler)
  for rows in batches:
    for limits in (free, free // 2, 1 + np.arange(48) % _NEW):
      _sample(rows, sampler=sampler, limits=limits)
    _assert_rows(_sample(rows, sampler=sampler), everything, rows)
  assert tiny.compilations(sampler) == before
  assert sampler.decode._cache_size() == len(sizes)


def test_stops_temperature_limits_and_fewer_rows_compile_nothing(caplog):
  rows = list(range(80, 88))
  free = _sample(rows, stop_ids=())
  assert all(len(ids) == _NEW for ids in free.token_ids)
  assert not free.ended.any()
  usual = _sample(rows)  # from here on every shape has been seen
  before = tiny.compilations(_sampler())
  other_stops = (int(free.token_ids[0][2]), int(free.token_ids[1][4]))
  limits = np.arange(1, 9)
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    stopped = _sample(rows, stop_ids=other_stops)
    _sample(rows, temperature=0.33)
    _sample(rows, temperature=0.0)
    limited = _sample(rows, limits=limits)
    fewer = _sample(rows[:5])  # padded to 8 as well
    last = _sample(rows)
  assert not [record.message for record in caplog.records if 'ompil' in record.message]
  assert tiny.compilations(_sampler()) == before

  for i, ids in enumerate(free.token_ids):
    np.testing.assert_array_equal(stopped.token_ids[i], _expected_with_stops(ids, other_stops))
    np.testing.assert_array_equal(usual.token_ids[i], _expected_with_stops(ids, _STOPS))
    np.testing.assert_array_equal(
      limited.token_ids[i], _expected_with_stops(ids, _STOPS, limits[i])
    )
    assert limited.ended[i] == np.isin(limited.token_ids[i][-1], _STOPS)
  assert len(stopped.token_ids[0]) <= 3
  assert stopped.ended[:2].all()
  _assert_rows(last, usual, range(8))
  _assert_rows(fewer, usual, range(5))


def test_a_compilation_would_have_been_noticed(caplog):
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    jax.jit(lambda x: x + 2)(jnp.ones(3))
  assert [record for record in caplog.records if 'ompil' in record.message]


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'temperature': -0.1}, r'temperature=-0\.1'),
    ({'temperature': 1e38}, r'temperature=1e\+38 must be 0'),  # 1 / 1e38 is denormal: 0 to XLA
    ({'temperature': float('nan')}, r'temperature=nan'),
    ({'limits': np.array([0])}, r'limits span 0\.\.0'),
    ({'limits': np.array([_NEW + 1])}, r'max_new_tokens=8'),
  ],
)
def test_bad_arguments_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    _sample([0], **options)


def test_prompts_that_cannot_be_sampled_from_are_refused():
  longest = tiny.CONFIG.max_positions - _NEW
  for length, message in ((longest + 1, 'context of 160'), (0, 'sequence 0 has 0 tokens')):
    with pytest.raises(ValueError, match=message):
      _sampler()(_params(), [np.ones(length, np.int32)], _keys([0]), temperature=1.0, stop_ids=())


def test_a_row_needs_the_context_of_what_it_may_write_itself():
  """After a calculator's result the prompt is longer and fewer tokens are left."""
  context = tiny.CONFIG.max_positions
  prompts = [np.arange(length, dtype=np.int32) + 1 for length in (context - 5, 3)]
  ask = lambda sampler, *limits: (
    sampler(
      _params(), prompts, _keys([0, 1]), temperature=1.0, stop_ids=(), limits=np.asarray(limits)
    ).token_ids
  )
  roomy = Sampler(tiny.CONFIG.replace(max_positions=2 * context), max_new_tokens=_NEW)
  for found, expected in zip(ask(_sampler(), 5, _NEW), ask(roomy, 5, _NEW), strict=True):
    np.testing.assert_array_equal(found, expected)
  with pytest.raises(
    ValueError, match='a prompt of 155 tokens and a message of up to 6 do not fit'
  ):
    ask(_sampler(), 6, _NEW)


@pytest.mark.parametrize('smallest', [1, 8, 32, 64])
def test_buckets_are_few_and_close(smallest):
  sizes = [bucket(n, smallest) for n in range(1, 2000)]
  assert sizes == sorted(sizes)
  assert all(size >= n for n, size in enumerate(sizes, start=1))
  assert all(size <= 1.5 * n for n, size in enumerate(sizes, start=1) if n >= smallest)
  assert len(set(sizes)) <= 24


# Drawing a token.

_DRAWS = 4000


def _draw(logits, uniforms, temperature=1.0):
  logits = np.broadcast_to(np.float32(logits), (len(uniforms), np.shape(logits)[-1]))
  return jax.device_get(jax.jit(categorical.draw)(logits, jnp.float32(uniforms), temperature))


@pytest.mark.parametrize('vocab', [1, 7, 255, 256, 257, 300, 1000])
@pytest.mark.parametrize('temperature', [1.0, 0.3])
def test_draw_inverts_the_cdf(vocab, temperature):
  rng = np.random.default_rng(vocab)
  logits = rng.normal(0, 2, vocab).astype(np.float32)
  logprobs = _log_softmax(logits.astype(np.float64) / temperature)
  edges = np.concatenate([[0.0], np.cumsum(np.exp(logprobs))])
  uniforms = np.concatenate([rng.random(500), [0.0, 1 - 2**-23]]).astype(np.float32)
  tokens, found = _draw(logits, uniforms, temperature)
  assert tokens.dtype == np.int32
  assert tokens.min() >= 0
  assert tokens.max() < vocab
  np.testing.assert_allclose(found, logprobs[tokens], atol=1e-4)
  clear = np.abs(edges[:, None] - uniforms[None]).min(axis=0) > 1e-6
  expected = np.searchsorted(edges, uniforms, side='right') - 1
  np.testing.assert_array_equal(tokens[clear], expected[clear])
  assert clear.sum() > 400
  assert (found > -30).all()  # on an edge, too, the token is a possible one


@pytest.mark.parametrize('temperature', [1.0, 0.6])
def test_draw_has_the_right_distribution(temperature):
  logits = np.float32([0.3, -1.0, 2.0, 0.0, 1.2, -0.5])
  uniforms = jax.vmap(jax.random.uniform)(keys.row_keys(keys.stream(0, 'x'), np.c_[:_DRAWS]))
  tokens, _ = _draw(logits, uniforms, temperature)
  expected = _DRAWS * np.exp(_log_softmax(logits.astype(np.float64) / temperature))
  assert scipy.stats.chisquare(np.bincount(tokens, minlength=6), expected).pvalue > 1e-3


def test_impossible_tokens_are_never_drawn():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=700).astype(np.float32)
  possible = rng.random(700) < 0.05
  possible[256:512] = False  # a whole block
  possible[[0, 699]] = False
  logits[~possible] = -np.inf
  uniforms = np.concatenate([rng.random(2000), [0.0, 1 - 2**-23]])
  for temperature in (1.0, categorical.HIGHEST):
    tokens, logprobs = _draw(logits, uniforms, temperature)
    assert possible[tokens].all()
    assert np.isfinite(logprobs).all()
    assert set(tokens) == set(np.nonzero(possible)[0])


def test_greedy_takes_the_most_likely_at_temperature_one():
  rng = np.random.default_rng(0)
  logits = rng.normal(0, 3, (50, 300)).astype(np.float32)
  tokens, logprobs = _draw(logits, rng.random(50), temperature=0.0)
  np.testing.assert_array_equal(tokens, logits.argmax(axis=1))
  expected = _log_softmax(logits.astype(np.float64)).max(axis=1)
  np.testing.assert_allclose(logprobs, expected, atol=1e-5)


# Keys.


def test_every_coordinate_of_a_row_changes_its_noise():
  """Tests seed, stream, step, question, sample, agent and turn, alone and together."""
  grid = np.stack(np.meshgrid(*[range(4)] * 5), axis=-1).reshape(-1, 5)
  uniforms = []
  for root in (keys.stream(0, 'train'), keys.stream(1, 'train'), keys.stream(0, 'eval')):
    uniforms.append(jax.vmap(jax.random.bits)(keys.row_keys(root, grid)))
  assert len(np.unique(np.concatenate(uniforms))) > 3 * len(grid) - 5  # 32-bit birthday


def test_a_rows_key_does_not_depend_on_its_neighbours():
  rows = np.random.default_rng(0).integers(0, 2**31 - 1, (9, 5))
  root = keys.stream(7, 'train')
  together = jax.random.key_data(keys.row_keys(root, rows))
  for n in range(9):
    alone = jax.random.key_data(keys.row_keys(root, rows[n : n + 1]))
    np.testing.assert_array_equal(together[n], alone[0])
  back = jax.random.key_data(keys.row_keys(root, rows[::-1]))
  np.testing.assert_array_equal(together[::-1], back)


def test_question_numbers_are_stable():
  assert keys.question_number('gsm8k/test/17') == keys.question_number('gsm8k/test/17')
  numbers = [keys.question_number(f'gsm8k/train/{n}') for n in range(8000)]
  assert len(set(numbers)) > 7990
  assert keys.question_number('123456789') == 0xCBF43926 & 0x7FFFFFFF  # CRC-32's check value


# Against transformers.


def _generate(folder, prompts, stop_id: int, new: int):
  """Returns greedy continuations by transformers, one prompt at a time without padding."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
  out = []
  for prompt in prompts:
    ids = torch.from_numpy(np.asarray(prompt)[None]).long()
    full = model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      do_sample=False,
      max_new_tokens=new,
      eos_token_id=stop_id,
      pad_token_id=stop_id,
    )
    out.append(full[0, len(prompt) :].tolist())
  return out


def test_greedy_equals_transformers_generate(tmp_path):
  rows = list(range(96, 104))
  free = _sample(rows, temperature=0.0, stop_ids=())
  stop_id = int(free.token_ids[0][4])  # so that at least one row ends early
  hf.export_hf(tiny.CONFIG, _params(), tmp_path)
  expected = _generate(tmp_path, [_prompts()[n] for n in rows], stop_id, _NEW)
  found = _sample(rows, temperature=0.0, stop_ids=(stop_id,))
  assert [ids.tolist() for ids in found.token_ids] == expected
  assert len(expected[0]) <= 5


@pytest.mark.slow
def test_greedy_smollm2_equals_transformers_generate(tmp_path):
  loaded = pretrained.smollm()
  tokenizer = loaded.tokenizer
  chats = ('What is 7 plus 5?', 'Name the capital of France in one word.', 'Say nothing.')
  prompts = [
    np.asarray(
      tokenizer.encode(
        tokenizer.render_chat([{'role': 'user', 'content': text}], add_generation_prompt=True)
      ),
      np.int32,
    )
    for text in chats
  ]
  hf.export_hf(loaded.config, loaded.params, tmp_path, tokenizer)
  expected = _generate(tmp_path, prompts, tokenizer.eos_id, 24)
  found = Sampler(loaded.config, max_new_tokens=24, prefill_length=128, smallest_batch=4)(
    loaded.params,
    prompts,
    keys.row_keys(keys.stream(0, 'eval'), np.c_[:3]),
    temperature=0.0,
    stop_ids=(tokenizer.eos_id,),
  )
  assert [ids.tolist() for ids in found.token_ids] == expected
