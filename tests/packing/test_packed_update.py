"""Compares the packed update with plain rows: no tree, no packing, no chunks."""

from __future__ import annotations

import dataclasses
import functools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models.transformer import Transformer
from agent_gspo.ops.attention import masks
from agent_gspo.packing import train_batches
from agent_gspo.training import metrics as metrics_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import NonFiniteLossError, Programs

_TEMPERATURE = 0.7
_LOW, _HIGH = 0.02, 0.03
_EOS = 0  # also the fill value of unused columns and targets
_ROW = 40
_KL = 0.3
_BASE = tiny.CONFIG.replace(num_layers=1)
_LORA = _BASE.replace(lora_rank=3, lora_alpha=6.0)


@functools.cache
def _messages():
  """Returns messages of two questions, four samples, two turns, and their advantages."""
  rng = np.random.default_rng(0)
  ids = lambda n: rng.integers(0, tiny.CONFIG.vocab_size, n)
  system, cue = ids(6), ids(2)
  messages = []
  for _question in range(2):
    prompt = np.concatenate([system, ids(5), cue])
    for sample in range(4):
      # Silence (EOS alone), twice the same words, and one cut off by its cap.
      words = (0, 3, 3, 7)[sample]
      first = np.append(ids(words) if sample != 2 else messages[-2].token_ids[:-1], _EOS)
      ended = sample != 3
      messages.append(tiny.message(prompt, first if ended else first[:-1], ended=ended))
      received = ids(rng.integers(1, 4))
      later = np.concatenate([messages[-1].path, received, cue])
      messages.append(tiny.message(later, np.append(ids(rng.integers(0, 5)), _EOS)))
  messages = [
    tiny.message(
      m.prompt_ids,
      m.token_ids,
      rng.normal(-5, 0.3, len(m.token_ids)).astype(np.float32),
      ended=m.ended,
    )
    for m in messages
  ]
  messages.insert(3, tiny.message(ids(4), []))  # nothing sampled: nothing to train
  return messages, rng.normal(size=len(messages)).astype(np.float32)


def _pack(rows: int = 2, messages=None, advantages=None):
  known, weights = _messages()
  packed = train_batches.pack_messages(
    known if messages is None else messages, pack_length=_ROW, micro_batch_size=rows
  )
  weights = weights if advantages is None else advantages
  return train_batches.with_values(packed, advantages=weights)


def _scored(programs, batches):
  """Returns the batches with the trainer's log-probs as the old ones."""
  return train_batches.with_old_logprobs(batches, programs.scored(_state(), batches))


# The reference: one message per row.


@functools.cache
def _plain_rows():
  """Returns token rows, the places of predicted tokens in them, and their old log-probs."""
  messages, advantages = _messages()
  kept = [m for m, message in enumerate(messages) if len(message.token_ids)]
  width = max(len(messages[m].path) for m in kept)
  rows = {
    'tokens': np.full((len(kept), width), 11, np.int32),
    'old': np.zeros((len(kept), width - 1), np.float32),
    'mask': np.zeros((len(kept), width - 1), np.float32),
  }
  for i, m in enumerate(kept):
    message = messages[m]
    rows['tokens'][i, : len(message.path)] = message.path
    predicted = slice(len(message.prompt_ids) - 1, len(message.path) - 1)
    rows['old'][i, predicted] = message.logprobs
    rows['mask'][i, predicted] = 1
  return {**rows, 'advantages': advantages[kept]}


def _plain_logprobs(config, params, temperature):
  tokens = _plain_rows()['tokens']
  count, width = tokens.shape[0], tokens.shape[1] - 1
  model = Transformer(config)
  positions = jnp.tile(jnp.arange(width), (count, 1))
  mask = masks.causal(jnp.full(count, width), width)
  hidden, _ = model.apply({'params': params}, tokens[:, :-1], positions, mask)
  logits = model.apply({'params': params}, hidden, method='logits') / temperature
  chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
  return chosen - jax.nn.logsumexp(logits, axis=-1)


