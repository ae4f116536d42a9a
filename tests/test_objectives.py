"""Objectives and the KL estimator against float64 loops written from the formulas."""

from __future__ import annotations

import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agent_gspo.algorithms import kl
from agent_gspo.algorithms.objectives import (
  OBJECTIVES,
  PackedTokens,
  grpo,
  gspo,
  gspo_token,
  imitation,
)

_LOW, _HIGH = 0.1, 0.2  # asymmetric, so that a swapped pair shows
_LENGTHS = (1, 5, 3, 8, 1, 2, 4, 1, 6, 3)
_PADDED_MESSAGES = 2
_PADDED_TOKENS = 7


def _case(seed: int = 0, spread: float = 0.3, dtype=np.float32, scramble: bool = True):
  """Packed tokens of messages with ratios on both sides of both clips, A of both signs."""
  rng = np.random.default_rng(seed)
  owner = np.repeat(np.arange(len(_LENGTHS)), _LENGTHS)
  drift = np.tile([-0.5, 0.5, -0.03, 0.04, 0.6], 2)[owner]
  old = rng.normal(-2.0, 1.0, len(owner))
  new = old + drift + rng.normal(0.0, spread, len(owner))
  # Padding holds junk, and says that it belongs to message 0.
  junk = rng.normal(0.0, 30.0, (2, _PADDED_TOKENS))
  new, old = np.concatenate([new, junk[0]]), np.concatenate([old, junk[1]])
  owner = np.concatenate([owner, np.zeros(_PADDED_TOKENS, int)])
  mask = np.arange(len(owner)) < sum(_LENGTHS)
  order = rng.permutation(len(owner)) if scramble else np.arange(len(owner))
  advantages = np.concatenate([[1.3, 0.7, -0.4, -2.0, 0.9], [-1.1, -0.6, 0.8, 0.0, -0.2], [5, -5]])
  return PackedTokens(
    logprobs=jnp.asarray(new[order], dtype),
    old_logprobs=jnp.asarray(old[order], dtype),
    message_ids=jnp.asarray(owner[order], jnp.int32),
    token_mask=jnp.asarray(mask[order], dtype),
    advantages=jnp.asarray(advantages, dtype),
    message_mask=jnp.asarray(np.arange(len(advantages)) < len(_LENGTHS), dtype),
  )


def _oracle(name: str, x: PackedTokens, low: float = _LOW, high: float = _HIGH):
  """`(total, count, ratio, clipped)`: a loop over messages and tokens, in float64."""
  x = {k: np.asarray(v, np.float64) for k, v in x.items()}
  messages = len(x['advantages'])
  ratio, clipped, total, count = np.zeros(messages), np.zeros(messages), 0.0, 0
  for m in range(messages):
    if not x['message_mask'][m]:
      continue
    mine = (x['message_ids'] == m) & (x['token_mask'] > 0)
    new, old, advantage = x['logprobs'][mine], x['old_logprobs'][mine], x['advantages'][m]
    if name == 'imitation':
      total, count = total + new.sum(), count + len(new)
      continue
    if name == 'grpo':
      ratios = np.exp(new - old)
    else:  # the geometric mean of the tokens' ratios
      ratios = np.full(len(new), np.prod(np.exp(new - old)) ** (1 / len(new)))
    terms, cut = [], []
    for r in ratios:
      # PPO written out by cases, without min and clip.
      if advantage >= 0:
        cut.append(r > 1 + high and advantage > 0)
        terms.append(advantage * (1 + high if r > 1 + high else r))
      else:
        cut.append(r < 1 - low)
        terms.append(advantage * (1 - low if r < 1 - low else r))
    total, count = total + np.mean(terms), count + 1
    ratio[m], clipped[m] = np.mean(ratios), np.mean(cut)
  return total, count, ratio, clipped


def _function(name: str, low: float = _LOW, high: float = _HIGH):
  if name == 'imitation':
    return imitation
  return functools.partial(OBJECTIVES[name], clip_low=low, clip_high=high)


_NAMES = ('gspo', 'gspo_token', 'grpo', 'imitation')


