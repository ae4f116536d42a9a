"""Compares one call for several adapters with one call each, and with the base model."""

from __future__ import annotations

import dataclasses
import functools
import json

import flax.traverse_util
import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import optax
import pytest
import safetensors.numpy
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.apps.commands import exported
from agent_gspo.config import check as config_lib
from agent_gspo.models import lora, transformer
from agent_gspo.models.io import hf, peft, stored
from agent_gspo.models.transformer import Transformer
from agent_gspo.ops.attention import masks
from agent_gspo.packing import prefix_tree, train_batches
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler, Samples
from agent_gspo.teams.options import PolicyOptions
from agent_gspo.teams.policies import ModelPolicy, Turn
from agent_gspo.teams.sharing import Sharing, make_sharing
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import Programs
from agent_gspo.types import Question
from agent_gspo.workdir import checkpoints

_N = 3
_BASE = tiny.CONFIG.replace(num_layers=1)
_ONE = _BASE.replace(lora_rank=2, lora_alpha=4.0)
_ALL = _ONE.replace(num_adapters=_N)
_STOPS = (0, *range(4, 300, 5))
_IS_ADAPTER = lambda path: path[-1].startswith('lora_')


@functools.cache
def _params(config=_ALL):
  """Returns the base model with adapters, by default three, of large effect."""
  shapes = flax.traverse_util.flatten_dict(
    jax.eval_shape(functools.partial(transformer.init_params, config), jax.random.key(0))
  )
  flat = flax.traverse_util.flatten_dict(tiny.params(config.without_adapters()))
  rng = np.random.default_rng(7)
  for path, leaf in shapes.items():
    if _IS_ADAPTER(path):
      flat[path] = rng.normal(0, 0.3, leaf.shape).astype(np.float32)
  return flax.traverse_util.unflatten_dict(flat)


def _of(n: int):
  return lora.one_adapter(_params(), n)


@functools.partial(jax.jit, static_argnums=0)
def _forward(config, params, tokens, mask, adapter=None):
  """Returns final hidden states and logits."""
  model, variables = Transformer(config), {'params': params}
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden, _ = model.apply(variables, tokens, positions, mask, adapter=adapter)
  return hidden, model.apply(variables, hidden, method='logits')


def _rows(count: int, width: int):
  tokens = np.random.default_rng(1).integers(0, 300, (count, width)).astype(np.int32)
  return tokens, masks.causal(np.full(count, width), width)


# The model.


def test_several_adapters_are_initialised_like_one_each():
  params = jax.eval_shape(lambda: transformer.init_params(_ALL, jax.random.key(0)))
  assert params['layers_0']['mlp']['up']['lora_a'].shape == (_N, 32, 2)
  assert params['layers_0']['mlp']['up']['lora_b'].shape == (_N, 2, 48)
  draw = transformer.Linear(_ALL.replace(lora_rank=64), 8).init
  a = np.asarray(
    draw(jax.random.key(0), jnp.zeros((1, 1, 32)), jnp.zeros((1, 1), jnp.int32))['params']['lora_a']
  )
  # He-uniform: within sqrt(6 / inputs), whatever the number of adapters.
  np.testing.assert_allclose(np.abs(a).max(axis=(1, 2)), np.sqrt(6 / 32), rtol=0.01)
  assert np.abs(a[0] - a[1]).max() > 0.1


