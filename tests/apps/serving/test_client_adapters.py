"""Compares training of a client's adapters with numpy and with one undivided batch."""

from __future__ import annotations

import jax
import micro_run
import numpy as np
import pytest

from agent_gspo.apps.serving import adapters
from agent_gspo.apps.serving.adapters import LOSSES, Adapters, Datum
from agent_gspo.config import check as config_lib
from agent_gspo.training import setup as setup_lib

_ADAM = {
  'learning_rate': 0.01,
  'beta1': 0.9,
  'beta2': 0.95,
  'eps': 1e-8,
  'weight_decay': 0.1,
  'grad_clip_norm': 0.0,
}


@pytest.fixture(scope='module')
def model():
  setup = setup_lib.build(config_lib.check(micro_run.changed()))
  return Adapters(setup.sampler.config, setup.params)


def _moved(model: Adapters, seed: int = 0, rank: int = 2) -> adapters.Adapter:
  """Returns an adapter that changes the model."""
  adapter = model.make(rank, seed)
  draw = np.random.default_rng(seed)
  moved = lambda x: x + 0.02 * draw.normal(size=x.shape).astype(np.float32)
  adapter.trainable = jax.tree.map(moved, adapter.trainable)
  return adapter


def _data(model: Adapters, lengths=(3, 70, 9, 5, 12, 2), seed: int = 0) -> list[Datum]:
  draw = np.random.default_rng(seed)
  some = lambda n: draw.normal(size=n).astype(np.float32)
  ids = lambda n: draw.integers(0, model.config.vocab_size, n)
  return [
    Datum(
      ids(n).astype(np.int32),
      {
        'target_tokens': ids(n),
        'weights': some(n),
        'advantages': some(n),
        'logprobs': -3 + 0.3 * some(n),
      },
    )
    for n in lengths
  ]


def _expected(name: str, logprobs, x, o):
  """Returns losses of tokens by the formulas, in float64."""
  old, advantages = x['logprobs'].astype(float), x['advantages'].astype(float)
  if name == 'cross_entropy':
    return -logprobs * x['weights']
  ratio = np.exp(logprobs - old)
  if name == 'importance_sampling':
    return -ratio * advantages
  if name == 'dro':
    return -logprobs * advantages + o['beta'] / 2 * (logprobs - old) ** 2
  clipped = np.minimum(np.maximum(ratio, o['clip_low_threshold']), o['clip_high_threshold'])
  if name == 'ppo':
    return -np.where(advantages > 0, np.minimum(ratio, clipped), np.maximum(ratio, clipped)) * (
      advantages
    )
  return -clipped * logprobs * advantages


@pytest.mark.parametrize('name', LOSSES)
def test_losses_are_those_of_the_formulas_and_gradients_those_of_differences(model, name):
  adapter, data = _moved(model), _data(model)
  options = {
    option: 0.5 if value is None else value for option, value in LOSSES[name].options.items()
  }
  found = model.forward_backward(adapter, data, name, options)
  for datum, (logprobs, losses) in zip(data, found, strict=True):
    expected = _expected(name, logprobs.astype(float), datum.inputs, options)
    np.testing.assert_allclose(losses, expected, rtol=2e-5, atol=2e-5)
  frozen = {}  # CISPO's weights carry no gradient
  if name == 'cispo':
    frozen = [
      _expected(name, lp.astype(float), d.inputs, options) / lp
      for d, (lp, _) in zip(data, found, strict=True)
    ]

  def total(step: float) -> float:
    moved = adapters.Adapter(
      adapter.config,
      {path: x + step * direction[path] for path, x in adapter.trainable.items()},
      None,
    )
    result = model.forward_backward(moved, data, name, options, backward=False)
    if name == 'cispo':
      return sum(float((w * lp).sum()) for w, (lp, _) in zip(frozen, result, strict=True))
    return sum(float(losses.sum(dtype=float)) for _, losses in result)

  draw = np.random.default_rng(1)
  direction = {
    path: draw.normal(size=x.shape).astype(np.float32) for path, x in adapter.trainable.items()
  }
  norm = np.sqrt(sum((x**2).sum() for x in direction.values()))
  direction = {path: x / norm for path, x in direction.items()}
  slope = (total(3e-3) - total(-3e-3)) / 6e-3
  exact = sum(float((adapter.gradient[path] * direction[path]).sum()) for path in direction)
  assert exact == pytest.approx(slope, rel=0.01, abs=0.01)


def _samples_of_a_prompt(model: Adapters) -> list[Datum]:
  """Returns sequences that begin alike, with equal targets there and other weights."""
  prompt, *others = _data(model, (40, 9, 3, 9, 1, 1))
  found = [prompt]
  for other in others:
    inputs = {
      name: np.concatenate([(x + 0.5).astype(x.dtype)[:30], other.inputs[name]])
      for name, x in prompt.inputs.items()
    }
    inputs['target_tokens'][:30] = prompt.inputs['target_tokens'][:30]
    found.append(Datum(np.concatenate([prompt.tokens[:30], other.tokens]), inputs))
  return [*found, found[1]]