def _plain_loss(config, params, old, kl_coef=0.0, base=None, scale=1.0):
  """Minus the mean over messages of GSPO (- KL), and the ratio, clip and KL of each."""
  rows = _plain_rows()
  mean = lambda x: (x * rows['mask']).sum(axis=1) / rows['mask'].sum(axis=1)
  new = _plain_logprobs(config, params, _TEMPERATURE)
  ratio = jnp.exp(mean(new - old))
  advantages = scale * rows['advantages']
  clipped = jnp.clip(ratio, 1 - _LOW, 1 + _HIGH)
  value = jnp.minimum(ratio * advantages, clipped * advantages)
  took_over = clipped * advantages < ratio * advantages
  divergence = jnp.zeros_like(value)
  if kl_coef:
    reference = _plain_logprobs(_BASE, base, _TEMPERATURE)
    divergence = mean(jnp.exp(reference - new) - 1 - (reference - new))
  return -jnp.mean(value - kl_coef * divergence), (ratio, took_over, divergence)


@functools.cache
def _plain_step(config=tiny.CONFIG, kl_coef: float = 0.0):
  return jax.jit(
    jax.value_and_grad(functools.partial(_plain_loss, config, kl_coef=kl_coef), has_aux=True)
  )


@functools.cache
def _updater(config=tiny.CONFIG, kl_coef: float = 0.0):
  """Returns a learner with plain gradient descent of rate 1: the step is the gradient."""
  return Programs(
    model=Transformer(config),
    objective=functools.partial(losses.gspo, clip_low=_LOW, clip_high=_HIGH),
    optimizer=optax.sgd(1.0),
    temperature=_TEMPERATURE,
    kl_coef=kl_coef,
  )


def _state(config=tiny.CONFIG, params=None):
  params = tiny.params(config) if params is None else params
  return state_lib.init(params, optax.sgd(1.0), lora=config.lora_rank > 0)


def _params(state):
  return jax.tree.map(np.asarray, state.params)


def _close(found, expected, atol=1e-5):
  if not isinstance(next(iter(found)), tuple):
    found, expected = (flax.traverse_util.flatten_dict(x) for x in (found, expected))
  assert found.keys() == expected.keys()
  for path in found:
    scale = max(1.0, np.abs(expected[path]).max())
    np.testing.assert_allclose(
      found[path], expected[path], atol=atol * scale, rtol=0, err_msg=str(path)
    )


def _split(params, belongs):
  """Splits flat parameters into those that belong and the others."""
  flat = flax.traverse_util.flatten_dict(params)
  return tuple({k: x for k, x in flat.items() if belongs(k) == wanted} for wanted in (True, False))


def _gradient(before, after):
  return jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), before, after)


def _norm(tree):
  return np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(tree)))


def _on_policy():
  """Returns old log-probs near the model's: some ratios within the clip band, some beyond."""
  exact = np.asarray(_plain_logprobs(tiny.CONFIG, tiny.params(), _TEMPERATURE))
  drift = np.random.default_rng(3).normal(0, 0.04, exact.shape).astype(np.float32)
  return (exact + drift) * _plain_rows()['mask']


def _with_old(old):
  """Returns the messages with other old log-probs, given as plain rows."""
  messages, _ = _messages()
  rows = iter(zip(old, _plain_rows()['mask'], strict=True))
  out = []
  for m in messages:
    if len(m.token_ids):
      row, mask = next(rows)
      m = tiny.message(m.prompt_ids, m.token_ids, row[mask > 0], ended=m.ended)
    out.append(m)
  return out


@pytest.fixture(scope='module')
def expected():
  """Returns the reference's old log-probs, loss, gradient and details at the first parameters."""
  old = _on_policy()
  (loss, details), gradient = _plain_step()(tiny.params(), old, scale=1.0)
  return old, float(loss), jax.tree.map(np.asarray, gradient), details


# Packing.


def test_every_message_stands_in_the_batch_once():
  messages, advantages = _messages()
  found = []
  for batch in _pack():
    seen = np.asarray(
      (np.arange(_ROW)[None, None] <= np.arange(_ROW)[None, :, None])
      & (np.arange(_ROW)[None, :, None] < batch.subtree_end[:, None, :])
    )
    for r in range(len(batch.tokens)):
      for slot in np.nonzero(batch.message_mask[r])[0]:
        mine = (batch.loss_mask[r] > 0) & (batch.loss_message[r] == slot)
        source = batch.loss_source[r, mine]
        # The first token is predicted from the columns that its source column attends to.
        prompt = batch.tokens[r, seen[r, source[0]]]
        written = batch.loss_target[r, mine]
        np.testing.assert_array_equal(batch.tokens[r, source[1:]], written[:-1])
        np.testing.assert_array_equal(
          batch.positions[r, source], len(prompt) - 1 + np.arange(len(source))
        )
        found.append((prompt, written, batch.old_logprobs[r, mine], batch.advantages[r, slot]))
      assert not batch.loss_mask[r, batch.loss_mask[r].sum().astype(int) :].any()
  as_key = lambda p, t, o, a: (p.tolist(), t.tolist(), o.tolist(), float(a))
  wanted = [
    as_key(m.prompt_ids, m.token_ids, m.logprobs, a)
    for m, a in zip(messages, advantages, strict=True)
    if len(m.token_ids)
  ]
  assert sorted(as_key(*f) for f in found) == sorted(wanted)