@pytest.mark.parametrize('shape', [(4, 5), (4, 1)])
def test_each_token_goes_through_its_own_adapter(shape):
  rng = np.random.default_rng(2)
  x = rng.normal(size=(*shape, 32)).astype(np.float32)
  adapter = rng.integers(-1, _N, shape).astype(np.int32)
  p = {
    'kernel': rng.normal(size=(32, 6)),
    'lora_a': rng.normal(size=(_N, 32, 2)),
    'lora_b': rng.normal(size=(_N, 2, 6)),
  }
  p = {name: value.astype(np.float32) for name, value in p.items()}
  found = transformer.Linear(_ALL, 6).apply({'params': p}, x, adapter)
  p = {name: value.astype(np.float64) for name, value in p.items()}
  for at in np.ndindex(*shape):
    expected = x[at] @ p['kernel']
    if (n := adapter[at]) >= 0:
      expected += 4.0 / 2 * (x[at] @ p['lora_a'][n] @ p['lora_b'][n])
    np.testing.assert_allclose(found[at], expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('width', [7, 1])
@pytest.mark.parametrize('config', [_ALL, _ONE], ids=['several', 'one'])
def test_adapter_off_is_the_base_model_bit_for_bit(dtype, width, config):
  tokens, mask = _rows(5, width)
  params = _params() if config is _ALL else _of(0)
  adapter = np.full(tokens.shape, -1, np.int32)
  found = _forward(config.replace(dtype=dtype), params, tokens, mask, adapter)
  expected = _forward(_BASE.replace(dtype=dtype), tiny.params(_BASE), tokens, mask)
  for ours, base in zip(found, expected, strict=True):
    assert np.asarray(ours).tobytes() == np.asarray(base).tobytes()
  on = _forward(config.replace(dtype=dtype), params, tokens, mask, adapter * 0)
  assert np.abs(np.asarray(on[1] - expected[1])).max() > 0.1


def test_a_row_without_adapter_is_not_touched_by_rows_with_one():
  """Tests adapters with infinities, and the sign of zeros."""
  params = jax.tree.map(np.array, _params())
  params['layers_0']['attn']['v']['lora_b'][1, 0, 0] = np.inf
  tokens, mask = _rows(5, 7)
  adapter = np.tile(np.int32([[-1], [1], [-1], [0], [-1]]), (1, 7))
  hidden, _ = _forward(_ALL, params, tokens, mask, adapter)
  expected, _ = _forward(_BASE, tiny.params(_BASE), tokens, mask)
  assert np.asarray(hidden)[::2].tobytes() == np.asarray(expected)[::2].tobytes()
  linear = transformer.Linear(_ALL, 2)
  p = {
    'kernel': np.zeros((3, 2), np.float32),
    'lora_a': np.ones((_N, 3, 2), np.float32),
    'lora_b': np.ones((_N, 2, 2), np.float32),
  }
  minus = -np.ones((1, 1, 3), np.float32)
  base = transformer.Linear(_BASE, 2).apply({'params': {'kernel': p['kernel']}}, minus)
  off = linear.apply({'params': p}, minus, np.full((1, 1), -1, np.int32))
  assert np.asarray(off).tobytes() == np.asarray(base).tobytes()


def test_several_adapters_need_ids_and_a_rank():
  tokens, mask = _rows(2, 3)
  with pytest.raises(ValueError, match='3 adapters'):
    _forward(_ALL, _params(), tokens, mask)
  with pytest.raises(ValueError, match='num_adapters=3 with lora_rank=0'):
    _BASE.replace(num_adapters=3)
  with pytest.raises(ValueError, match='num_adapters=0'):
    _ONE.replace(num_adapters=0)


# Trees.


def test_sequences_share_prefixes_within_a_key_only():
  context = np.arange(10, 16)
  sequences = [np.append(context, [40 + n]) for n in range(6)]
  keys_ = [0, 1, -1, 0, 1, -1]
  tree = prefix_tree.pack(sequences, 32, keys=keys_)
  assert tree.used == 3 * (6 + 2)
  seen = np.asarray(masks.TreeMask(tree.subtree_end).dense())
  for n, (row, columns) in enumerate(zip(tree.row, tree.columns, strict=True)):
    np.testing.assert_array_equal(tree.keys[row, columns], keys_[n])
    np.testing.assert_array_equal(tree.tokens[row, columns], sequences[n])
    np.testing.assert_array_equal(np.nonzero(seen[row, columns[-1]])[0], columns)
    np.testing.assert_array_equal(tree.positions[row, columns], np.arange(7))
  assert prefix_tree.pack(sequences, 32).used == 6 + 6


# The sampler.


@functools.cache
def _sampler(config=_ALL) -> Sampler:
  return Sampler(config, max_new_tokens=6, prefill_length=72)


@functools.cache
def _prompts():
  """Returns eight prompts; all agents, base model included, read the first two questions."""
  rng = np.random.default_rng(0)
  system = rng.integers(0, 300, 5)
  questions = [np.concatenate([system, rng.integers(0, 300, 6)]).astype(np.int32) for _ in range(2)]
  return questions * (_N + 1), np.repeat(np.arange(-1, _N), 2)


def _sample(config, params, rows, adapters):
  at = np.asarray([(3, 17, n % 2, 0, 0) for n in rows])  # the same noise for every agent
  return _sampler(config)(
    params,
    [_prompts()[0][n] for n in rows],
    keys.row_keys(keys.stream(0, 'train'), at),
    temperature=1.5,
    stop_ids=_STOPS,
    adapters=adapters,
  )


def test_one_call_for_all_agents_equals_one_call_each():
  prompts, adapters = _prompts()
  together = _sample(_ALL, _params(), range(8), adapters)
  # The same prompts and noise, so it is the adapters that make the difference.
  assert len({tuple(ids.tolist()) for ids in together.token_ids[::2]}) == _N + 1
  prefixes = {tuple(p[:k].tolist()) for p in prompts[:2] for k in range(1, 12)}
  assert together.prefill_positions == (_N + 1) * len(prefixes)
  for n in range(-1, _N):
    rows = np.nonzero(adapters == n)[0]
    alone = _sample(_BASE if n < 0 else _ONE, _of(n), rows, None)
    for i, row in enumerate(rows):
      np.testing.assert_array_equal(alone.token_ids[i], together.token_ids[row])
      np.testing.assert_allclose(alone.logprobs[i], together.logprobs[row], atol=1e-5)
      assert alone.ended[i] == together.ended[row]
    assert np.isin(together.token_ids[rows[0]], np.arange(300)).all()


def test_other_adapters_compile_nothing():
  _, adapters = _prompts()
  _sample(_ALL, _params(), range(8), adapters)
  before = tiny.compilations(_sampler())
  _sample(_ALL, _params(), range(8), (adapters + 2) % (_N + 1) - 1)
  _sample(_ALL, _params(), range(8), np.zeros(8, int))
  assert tiny.compilations(_sampler()) == before


@pytest.mark.parametrize('adapters', [[0, _N], [-2, 0]])
def test_adapters_that_are_not_there_are_refused(adapters):
  with pytest.raises(ValueError, match=f'adapters span .*the model has {_N}'):
    _sample(_ALL, _params(), range(2), adapters)
  with pytest.raises(ValueError, match='the model has 0'):
    _sample(_BASE, tiny.params(_BASE), range(2), [0, 0])


def test_each_agent_speaks_through_its_adapter():
  asked = []

  def sampler(params, prompts, *_, adapters, **__):
    asked.append(adapters)
    said = [np.zeros(1)] * len(prompts)
    return Samples(said, said, np.ones(len(prompts), bool), 0)

  policy = ModelPolicy(
    sampler=sampler,
    params={},
    root=keys.stream(0, 'train'),
    step=0,
    temperature=1.0,
    adapters=(1, -1, 0),
  )
  turn = Turn(Question('q', '', ''), 0, 0, 0, np.arange(3), {}, 4, (0,))
  turns = [dataclasses.replace(turn, agent=agent) for agent in (2, 0, 1, 0)]
  policy(turns)
  dataclasses.replace(policy, adapters=None)(turns)
  np.testing.assert_array_equal(asked[0], [0, 1, -1, 1])
  assert asked[1] is None


# The update.

_AGENTS = (2, 0, 1, 3)  # adapters of four agents are 1, 0, -1, 2
_ADAPTERS = (0, -1, 1, 2)


@functools.cache
def _messages():
  """Returns messages with equal prompts and, but for the last agent, equal words."""
  rng = np.random.default_rng(4)
  ids = lambda n: rng.integers(1, 300, n)
  system, prompts, words = ids(6), [ids(3), ids(4)], [ids(3), ids(1), ids(5), ids(2)]
  messages = []
  for k, prompt in enumerate(prompts):
    for i, agent in enumerate(_AGENTS):
      written = np.append(words[2 * k + i // 3], 0)
      old = rng.normal(-5, 0.3, len(written)).astype(np.float32)
      messages.append(tiny.message(np.append(system, prompt), written, old, agent=agent))
  return messages, rng.normal(size=len(messages)).astype(np.float32)


def _pack(agents=(0, 1, 2, 3), **options):
  messages, advantages = _messages()
  chosen = [m for m, message in enumerate(messages) if message.agent in agents]
  packed = train_batches.pack_messages(
    [messages[m] for m in chosen], pack_length=48, micro_batch_size=2, **options
  )
  return train_batches.with_values(packed, advantages=advantages[chosen])


@functools.cache
def _updater(config, kl_coef=0.0) -> Programs:
  """Returns a learner with plain gradient descent of rate 1: the step is the gradient."""
  objective = functools.partial(losses.gspo, clip_low=0.5, clip_high=0.5)
  return Programs(
    Transformer(config), objective, optax.sgd(1.0), 0.8, kl_coef=kl_coef, entropy=False
  )


def _state(params):
  return state_lib.init(params, optax.sgd(1.0), lora=True)


def _scores(updater, params, batches):
  """Returns log-probs of each message by its old log-probs, which identify it."""
  scored = updater.logprobs(_state(params), batches)
  found = {}
  for batch, new in zip(batches, scored, strict=True):
    for r, slot in zip(*np.nonzero(batch.message_mask), strict=True):
      mine = (batch.loss_mask[r] > 0) & (batch.loss_message[r] == slot)
      found[tuple(batch.old_logprobs[r, mine].tolist())] = new[r, mine]
  return found


def test_messages_without_a_learner_are_not_packed():
  messages, _ = _messages()
  batches = _pack(adapters=_ADAPTERS)
  assert sum(b.message_mask.sum() for b in batches) == 8
  assert any((b.adapters == -1).any() for b in batches)  # agent 1 is the base model
  assert any(
    (b.adapters[r] == 0).any() and (b.adapters[r] == 2).any() for b in batches for r in range(2)
  )  # a row of several agents
  batches = _pack(adapters=_ADAPTERS, trained={0, 3})
  assert {int(x) for b in batches for x in b.adapters[b.positions > 0]} == {0, 2}
  assert sum(b.message_mask.sum() for b in batches) == 4
  assert sum(b.message_mask.sum() for b in _pack(trained={1})) == 2
  assert all(b.adapters is None for b in _pack())
  assert len(messages) == 8


def test_logprobs_of_all_agents_equal_those_of_each_alone():
  together = _scores(_updater(_ALL), _params(), _pack(adapters=_ADAPTERS))
  assert len(together) == 8
  for agent in range(4):
    alone = _scores(_updater(_ONE if agent != 1 else _BASE), _of(_ADAPTERS[agent]), _pack([agent]))
    assert len(alone) == 2
    for message, logprobs in alone.items():
      np.testing.assert_allclose(together[message], logprobs, atol=1e-5)
  first = [together[tuple(m.logprobs.tolist())] for m in _messages()[0][:2]]
  assert np.abs(first[0] - first[1]).max() > 0.05  # equal words, different agents


@pytest.mark.slow
def test_gradient_of_all_agents_is_that_of_each_alone():
  """Includes the KL term towards the model without adapters."""
  kl = 0.3
  state = _state(_params())
  state = state.replace(reference=jax.tree.map(np.zeros_like, state.trainable))
  batches = _pack(adapters=_ADAPTERS, trained={0, 2, 3})
  state, metrics = _updater(_ALL, kl).optimizer_step(state, batches)
  start = flax.traverse_util.flatten_dict(_params())
  found = {path: start[path] - np.asarray(x) for path, x in state.trainable.items()}
  divergence = objective = 0.0
  for agent in (0, 2, 3):
    n = _ADAPTERS[agent]
    alone = _state(_of(n))
    alone = alone.replace(reference=jax.tree.map(np.zeros_like, alone.trainable))
    before = jax.tree.map(np.array, alone.trainable)
    alone, one = _updater(_ONE, kl).optimizer_step(alone, _pack([agent]))
    divergence += one['policy/kl'] / 3
    objective += one['policy/objective'] / 3
    for path, x in alone.trainable.items():
      gradient = before[path] - np.asarray(x)
      assert np.abs(gradient).max() > 1e-4
      np.testing.assert_allclose(found[path][n], gradient / 3, atol=1e-5, err_msg=str(path))
  np.testing.assert_allclose(metrics['policy/kl'], divergence, rtol=1e-4)
  np.testing.assert_allclose(metrics['policy/objective'], objective, atol=1e-5)
  assert divergence > 1e-2
  for path, x in state.frozen.items():
    assert np.asarray(x).tobytes() == start[path].tobytes()


def test_a_frozen_adapter_does_not_move_and_rates_are_its_own():
  """Uses AdamW with weight decay; every adapter has a gradient."""
  rng = np.random.default_rng(8)
  start = {name: rng.normal(size=(_N, 4, 5)).astype(np.float32) for name in ('lora_a', 'lora_b')}
  start['lora_b'][1, 0, :2] = (-0.0, 0.0)
  steps = {}
  for scale in (None, (1.0, 0.0, 0.25)):
    optimizer = state_lib.make_optimizer(
      LearnerOptions(learning_rate=0.01, weight_decay=0.1), updates=9, adapter_scale=scale
    )
    step = jax.jit(functools.partial(_step, optimizer))
    params, opt_state = start, optimizer.init(start)
    for k in range(3):
      grads = {name: np.float32(rng.normal(size=x.shape)) for name, x in start.items()}
      params, opt_state = step(params, opt_state, start if k == 0 else grads)
      if k == 0:
        steps[scale] = {name: np.asarray(x) - start[name] for name, x in params.items()}
      if scale:
        assert all(np.asarray(x)[1].tobytes() == start[n][1].tobytes() for n, x in params.items())
  for name, free in steps[None].items():
    scaled = steps[1.0, 0.0, 0.25][name]
    np.testing.assert_array_equal(scaled[0], free[0])
    np.testing.assert_allclose(scaled[2], 0.25 * free[2], atol=1e-6)
    assert all(np.abs(free[n]).max() > 1e-3 for n in range(_N))


def _step(optimizer, params, opt_state, grads):
  updates, opt_state = optimizer.update(grads, opt_state, params)
  return optax.apply_updates(params, updates), opt_state


def test_one_adapter_beside_frozen_agents_is_scaled_whole():
  update = {'lora_a': jnp.ones((4, 2)), 'lora_b': jnp.full((2, 5), -2.0)}
  found, _ = state_lib.scale_adapters((0.5,)).update(update, optax.EmptyState())
  np.testing.assert_array_equal(found['lora_a'], 0.5)
  np.testing.assert_array_equal(found['lora_b'], -1.0)


# Who has which policy.

_NAMES = ('reader', 'critic', 'solver')


def _sharing(kind, frozen=(), rates=(), rank=4):
  options = PolicyOptions(sharing=kind, frozen=frozen, learning_rates=rates)
  return make_sharing(options, _NAMES, lora_rank=rank, learning_rate=2e-3)


def test_sharing_says_who_has_which_adapter_and_who_learns():
  assert _sharing('shared', rank=0) == Sharing()
  assert Sharing().num_adapters == 1
  every = _sharing('adapters')
  assert every == Sharing((0, 1, 2), frozenset({0, 1, 2}), (1.0, 1.0, 1.0))
  assert every.num_adapters == 3
  some = _sharing('adapters', frozen=('critic',), rates=(1e-3, 5.0, 2e-3))
  assert some == Sharing((0, 1, 2), frozenset({0, 2}), (0.5, 0.0, 1.0))
  mix = _sharing('mix', frozen=('reader',), rates=(0.0, 4e-3, 1e-3))
  assert mix == Sharing((-1, 0, 1), frozenset({1, 2}), (2.0, 0.5))
  assert mix.num_adapters == 2
  assert _sharing('mix', frozen=('reader', 'critic')).adapters == (-1, -1, 0)


def test_an_agent_with_rate_0_does_not_learn():
  """Its messages are not packed, so they do not count in the mean that others learn from."""
  still = _sharing('adapters', rates=(0.0, 4e-3, 2e-3))
  assert still == dataclasses.replace(
    _sharing('adapters', frozen=('reader',)), scale=(0.0, 2.0, 1.0)
  )
  mix = _sharing('mix', frozen=('critic',), rates=(0.0, 4e-3, 2e-3))
  assert mix == Sharing((0, -1, 1), frozenset({2}), (0.0, 1.0))


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'kind': 'own'}, "policy.sharing='own'"),
    ({'kind': 'shared', 'frozen': ('critic',)}, 'policy.frozen'),
    ({'kind': 'shared', 'rates': (1.0, 1.0, 1.0)}, 'policy.learning_rates'),
    ({'kind': 'adapters', 'rank': 0}, 'model.lora_rank'),
    ({'kind': 'adapters', 'frozen': ('judge',)}, 'no agent is called judge'),
    ({'kind': 'adapters', 'frozen': _NAMES}, 'must leave an agent to train'),
    ({'kind': 'adapters', 'rates': (0.0, 0.0, 0.0)}, r'policy.learning_rates=.* train no agent'),
    ({'kind': 'mix', 'frozen': ('critic',), 'rates': (0.0, 1.0, 0.0)}, 'train no agent: give'),
    ({'kind': 'mix'}, "policy.sharing='mix'"),
    ({'kind': 'adapters', 'rates': (1.0, 2.0)}, 'policy.learning_rates'),
    ({'kind': 'adapters', 'rates': (1.0, -2.0, 0.0)}, 'policy.learning_rates'),
  ],
)
def test_inconsistent_sharing_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    _sharing(**options)