class OracleTest(chex.TestCase):
  """Each objective, with and without jit."""

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(*_NAMES)
  def test_equals_the_formula(self, name):
    function = self.variant(_function(name))
    for seed in range(3):
      x = _case(seed)
      result = function(x)
      total, count, ratio, clipped = _oracle(name, x)
      np.testing.assert_allclose(result.total, total, rtol=2e-6)
      np.testing.assert_array_equal(result.count, count)
      np.testing.assert_allclose(result.ratio, ratio, rtol=2e-6)
      np.testing.assert_allclose(result.clipped, clipped, rtol=1e-6)

  @chex.variants(with_jit=True, without_jit=True)
  def test_k3(self):
    p, q = np.log([0.5, 0.2, 0.3]), np.log([0.1, 0.6, 0.3])
    expected = q - p
    expected = np.exp(expected) - expected - 1
    found = self.variant(kl.k3)(jnp.float32(p), jnp.float32(q))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_case_visits_every_branch_of_the_clip():
  x = _case()
  for name in ('gspo', 'grpo'):
    _, _, ratio, clipped = _oracle(name, x)
    real = np.asarray(x.message_mask) > 0
    for positive in (True, False):
      chosen = clipped[real & ((np.asarray(x.advantages) > 0) == positive)]
      assert (chosen > 0).any(), (name, positive)
      assert (chosen < 1).any(), (name, positive)
    assert (ratio[real] < 1 - _LOW).any()
    assert (ratio[real] > 1 + _HIGH).any()
    assert ((ratio[real] > 1 - _LOW) & (ratio[real] < 1 + _HIGH)).any()


@pytest.mark.parametrize('name', _NAMES)
def test_gradient_equals_finite_differences(name):
  with jax.enable_x64(True):
    x = _case(dtype=np.float64)
    value = jax.jit(lambda logprobs: _function(name)(x.replace(logprobs=logprobs)).total)
    gradient = np.asarray(jax.grad(value)(x.logprobs))
    h = 1e-6
    numeric = np.asarray(
      [
        (value(x.logprobs.at[t].add(h)) - value(x.logprobs.at[t].add(-h))) / (2 * h)
        for t in range(len(gradient))
      ]
    )
  np.testing.assert_allclose(gradient, numeric, atol=1e-8)
  assert np.abs(numeric).max() > 0.1
  np.testing.assert_array_equal(gradient[np.asarray(x.token_mask) == 0], 0.0)


@functools.cache
def _compiled(name: str):
  def value(logprobs, x):
    result = _function(name)(x.replace(logprobs=logprobs))
    return result.total / jnp.maximum(result.count, 1.0), result

  return jax.jit(jax.value_and_grad(value, has_aux=True))


def _value_and_gradient(name: str, x: PackedTokens):
  """Mean objective, its gradient in the log-probs, and everything else."""
  (mean, result), gradient = _compiled(name)(x.logprobs, x)
  return np.asarray(mean), np.asarray(gradient), result


@pytest.mark.parametrize('spread', [0.0, 0.3, 3.0, 40.0])
def test_gspo_token_is_gspo_in_value_and_gradient(spread):
  with jax.enable_x64(True):
    x = _case(3, spread=spread, dtype=np.float64)
    mean, gradient, result = _value_and_gradient('gspo', x)
    token_mean, token_gradient, token_result = _value_and_gradient('gspo_token', x)
  np.testing.assert_allclose(token_mean, mean, rtol=1e-12)
  np.testing.assert_allclose(token_gradient, gradient, rtol=1e-9)
  np.testing.assert_allclose(token_result.ratio, result.ratio, rtol=1e-12)
  np.testing.assert_allclose(token_result.clipped, result.clipped, rtol=1e-6)


def test_gspo_is_grpo_on_one_token_messages_and_only_there():
  rng = np.random.default_rng(0)
  n = 40
  x = PackedTokens(
    logprobs=jnp.asarray(rng.normal(-1, 0.3, n), jnp.float32),
    old_logprobs=jnp.asarray(rng.normal(-1, 0.3, n), jnp.float32),
    message_ids=jnp.asarray(rng.permutation(n), jnp.int32),
    token_mask=jnp.ones(n),
    advantages=jnp.asarray(rng.normal(size=n), jnp.float32),
    message_mask=jnp.ones(n),
  )
  for one, other in zip(
    _value_and_gradient('gspo', x), _value_and_gradient('grpo', x), strict=True
  ):
    chex.assert_trees_all_close(one, other, rtol=1e-6, atol=1e-8)
  longer = _case(spread=0.3)
  assert abs(_value_and_gradient('gspo', longer)[0] - _value_and_gradient('grpo', longer)[0]) > 1e-3


def test_ratio_is_the_geometric_mean_whatever_the_length():
  """Saying a message twice changes nothing: the mean is per message, not per token."""
  x = _case(scramble=False, spread=0.0)
  twice = jax.tree.map(lambda v: jnp.concatenate([v, v]), x).replace(
    advantages=x.advantages, message_mask=x.message_mask
  )
  once, doubled = (_value_and_gradient('gspo', case)[2] for case in (x, twice))
  np.testing.assert_allclose(doubled.total, once.total, rtol=1e-6)
  np.testing.assert_allclose(doubled.ratio, once.ratio, rtol=1e-6)
  assert doubled.count == once.count == len(_LENGTHS)