def test_shapes_are_static_and_rows_filled_up():
  for rows in (1, 2, 3, 5):
    batches = _pack(rows)
    for batch in batches:
      assert {x.shape for x in batch.values() if x is not None} == {(rows, _ROW)}
    assert sum(b.message_mask.sum() for b in batches) == 16
  assert train_batches.pack_messages([], pack_length=_ROW, micro_batch_size=2) == []


def test_what_sharing_saves_is_reported():
  messages, _ = _messages()
  report = train_batches.positions(messages, _pack())
  assert report['packing/unshared_positions'] == sum(max(len(m.path) - 1, 0) for m in messages)
  assert report['packing/positions'] < report['packing/unshared_positions'] / 1.5


@pytest.mark.parametrize('index', [(0, 1), (1, 0)])
def test_a_loss_token_has_the_experts_that_its_own_message_was_sampled_with(index):
  """Turn 2 reads turn 1 again, possibly with other weights."""
  routed = lambda m, expert, count: dataclasses.replace(m, experts=np.full((count, 2, 3), expert))
  first = routed(tiny.message([5, 6], [7, 8, 1]), 4, 4)
  second = routed(tiny.message([*first.path, 9], [2, 3]), 9, 7)
  lone = routed(tiny.message([11, 12, 13], [14]), 8, 2)  # its last column was not read
  pack = functools.partial(train_batches.pack_messages, pack_length=16, micro_batch_size=1)
  (batch,) = pack([first, second, lone, tiny.message([20, 21], [22])], index=(*index, 2, 3))
  at = {token: column for column, token in enumerate(batch.tokens[0])}
  experts = batch.sampler_experts[0]
  assert (experts[[at[token] for token in (6, 7, 8)]] == 4).all()  # they predict 7, 8, 1
  assert (experts[[at[token] for token in (1, 9, 2)]] == 9).all()
  assert (experts[[at[token] for token in (11, 12)]] == 8).all()
  assert (experts[[at[token] for token in (13, 20, 21)]] == -1).all()


def test_message_that_does_not_fit_a_row_is_refused():
  long = tiny.message(np.arange(1, 40), [5, 6, _EOS])
  message = rf'learner\.pack_length={_ROW} is too short for a prompt and message of 42 tokens; set'
  with pytest.raises(ValueError, match=message):
    _pack(messages=[long], advantages=np.ones(1))


# Loss and gradient.


def test_loss_and_gradient_equal_those_of_plain_rows(expected):
  old, loss, gradient, (ratio, clipped, _) = expected
  batches = _pack(messages=_with_old(old))
  assert len(batches) > 1
  after, metrics = _updater().optimizer_step(_state(), batches)
  np.testing.assert_allclose(metrics['policy/objective'], -loss, atol=1e-5)
  np.testing.assert_allclose(metrics['policy/ratio_mean'], ratio.mean(), atol=1e-5)
  np.testing.assert_allclose(metrics['policy/ratio_error_max'], abs(ratio - 1).max(), atol=1e-5)
  np.testing.assert_allclose(metrics['policy/clip_fraction'], clipped.mean(), atol=1e-6)
  assert 0 < metrics['policy/clip_fraction'] < 1
  np.testing.assert_allclose(metrics['policy/grad_norm'], _norm(gradient), rtol=1e-4)
  assert metrics['policy/grad_norm'] > 0.1
  _close(_gradient(tiny.params(), _params(after)), gradient)

  gap = np.abs(old - _plain_logprobs(tiny.CONFIG, tiny.params(), _TEMPERATURE))
  gap = np.asarray(gap)[_plain_rows()['mask'] > 0]
  np.testing.assert_allclose(metrics['policy/logprob_gap_mean'], gap.mean(), atol=1e-5)
  np.testing.assert_allclose(metrics['policy/logprob_gap_max'], gap.max(), atol=1e-5)