# Export.


@pytest.mark.parametrize('n', range(-1, _N))
def test_one_agent_merged_computes_the_same(n):
  tokens, mask = _rows(5, 7)
  _, expected = _forward(_ALL, _params(), tokens, mask, np.full(tokens.shape, n, np.int32))
  merged = lora.merge_adapters(_ALL, _of(n))
  _, found = _forward(_BASE, merged, tokens, mask)
  np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)
  if n < 0:
    for path, x in flax.traverse_util.flatten_dict(tiny.params(_ALL.without_adapters())).items():
      assert flax.traverse_util.flatten_dict(merged)[path] is x


def test_export_of_what_is_not_one_adapter_is_refused(tmp_path):
  with pytest.raises(ValueError, match='holds 3 adapters'):
    peft.export_peft(_ALL, _params(), tmp_path, 'base')
  with pytest.raises(ValueError, match='no adapter'):
    peft.export_peft(_ALL, _of(-1), tmp_path, 'base')
  with pytest.raises(ValueError, match=r'qkv_proj\.weight stores several .* \(--format=hf\)'):
    peft.export_peft(_ALL.replace(family='phi3'), _of(1), tmp_path, 'base')


def test_exported_adapter_is_read_back(tmp_path):
  peft.export_peft(_ALL, _of(1), tmp_path, 'base')
  found = peft.read_peft(_BASE, tmp_path)
  flat = flax.traverse_util.flatten_dict(_of(1), sep='/')
  assert found.keys() == {path for path in flat if 'lora_' in path}
  for path, x in found.items():
    np.testing.assert_array_equal(x, flat[path])
  (tmp_path / 'adapter_model.safetensors').write_bytes(b'x')
  with pytest.raises(ValueError, match='damaged'):
    peft.read_peft(_BASE, tmp_path)
  with pytest.raises(FileNotFoundError):
    peft.read_peft(_BASE, tmp_path / 'none')