@pytest.mark.parametrize('name', _NAMES)
def test_padding_and_order_change_nothing(name):
  plain = _case(5, scramble=False)
  mean, gradient, result = _value_and_gradient(name, plain)
  rng = np.random.default_rng(1)

  order = rng.permutation(len(gradient))
  tokens = ('logprobs', 'old_logprobs', 'message_ids', 'token_mask')
  scrambled = plain.replace(**{k: plain[k][order] for k in tokens})
  other_mean, other_gradient, other = _value_and_gradient(name, scrambled)
  np.testing.assert_allclose(other_mean, mean, rtol=1e-5)
  np.testing.assert_allclose(other_gradient, gradient[order], rtol=1e-5, atol=1e-8)
  np.testing.assert_allclose(other.ratio, result.ratio, rtol=1e-5)

  real = slice(0, sum(_LENGTHS))
  bare = plain.replace(
    **{k: plain[k][real] for k in tokens},
    advantages=plain.advantages[: len(_LENGTHS)],
    message_mask=plain.message_mask[: len(_LENGTHS)],
  )
  other_mean, other_gradient, other = _value_and_gradient(name, bare)
  np.testing.assert_allclose(other_mean, mean, rtol=1e-5)
  np.testing.assert_allclose(other_gradient, gradient[real], rtol=1e-5, atol=1e-8)
  assert result.count == other.count


@pytest.mark.parametrize('name', _NAMES)
def test_sum_of_parts_is_the_whole(name):
  """Micro-batches of unequal size: (total, count) add up, means would not."""
  x = _case(2)
  total = count = 0.0
  for first, last in ((0, 1), (1, 4), (4, len(_LENGTHS))):
    chosen = jnp.arange(len(x.advantages)).clip(first, last - 1) == jnp.arange(len(x.advantages))
    part = x.replace(
      token_mask=x.token_mask * chosen[x.message_ids], message_mask=x.message_mask * chosen
    )
    result = _value_and_gradient(name, part)[2]
    total, count = total + result.total, count + result.count
  np.testing.assert_allclose(total / count, _value_and_gradient(name, x)[0], rtol=1e-5)


def _one(log_ratio: float, advantage: float) -> PackedTokens:
  one = jnp.ones(1)
  return PackedTokens(
    logprobs=one * log_ratio,
    old_logprobs=one * 0,
    message_ids=jnp.zeros(1, jnp.int32),
    token_mask=one,
    advantages=one * advantage,
    message_mask=one,
  )


@pytest.mark.parametrize('name', ['gspo', 'gspo_token', 'grpo'])
@pytest.mark.parametrize(
  ('ratio', 'advantage', 'passes'),
  [(2.0, 1.0, False), (0.5, 1.0, True), (2.0, -1.0, True), (0.5, -1.0, False), (1.0, -1.0, True)],
)
def test_clip_takes_the_pessimistic_side(name, ratio, advantage, passes):
  """With A < 0 a ratio that has grown still gets its gradient; `max` would drop it."""
  x = _one(float(np.log(ratio)), advantage)
  value, gradient, result = _value_and_gradient(name, x)
  np.testing.assert_allclose(gradient, [ratio * advantage if passes else 0.0], rtol=1e-6)
  np.testing.assert_array_equal(result.clipped, [0.0 if passes else 1.0])
  bounds = (1 - _LOW, 1 + _HIGH)
  expected = ratio * advantage if passes else np.clip(ratio, *bounds) * advantage
  np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize('name', ['gspo', 'gspo_token', 'grpo'])
@pytest.mark.parametrize('log_ratio', [-1e4, -150.0, 150.0, 1e4, 1e30])
@pytest.mark.parametrize('advantage', [1.0, -1.0, 0.0])
def test_overflowing_log_ratio_gives_no_nan(name, log_ratio, advantage):
  value, gradient, result = _value_and_gradient(name, _one(log_ratio, advantage))
  for array in (value, gradient, *result.values()):
    assert np.isfinite(array).all()
  if advantage > 0:  # the clipped value is the exact one
    expected = 1 + _HIGH if log_ratio > 0 else 0.0
    np.testing.assert_allclose(value, expected, atol=1e-8)


@pytest.mark.parametrize('name', ['gspo', 'gspo_token', 'grpo'])
def test_nan_in_the_padding_stays_there(name):
  x = _case(scramble=False)
  junk = x.token_mask == 0
  dirty = x.replace(
    logprobs=jnp.where(junk, jnp.nan, x.logprobs),
    old_logprobs=jnp.where(junk, -jnp.inf, x.old_logprobs),
  )
  for clean, found in zip(
    _value_and_gradient(name, x), _value_and_gradient(name, dirty), strict=True
  ):
    chex.assert_trees_all_equal(found, clean)