@pytest.mark.parametrize('how', ['one row a micro-batch', 'rows shuffled'])
def test_cutting_and_order_of_rows_change_nothing(how, expected):
  old, loss, gradient, _ = expected
  messages = _with_old(old)
  if how == 'rows shuffled':
    rows = _pack(rows=1, messages=messages)
    if len(rows) % 2:
      rows.append(jax.tree.map(np.zeros_like, rows[0]))
    order = np.random.default_rng(0).permutation(len(rows))
    batches = [
      jax.tree.map(lambda a, b: np.concatenate([a, b]), rows[i], rows[j])
      for i, j in order.reshape(-1, 2)
    ]
  else:
    batches = _pack(rows=1, messages=messages)
  after, metrics = _updater().optimizer_step(_state(), batches)
  np.testing.assert_allclose(metrics['policy/objective'], -loss, atol=1e-5)
  _close(_gradient(tiny.params(), _params(after)), gradient)


def test_order_of_messages_changes_nothing(expected):
  old, loss, gradient, _ = expected
  order = np.random.default_rng(1).permutation(len(_messages()[0]))
  messages = _with_old(old)
  batches = _pack(messages=[messages[m] for m in order], advantages=_messages()[1][order])
  after, metrics = _updater().optimizer_step(_state(), batches)
  np.testing.assert_allclose(metrics['policy/objective'], -loss, atol=1e-5)
  _close(_gradient(tiny.params(), _params(after)), gradient)


def test_what_fills_unused_columns_changes_nothing(expected):
  """Masks alone mark padding: its ids may be EOS or any other."""
  old, loss, gradient, _ = expected
  rng = np.random.default_rng(2)
  batches = []
  for batch in _pack(messages=_with_old(old)):
    unused = batch.loss_mask == 0
    columns = np.arange(_ROW)[None]
    in_use = (batch.subtree_end > columns + 1) | (batch.positions > 0)
    junk = lambda shape: rng.integers(0, 300, shape).astype(np.int32)
    batches.append(
      batch.replace(
        tokens=np.where(in_use, batch.tokens, junk(in_use.shape)),
        loss_target=np.where(unused, junk(unused.shape), batch.loss_target),
        loss_source=np.where(unused, junk(unused.shape) % _ROW, batch.loss_source),
        old_logprobs=np.where(unused, -7.5, batch.old_logprobs).astype(np.float32),
        advantages=np.where(batch.message_mask > 0, batch.advantages, 9).astype(np.float32),
      )
    )
  after, metrics = _updater().optimizer_step(_state(), batches)
  np.testing.assert_allclose(metrics['policy/objective'], -loss, atol=1e-5)
  _close(_gradient(tiny.params(), _params(after)), gradient)


def test_first_ratio_is_one_and_the_second_step_is_off_policy():
  """K = 2: old log-probs by the trainer's own scoring, then two steps on the same samples."""
  updater = _updater()
  weights = 0.05 * _messages()[1]  # a step that leaves some messages within the clip band
  batches = _scored(updater, _pack(advantages=weights))
  state, first = updater.optimizer_step(_state(), batches)
  assert first['policy/ratio_error_max'] < 1e-5
  assert first['policy/logprob_gap_max'] < 1e-5
  assert first['policy/clip_fraction'] == 0
  before = _params(state)
  state, second = updater.optimizer_step(state, batches)
  assert second['policy/ratio_error_max'] > 1e-3
  assert 0 < second['policy/clip_fraction'] < 1

  old = _plain_logprobs(tiny.CONFIG, tiny.params(), _TEMPERATURE)
  (loss, (_, clipped, _)), gradient = _plain_step()(before, old, scale=0.05)
  np.testing.assert_allclose(second['policy/objective'], -loss, atol=1e-6)
  np.testing.assert_allclose(second['policy/clip_fraction'], clipped.mean(), atol=1e-6)
  _close(_gradient(before, _params(state)), jax.tree.map(np.asarray, gradient))


def test_difference_to_the_sampler_is_measured_whatever_the_ratio_begins_with(expected):
  old, *_ = expected
  batches = _pack(messages=_with_old(old))
  _, plain = _updater().optimizer_step(_state(), batches)
  _, rescored = _updater().optimizer_step(_state(), _scored(_updater(), batches))
  assert rescored['policy/logprob_gap_max'] < 1e-5  # the trainer's with itself
  found = metrics_lib.of_updates([rescored, plain])  # as the first mini-batch says
  gap = np.abs(old - _plain_logprobs(tiny.CONFIG, tiny.params(), _TEMPERATURE))
  gap = np.asarray(gap)[_plain_rows()['mask'] > 0]
  np.testing.assert_allclose(found['policy/sampler_trainer_diff_mean'], gap.mean(), atol=1e-5)
  np.testing.assert_allclose(found['policy/sampler_trainer_diff_max'], gap.max(), atol=1e-5)