@pytest.mark.parametrize(
  'config', [_ALL, tiny.MIXTURE.replace(lora_rank=2, num_adapters=_N)], ids=['dense', 'mixture']
)
def test_exported_adapter_is_what_peft_loads(config, tmp_path):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  theirs = pytest.importorskip('peft')
  params, base = _params(config), config.without_adapters()
  hf.export_hf(base, tiny.params(base), tmp_path / 'base')
  peft.export_peft(config, lora.one_adapter(params, 1), tmp_path, str(tmp_path / 'base'))
  written = json.loads((tmp_path / 'adapter_config.json').read_text())
  assert written['base_model_name_or_path'] == str(tmp_path / 'base')
  base = transformers.AutoModelForCausalLM.from_pretrained(written['base_model_name_or_path'])
  model = theirs.PeftModel.from_pretrained(base, tmp_path).eval()
  tokens, mask = _rows(5, 7)
  with torch.no_grad():
    found = model(torch.from_numpy(tokens).long()).logits.numpy()
    with model.disable_adapter():
      off = model(torch.from_numpy(tokens).long()).logits.numpy()
  ones = np.ones(tokens.shape, np.int32)
  _, expected = _forward(config, params, tokens, mask, ones)
  np.testing.assert_allclose(found, expected, atol=2e-4, rtol=0)
  np.testing.assert_allclose(
    off, _forward(config, params, tokens, mask, -ones)[1], atol=2e-4, rtol=0
  )
  assert np.abs(found - off).max() > 0.1


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """Returns the workdir, setup and parameters of a run of three agents, one without adapter."""
  config = micro_run.get_config().to_dict()
  config['model']['lora_rank'] = 2
  config['policy'] |= {'sharing': 'mix', 'frozen': ('informant2',)}
  setup = setup_lib.build(config_lib.check(config))
  rng = np.random.default_rng(0)
  flat = {
    path: rng.normal(0, 0.3, x.shape).astype(np.float32) if _IS_ADAPTER(path) else x
    for path, x in flax.traverse_util.flatten_dict(setup.params).items()
  }
  params = flax.traverse_util.unflatten_dict(flat)
  folder = tmp_path_factory.mktemp('run')
  saver = checkpoints.Checkpoints(folder / 'checkpoints', setup.config)
  saver.save(_state(params))
  saver.wait()
  return folder, setup, params