@pytest.mark.parametrize('name', [*OBJECTIVES, 'imitation'])
def test_nothing_but_padding_is_zero_of_zero(name):
  x = jax.tree.map(jnp.zeros_like, _case())
  _, gradient, result = _value_and_gradient(name, x.replace(logprobs=x.logprobs - 3.0))
  assert result.total == result.count == 0
  np.testing.assert_array_equal(gradient, 0.0)


def test_clip_defaults_belong_to_the_algorithm():
  defaults = lambda f: tuple(p.default for p in list(inspect.signature(f).parameters.values())[1:])
  assert defaults(gspo) == defaults(gspo_token) == (3e-4, 4e-4)
  assert defaults(grpo) == (0.2, 0.2)
  with pytest.raises(TypeError, match='clip_range'):
    gspo(_case(), clip_range=0.2)


def test_shapes_are_checked():
  x = _case()
  with pytest.raises(AssertionError):
    gspo(x.replace(old_logprobs=x.old_logprobs[:-1]))
  with pytest.raises(AssertionError):
    gspo(x.replace(message_mask=x.message_mask[:-1]))


@pytest.mark.parametrize('name', ['gspo', 'gspo_token', 'grpo'])
def test_second_step_on_the_same_samples_is_partly_clipped(name):
  """A tabular policy: ratio exactly 1 at the first step, some messages clipped at the next."""
  rng = np.random.default_rng(0)
  owner = np.repeat(np.arange(16), rng.integers(1, 6, 16))
  context = jnp.asarray(rng.integers(0, 5, len(owner)))
  action = jnp.asarray(rng.integers(0, 7, len(owner)))
  logprobs = lambda table: jax.nn.log_softmax(table, axis=-1)[context, action]
  table = jnp.asarray(rng.normal(size=(5, 7)), jnp.float32)
  x = PackedTokens(
    logprobs=logprobs(table),
    old_logprobs=logprobs(table),
    message_ids=jnp.asarray(owner, jnp.int32),
    token_mask=jnp.ones(len(owner)),
    advantages=jnp.asarray(rng.normal(size=16), jnp.float32),
    message_mask=jnp.ones(16),
  )

  @jax.jit
  def step(table):
    def mean(table):
      result = _function(name, 0.03, 0.03)(x.replace(logprobs=logprobs(table)))
      return result.total / result.count, result

    gradient, result = jax.grad(mean, has_aux=True)(table)
    return table + gradient, result

  table, first = step(table)
  np.testing.assert_allclose(first.ratio, 1.0, atol=1e-6)
  np.testing.assert_array_equal(first.clipped, 0.0)
  _, later = step(table)
  assert 0 < later.clipped.mean() < 1
  assert later.total > first.total


def _policies():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(rng.normal(size=(2, 50)), jnp.float32)
  return jax.nn.log_softmax(logits, axis=-1)


def test_k3_is_unbiased_and_never_negative():
  log_p, log_q = _policies()
  p, q = np.exp(np.asarray(log_p, np.float64)), np.exp(np.asarray(log_q, np.float64))
  exact = np.sum(p * np.log(p / q))
  np.testing.assert_allclose(np.sum(p * np.asarray(kl.k3(log_p, log_q))), exact, rtol=1e-5)
  drawn = np.random.default_rng(1).choice(50, 20_000, p=p / p.sum())
  samples = np.asarray(kl.k3(log_p[drawn], log_q[drawn]))
  assert samples.min() >= 0
  assert abs(samples.mean() - exact) < 4 * samples.std() / np.sqrt(len(samples))
  np.testing.assert_array_equal(kl.k3(log_p, log_p), 0.0)
  tiny = np.asarray(kl.k3(log_p, log_p + 1e-4))
  assert (tiny >= 0).all()


def test_k3_as_a_loss_pulls_to_the_reference():
  """k1's expected gradient is 0 on-policy: noise, no constraint. k3's is not."""
  log_p, log_q = _policies()
  p = jax.lax.stop_gradient(jnp.exp(log_p))

  def expected_loss(logits, estimator):
    return jnp.sum(p * estimator(jax.nn.log_softmax(logits), log_q))

  k1 = jax.grad(expected_loss)(log_p, lambda new, reference: new - reference)
  np.testing.assert_allclose(k1, 0.0, atol=1e-7)
  k3 = jax.grad(expected_loss)(log_p, kl.k3)
  np.testing.assert_allclose(k3, p - jnp.exp(log_q), atol=1e-6)  # grad of KL(ref || pi)
  nothing = jax.grad(lambda reference: kl.k3(log_p, reference).sum())(log_q)
  np.testing.assert_array_equal(nothing, 0.0)


def test_k3_of_an_excluded_token_is_finite():
  value, gradient = jax.value_and_grad(lambda p: kl.k3(p, jnp.zeros(1))[0])(jnp.full(1, -1e3))
  assert np.isfinite(value)
  assert np.isfinite(gradient).all()