@pytest.mark.parametrize('columns', [adapters._COLUMNS, (8, 16)])  # one batch of rows, several
@pytest.mark.parametrize('made', [_data, _samples_of_a_prompt])
def test_sequences_learned_together_are_as_alone(model, made, columns, monkeypatch):
  monkeypatch.setattr(adapters, '_COLUMNS', columns)
  data, one, parts = made(model), _moved(model), _moved(model)
  together = model.forward_backward(one, data, 'cross_entropy', {})
  for datum, found in zip(data, together, strict=True):
    (alone,) = model.forward_backward(parts, [datum], 'cross_entropy', {})
    for x, expected in zip(found, alone, strict=True):
      np.testing.assert_allclose(x, expected, atol=1e-4)
  for path, gradient in one.gradient.items():
    np.testing.assert_allclose(parts.gradient[path], gradient, rtol=1e-4, atol=1e-3)  # up to 107


def test_no_sequences_have_no_losses_and_no_gradient(model):
  adapter = _moved(model)
  assert model.forward_backward(adapter, [], 'cross_entropy', {}) == []
  assert adapter.gradient is None


def test_a_prompt_is_computed_once(model):
  data = _samples_of_a_prompt(model)
  ((some, batch),) = adapters._packed(data, ['weights'])
  assert sorted(some) == [*range(len(data))]
  assert batch['tokens'].shape == (1, 64)
  assert batch['used'].sum() == sum(len(datum.tokens) for datum in data)
  assert (batch['target'] >= 0).sum() == 30 + 10 + 9 + 3 + 9 + 1 + 1


def test_a_new_adapter_changes_nothing_and_scores_what_was_sampled(model):
  prompt = np.arange(1, 8, dtype=np.int32)
  for adapter in (model.make(3, seed=1), _moved(model)):
    sampled = model.sample(
      adapter, [prompt, prompt], [1, 2], temperature=1.0, stop_ids=[], limits=[5, 5]
    )
    for ids, logprobs in zip(sampled.token_ids, sampled.logprobs, strict=True):
      scored = model.prompt_logprobs(adapter, np.concatenate([prompt, ids]))
      assert np.isnan(scored[0])
      np.testing.assert_allclose(scored[len(prompt) :], logprobs, atol=1e-5)
  ((alone, _),) = model.forward_backward(
    None, _data(model, [6]), 'cross_entropy', {}, backward=False
  )
  new = model.make(3, seed=1)
  ((same, _),) = model.forward_backward(new, _data(model, [6]), 'cross_entropy', {}, backward=False)
  np.testing.assert_array_equal(same, alone)
  assert new.gradient is None


@pytest.mark.parametrize('bound', [0.0, 0.5])
def test_a_step_is_that_of_adamw(model, bound):
  adapter = _moved(model)
  before = {path: np.asarray(x, float) for path, x in adapter.trainable.items()}
  first, second = dict.fromkeys(before, 0.0), dict.fromkeys(before, 0.0)
  for step in (1, 2):
    model.forward_backward(adapter, _data(model, seed=step), 'cross_entropy', {})
    gradient = {path: np.asarray(x, float) for path, x in adapter.gradient.items()}
    norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
    assert model.step(adapter, {**_ADAM, 'grad_clip_norm': bound}) == pytest.approx(norm, rel=1e-5)
    scale = min(1, bound / norm) if bound else 1
    for path, g in gradient.items():
      first[path] = 0.9 * first[path] + 0.1 * scale * g
      second[path] = 0.95 * second[path] + 0.05 * (scale * g) ** 2
      mean, spread = first[path] / (1 - 0.9**step), np.sqrt(second[path] / (1 - 0.95**step))
      before[path] -= 0.01 * (mean / (spread + 1e-8) + 0.1 * before[path])
  for path, x in adapter.trainable.items():
    np.testing.assert_allclose(x, before[path], rtol=1e-3, atol=1e-5)
  assert adapter.gradient is None


def test_a_saved_adapter_goes_on_bit_for_bit(model, tmp_path):
  data, adapter = _data(model), _moved(model)
  step = lambda one: (
    model.forward_backward(one, data, 'cross_entropy', {}),
    model.step(one, _ADAM),
  )
  step(adapter)
  file = tmp_path / 'run' / 'one.safetensors'
  adapters.save(file, adapter, moments=True)
  again = model.make(adapters.rank_of(file), seed=9)
  adapters.load(file, again, moments=True)
  step(adapter)
  step(again)
  for path, x in adapter.trainable.items():
    np.testing.assert_array_equal(again.trainable[path], x)
  with pytest.raises(ValueError, match='another model or rank'):
    adapters.load(file, model.make(5, seed=0), moments=False)
  adapters.save(file, adapter, moments=False)
  with pytest.raises(ValueError, match='no optimizer state'):
    adapters.load(file, again, moments=True)


def test_new_stepped_and_loaded_adapters_share_their_programs(tmp_path):
  setup = setup_lib.build(config_lib.check(micro_run.changed()))
  restored = jax.device_put(setup.params, jax.local_devices()[0])
  model = Adapters(setup.sampler.config, restored)
  rank = 7  # of no other test: equal functions share JAX's cache of programs
  adapter, data, file = model.make(rank, seed=0), _data(model), tmp_path / 'one.safetensors'
  earlier = model._stepped._cache_size()

  def step(one: adapters.Adapter) -> None:
    for _ in range(2):  # with and without an earlier gradient
      model.forward_backward(one, data, 'cross_entropy', {})
    model.step(one, _ADAM)

  step(adapter)
  adapters.save(file, adapter, moments=True)
  step(adapter)
  for moments in (True, False):
    again = model.make(rank, seed=1)
    adapters.load(file, again, moments=moments)
    step(again)
  assert model._gradients(adapter.config, 'cross_entropy', True)._cache_size() == 1
  assert model._stepped._cache_size() == earlier + 1