def _export(folder, out, *options):
  return micro_run.run(micro_run.command('export', f'--workdir={folder}', f'--out={out}', *options))


@pytest.mark.slow
def test_export_command_writes_the_policy_of_one_agent(workdir, tmp_path):
  folder, setup, params = workdir
  done = _export(folder, tmp_path / 'solver', '--agent=solver', '--format=peft')
  assert done.returncode == 0, done.stderr
  assert 'policy of solver of step 0' in done.stdout
  base = stored.read(hf.open_hf(tmp_path / 'solver' / 'base')[1])
  for path, x in flax.traverse_util.flatten_dict(lora.one_adapter(params, -1)).items():
    np.testing.assert_array_equal(flax.traverse_util.flatten_dict(base)[path], x)
  written = json.loads((tmp_path / 'solver' / 'adapter_config.json').read_text())
  assert written['base_model_name_or_path'] == 'base'  # README.md tells how it is loaded
  assert "from_pretrained('base')" in (tmp_path / 'solver' / 'README.md').read_text()
  assert not (tmp_path / 'solver' / 'team.json').exists()  # one policy is no team
  tensors = safetensors.numpy.load_file(tmp_path / 'solver' / 'adapter_model.safetensors')
  np.testing.assert_array_equal(
    tensors['base_model.model.model.layers.1.mlp.up_proj.lora_B.weight'],
    params['layers_1']['mlp']['up']['lora_b'][1].T,  # informant1 has the first adapter
  )
  assert setup.sharing.adapters == (0, -1, 1)


def test_export_command_asks_whose_policy(workdir, tmp_path):
  done = _export(workdir[0], tmp_path / 'model', '--format=hf')
  assert done.returncode == 2
  assert '--agent is missing' in done.stderr
  assert 'informant1, informant2, solver' in done.stderr


@pytest.mark.slow
def test_export_command_writes_the_policies_of_all_agents(workdir, tmp_path):
  folder, _, params = workdir
  done = _export(folder, tmp_path / 'written')
  assert done.returncode == 0, done.stderr
  place = (tmp_path / 'written').rename(tmp_path / 'moved')
  found = exported.find(str(place))
  assert list(found.adapters) == ['adapters/informant1', 'adapters/solver']
  setup = setup_lib.build(config_lib.check(found.config, training=False))
  again = found.restore_params(setup.config, setup.params)
  ours, theirs = map(flax.traverse_util.flatten_dict, (params, stored.read(again)))
  assert ours.keys() == theirs.keys()
  for path, x in ours.items():
    np.testing.assert_array_equal(theirs[path], x)