def test_score_gives_the_models_logprobs_at_the_temperature():
  batches = _pack()
  scored = _scored(_updater(), batches)
  by_text = {}
  for batch, new in zip(batches, scored, strict=True):
    assert new.old_logprobs.dtype == np.float32
    np.testing.assert_array_equal(new.old_logprobs[batch.loss_mask == 0], 0.0)
    for name in ('tokens', 'advantages', 'loss_target'):
      np.testing.assert_array_equal(new[name], batch[name])
    for r, slot in zip(*np.nonzero(batch.message_mask), strict=True):
      mine = (batch.loss_mask[r] > 0) & (batch.loss_message[r] == slot)
      by_text[tuple(batch.old_logprobs[r, mine].tolist())] = new.old_logprobs[r, mine]
  messages = [m for m in _messages()[0] if len(m.token_ids)]
  plain = {t: np.asarray(_plain_logprobs(tiny.CONFIG, tiny.params(), t)) for t in (0.7, 1.0)}
  for i, message in enumerate(messages):
    found = by_text[tuple(message.logprobs.tolist())]
    inside = _plain_rows()['mask'][i] > 0
    np.testing.assert_allclose(found, plain[_TEMPERATURE][i, inside], atol=1e-5)
    assert np.abs(found - plain[1.0][i, inside]).max() > 1e-2


def test_tokens_without_weight_are_not_trained():
  batches = _pack()
  weigh = lambda factor: [b.replace(token_weights=factor * b.loss_mask) for b in batches]
  plain, ones = (_updater().optimizer_step(_state(), x)[0] for x in (batches, weigh(1)))
  _close(_params(ones), _params(plain))
  _, metrics = _updater().optimizer_step(_state(), weigh(0))
  assert metrics['policy/grad_norm'] == 0


def test_entropy_is_that_of_the_predictions():
  rows = _plain_rows()
  _, metrics = _updater().optimizer_step(_state(), _pack())
  total = 0.0
  logits = functools.partial(tiny.logits, tiny.CONFIG)
  for row, mask in zip(rows['tokens'], rows['mask'], strict=True):
    table = np.asarray(logits(tiny.params(), row[:-1]), np.float64)[mask > 0] / _TEMPERATURE
    table -= np.log(np.exp(table).sum(axis=1, keepdims=True))
    total -= (np.exp(table) * table).sum()
  np.testing.assert_allclose(metrics['policy/entropy'], total / rows['mask'].sum(), rtol=1e-4)


@pytest.mark.parametrize('field', ['advantages', 'old_logprobs'])
def test_loss_that_is_not_finite_is_an_error(field):
  batches = _pack()
  batches[-1] = batches[-1].replace(**{field: np.full_like(batches[-1][field], np.nan)})
  with pytest.raises(NonFiniteLossError, match='objective=nan'):
    _updater().optimizer_step(_state(), batches)


@pytest.mark.parametrize('kind', [np.array, jnp.array])
def test_parameters_handed_in_stay_as_they_are(kind):
  """The step donates the state's arrays, not those that the state was made from."""
  params = jax.tree.map(kind, tiny.params())
  state = _state(params=params)
  state, _ = _updater().optimizer_step(state, _pack())
  _updater().optimizer_step(state, _pack())
  _close(params, tiny.params(), atol=0)


# Adapters and the reference policy.


def _adapted():
  """Returns parameters with adapters that change the model, and those without."""
  rng = np.random.default_rng(5)
  flat = flax.traverse_util.flatten_dict(tiny.params(_LORA))
  adapted = {
    path: rng.normal(0, 0.03, x.shape).astype(np.float32) if path[-1] == 'lora_b' else x
    for path, x in flat.items()
  }
  base = {path: x for path, x in flat.items() if not path[-1].startswith('lora_')}
  return flax.traverse_util.unflatten_dict(adapted), flax.traverse_util.unflatten_dict(base)


def test_the_reference_of_adapters_is_where_they_began():
  """Starts from adapters that already change the model, as after SFT."""
  params, _ = _adapted()
  state = state_lib.init(params, optax.sgd(1.0), lora=True, keep_reference=True)
  updater, batches = _updater(_LORA, _KL), _pack()
  scored = train_batches.with_old_logprobs(batches, updater.scored(state, batches))
  state, first = updater.optimizer_step(state, scored)
  assert first['policy/kl'] < 1e-9
  _, second = updater.optimizer_step(state, batches)
  assert second['policy/kl'] > 1e-6


def test_lora_trains_adapters_towards_the_reference():
  """The reference is the model without adapters if they started at 0."""
  params, base = _adapted()
  state = _state(_LORA, params)
  state = state.replace(reference=jax.tree.map(np.zeros_like, state.trainable))
  assert {path[-1] for path in state.trainable} == {'lora_a', 'lora_b'}
  assert not any(path[-1].startswith('lora_') for path in state.frozen)

  old = np.asarray(_plain_logprobs(_LORA, params, _TEMPERATURE)) * _plain_rows()['mask']
  step = _plain_step(_LORA, _KL)
  (loss, (_, _, divergence)), gradient = step(params, old, base=base)
  updater = _updater(_LORA, _KL)
  state, metrics = updater.optimizer_step(state, _pack(messages=_with_old(old)))

  np.testing.assert_allclose(metrics['policy/kl'], divergence.mean(), rtol=1e-4)
  assert metrics['policy/kl'] > 1e-2
  np.testing.assert_allclose(metrics['policy/objective'], -loss, atol=1e-5)
  after, gradient = _params(state), jax.tree.map(np.asarray, gradient)
  is_adapter = lambda path: path[-1].startswith('lora_')
  trained, frozen = _split(after, is_adapter)
  wanted, _ = _split(gradient, is_adapter)
  start, unchanged = _split(params, is_adapter)
  _close(jax.tree.map(np.subtract, start, trained), wanted)
  assert min(np.abs(x).max() for x in wanted.values()) > 1e-3
  _close(frozen, unchanged, atol=0)


# Optimizer.


@pytest.mark.parametrize('warmup', [0, 1, 2, 3])
def test_learning_rate_warms_up_and_decays(warmup):
  params = {('a', 'kernel'): np.ones((2, 2), np.float32)}
  optimizer = state_lib.make_optimizer(
    LearnerOptions(learning_rate=0.1, schedule='linear', warmup_updates=warmup, b1=0.0, b2=0.0),
    updates=10,
  )
  update, opt_state = jax.jit(optimizer.update), optimizer.init(params)
  sizes = []
  for _ in range(11):
    step, opt_state = update(jax.tree.map(jnp.ones_like, params), opt_state, params)
    sizes.append(-float(step['a', 'kernel'][0, 0]))  # Adam without memory: the rate itself
  expected = [0.1 * k / warmup for k in range(1, warmup + 1)]
  expected += [0.1 * (1 - i / (10 - warmup)) for i in range(11 - warmup)]
  np.testing.assert_allclose(sizes, expected, atol=1e-5)


def test_decay_is_for_matrices_and_the_norm_is_clipped():
  params = {'kernel': jnp.ones((2, 2)), 'scale': jnp.ones(2)}
  optimizer = state_lib.make_optimizer(
    LearnerOptions(learning_rate=0.1, weight_decay=0.5, grad_clip=1.0), updates=10
  )
  step, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
  np.testing.assert_allclose(step['kernel'], -0.05, rtol=1e-6)
  np.testing.assert_array_equal(step['scale'], 0.0)
  huge = jax.tree.map(lambda x: 1e6 * x, params)
  _, opt_state = optimizer.update(huge, optimizer.init(params), params)
  moments = optax.tree.get(opt_state, 'mu')
  np.testing.assert_allclose(_norm(moments), 0.1, rtol=1e-5)  # (1 - b1) * grad_clip


def test_a_mean_in_bfloat16_takes_half_its_memory_and_moves_the_same():
  params = {'w': jnp.linspace(-1.0, 1.0, 64)}
  moved, sizes = [], []
  for dtype in ('float32', 'bfloat16'):
    options = LearnerOptions(learning_rate=0.1, b1_dtype=dtype)
    optimizer = state_lib.make_optimizer(options, updates=3)
    state, x = optimizer.init(params), params
    for seed in range(3):
      grads = {'w': jax.random.normal(jax.random.key(seed), (64,))}
      updates, state = optimizer.update(grads, state, x)
      x = optax.apply_updates(x, updates)
    moved.append(x['w'] - params['w'])
    sizes.append(sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim))
  assert sizes == [2 * 64 * 4, 64 * 4 + 64 * 2]
  np.testing.assert_allclose(moved[1], moved[0], atol=2e-3)
  assert np.abs(moved[0] - moved[1]).max() > 0
