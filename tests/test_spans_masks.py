"""Spans, the off-policy mask and turn products, against loops written from the formulas."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_cases import HIGH, LENGTHS, LOW, MESSAGES, OPTIONS, SEQUENCE_RATIO, case, oracle, slope

from agent_gspo.algorithms.masks import opsm
from agent_gspo.algorithms.objectives import OBJECTIVES, gmpo, grpo, make
from agent_gspo.algorithms.packed import PackedTokens
from agent_gspo.algorithms.seeupo import seeupo_multipliers
from agent_gspo.algorithms.spans import RATIO_SPANS, span_ids, span_statistics

_EPISODE = np.asarray([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
_AGENT = np.asarray([0, 1, 0, 0, 1, 2, 2, 0, 2, 1])
_EXPECTED = {
  'message': np.arange(10),
  'agent': np.asarray([0, 1, 0, 2, 3, 6, 6, 4, 6, 5]),
  'episode': _EPISODE,
}


@pytest.mark.parametrize('ratio_span', RATIO_SPANS)
def test_span_ids(ratio_span):
  np.testing.assert_array_equal(span_ids(ratio_span, _EPISODE, _AGENT), _EXPECTED[ratio_span])


def test_unknown_span():
  with pytest.raises(KeyError):
    span_ids('turn', _EPISODE, _AGENT)


def test_span_statistics():
  rng = np.random.default_rng(0)
  sums, tokens = rng.normal(size=11), np.asarray([*LENGTHS, 0])
  span = np.asarray([*_EXPECTED['agent'], 7])  # the last one is padding, alone in its span
  log_ratio, share = span_statistics(sums, tokens, span)
  assert log_ratio.dtype == share.dtype == np.float32
  for m in range(10):
    mine = [i for i in range(10) if span[i] == span[m]]
    count = sum(tokens[i] for i in mine)
    np.testing.assert_allclose(log_ratio[m], sum(sums[i] for i in mine) / count, rtol=1e-6)
    np.testing.assert_allclose(share[m], tokens[m] / count, rtol=1e-6)
  assert share[10] == 0
  assert np.isfinite(log_ratio[10])
  np.testing.assert_allclose(share.sum(), 7, rtol=1e-6)


def _spanned(ratio_span: str, seed: int = 0, constant: bool = True):
  """A case whose messages form spans, of one advantage each or not."""
  x = case(seed)
  span = np.concatenate([_EXPECTED[ratio_span], [10, 11]])
  gap = np.asarray(x.logprobs - x.old_logprobs, np.float64) * np.asarray(x.token_mask)
  owner = np.asarray(x.message_ids)
  sums = np.bincount(owner, gap, len(span))
  tokens = np.bincount(owner, np.asarray(x.token_mask), len(span))
  log_ratio, share = span_statistics(sums, tokens, span)
  by_span = np.asarray([1.3, -2.0, 0.6, -0.7, 0.9, -1.1, 0.8, 0.4, -0.3, 1.0, 0.0, 0.0])
  advantages = by_span[span] if constant else np.asarray(x.advantages)
  return x.replace(
    span_log_ratio=jnp.asarray(log_ratio),
    span_share=jnp.asarray(share),
    advantages=jnp.asarray(advantages, jnp.float32),
  ), span


def _true_span_objective(name: str, x: PackedTokens, span: np.ndarray, live):
  """`mean over spans of min(s A, clip(s) A)`, times the span's length for luspo."""
  x = {k: np.asarray(v, np.float64) for k, v in x.items() if v is not None}
  total, count = 0.0, 0
  for k in np.unique(span[:MESSAGES]):
    mine = np.isin(x['message_ids'], np.nonzero(span == k)[0]) & (x['token_mask'] > 0)
    advantage = x['advantages'][np.nonzero(span == k)[0][0]]
    s = np.exp(np.sum(live[mine] - x['old_logprobs'][mine]) / mine.sum())
    if advantage > 0:
      value = advantage * (s if s < 1 + HIGH else 1 + HIGH)
    else:
      value = advantage * (s if s > 1 - LOW else 1 - LOW)
    total, count = total + value * (mine.sum() if name == 'luspo' else 1), count + 1
  return total, count


@functools.cache
def _compiled(name: str):
  function = functools.partial(OBJECTIVES[name], **OPTIONS[name])

  def total(logprobs, x):
    result = function(x.replace(logprobs=logprobs))
    return result.total, result

  return jax.jit(jax.value_and_grad(total, has_aux=True))


def _run(name, x):
  (_, result), gradient = _compiled(name)(x.logprobs, x)
  return result, np.asarray(gradient)


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('ratio_span', RATIO_SPANS)
@pytest.mark.parametrize('name', SEQUENCE_RATIO)
def test_spans_give_the_value_and_gradient_of_the_true_span_objective(name, ratio_span, seed):
  x, span = _spanned(ratio_span, seed)
  result, gradient = _run(name, x)
  live = np.asarray(x.logprobs, np.float64)
  total, count = _true_span_objective(name, x, span, live)
  np.testing.assert_allclose(result.total, total, rtol=3e-6, atol=1e-6)
  np.testing.assert_allclose(result.count, count, rtol=1e-6)
  numeric = slope(lambda v: _true_span_objective(name, x, span, v)[0], live)
  np.testing.assert_allclose(gradient, numeric, rtol=2e-5, atol=2e-6)
  assert 0 < (np.abs(numeric) > 0).mean() < 1


@pytest.mark.parametrize('name', SEQUENCE_RATIO)
def test_a_span_may_lie_in_several_micro_batches(name):
  x, _ = _spanned('episode', constant=False)
  whole, gradient = _run(name, x)
  total, count, parts = 0.0, 0.0, 0.0
  for chosen in (np.arange(12) % 3 == k for k in range(3)):
    mask = jnp.asarray(chosen, jnp.float32)
    part, part_gradient = _run(name, x.replace(message_mask=x.message_mask * mask))
    total, count, parts = total + part.total, count + part.count, parts + part_gradient
  np.testing.assert_allclose(total, whole.total, rtol=1e-5)
  np.testing.assert_allclose(count, 3, rtol=1e-6)
  np.testing.assert_allclose(parts, gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('name', SEQUENCE_RATIO)
def test_the_span_of_a_message_alone_is_the_message(name):
  x, _ = _spanned('message', constant=False)
  bare = x.replace(span_log_ratio=None, span_share=None)
  for one, other in zip(_run(name, x), _run(name, bare), strict=True):
    chex.assert_trees_all_close(one, other, rtol=2e-6, atol=1e-6)


def test_messages_of_a_span_keep_their_own_advantage():
  x, span = _spanned('episode', constant=False)
  total, advantages = 0.0, np.asarray(x.advantages, np.float64)
  gap = np.asarray(x.logprobs - x.old_logprobs, np.float64) * np.asarray(x.token_mask)
  for m in range(MESSAGES):
    mine = np.isin(np.asarray(x.message_ids), np.nonzero(span == span[m])[0])
    mine &= np.asarray(x.token_mask) > 0
    s = np.exp(gap[mine].sum() / mine.sum())
    bounded = min(max(s, 1 - LOW), 1 + HIGH)
    total += LENGTHS[m] / mine.sum() * min(s * advantages[m], bounded * advantages[m])
  np.testing.assert_allclose(_run('gspo', x)[0].total, total, rtol=3e-6)


def test_token_ratios_keep_their_ratio_and_average_over_spans():
  x, span = _spanned('agent', constant=False)
  bare = x.replace(span_log_ratio=None, span_share=None)
  result, plain = (grpo(v, clip_low=LOW, clip_high=HIGH) for v in (x, bare))
  np.testing.assert_array_equal(result.ratio, plain.ratio)
  np.testing.assert_allclose(result.count, len(np.unique(span[:MESSAGES])), rtol=1e-6)
  expected = 0.0
  for m in range(MESSAGES):
    only = bare.replace(message_mask=jnp.zeros(12).at[m].set(1.0))
    length = sum(LENGTHS[i] for i in range(MESSAGES) if span[i] == span[m])
    expected += oracle('grpo', only)[0] * LENGTHS[m] / length
  np.testing.assert_allclose(result.total, expected, rtol=3e-6)


def test_gmpo_takes_no_spans():
  assert [name for name, spec in OBJECTIVES.items() if not spec.spans] == ['gmpo']
  with pytest.raises(ValueError, match='gmpo takes no spans'):
    gmpo(_spanned('agent')[0])


def _stale(x: PackedTokens, threshold: float, span: np.ndarray | None = None) -> np.ndarray:
  """The messages that OPSM masks, by a loop."""
  masked = np.zeros(12, bool)
  new, old = (np.asarray(v, np.float64) for v in (x.logprobs, x.old_logprobs))
  for m in range(MESSAGES):
    members = [m] if span is None else np.nonzero(span == span[m])[0]
    mine = np.isin(np.asarray(x.message_ids), members) & (np.asarray(x.token_mask) > 0)
    masked[m] = x.advantages[m] < 0 and np.mean(old[mine] - new[mine]) > threshold
  return masked


@pytest.mark.parametrize('spans', [False, True])
def test_opsm_drops_what_is_negative_and_has_left_the_policy(spans):
  x, span = _spanned('agent', seed=1, constant=False)
  if not spans:
    x, span = x.replace(span_log_ratio=None, span_share=None), None
  x = x.replace(advantages=-jnp.abs(x.advantages).at[1].set(-0.7).at[2].set(0.4))
  for threshold in (0.05, 0.4):
    masked = _stale(x, threshold, span)
    assert 0 < masked.sum() < MESSAGES
    expected = np.where(masked, 0.0, np.asarray(x.advantages))
    np.testing.assert_array_equal(opsm(x, threshold=threshold).advantages, expected)


def test_opsm_defaults_to_half_a_nat_and_spares_the_positive():
  log_ratio = jnp.asarray([-0.6, -0.6, -0.4, 0.6])
  x = PackedTokens(
    logprobs=log_ratio - 1,
    old_logprobs=jnp.full(4, -1.0),
    message_ids=jnp.arange(4),
    token_mask=jnp.ones(4),
    advantages=jnp.asarray([-1.0, 1.0, -1.0, -1.0]),
    message_mask=jnp.ones(4),
  )
  np.testing.assert_array_equal(opsm(x).advantages, [0.0, 1.0, -1.0, -1.0])


@pytest.mark.parametrize('name', OBJECTIVES)
def test_opsm_composes_with_every_objective(name):
  """What is masked gets no gradient but counts; the rest is as it was."""
  x = case(1)
  x = x.replace(advantages=-jnp.abs(x.advantages))
  masked = _stale(x, 0.1)[np.asarray(x.message_ids)] & (np.asarray(x.token_mask) > 0)
  assert 0 < masked.sum() < len(masked)
  plain, gradient = _run(name, x)
  options = {**OPTIONS[name], 'opsm_threshold': 0.1}
  total = lambda logprobs: make(name, **options)(x.replace(logprobs=logprobs)).total
  with_mask = np.asarray(jax.grad(total)(x.logprobs))
  np.testing.assert_array_equal(with_mask[masked], 0.0)
  np.testing.assert_allclose(with_mask[~masked], gradient[~masked], rtol=1e-5, atol=1e-7)
  assert make(name, **options)(x).count == plain.count


def test_seeupo_multipliers():
  rng = np.random.default_rng(5)
  episode, turn = np.repeat([4, 9, 2], 6), np.tile([0, 1, 1, 3, 5, 5], 3)
  ratio = np.exp(rng.normal(0, 0.12, 18))
  order = rng.permutation(18)
  episode, turn, ratio = episode[order], turn[order], ratio[order]
  found = seeupo_multipliers(ratio, episode, turn)
  assert found.dtype == np.float32
  for m in range(18):
    product = 1.0
    for u in range(18):
      if episode[u] == episode[m] and turn[u] > turn[m]:
        product *= min(max(ratio[u], 0.8), 1.2)
    np.testing.assert_allclose(found[m], min(max(product, 0.8), 1.2), rtol=1e-6)
  np.testing.assert_array_equal(found[turn == 5], 1.0)
  assert found.min() < 0.9
  assert found.max() > 1.1


def test_seeupo_bounds_each_factor_and_the_product():
  three = lambda *ratios: seeupo_multipliers(
    np.asarray(ratios), np.zeros(3, int), np.arange(3), low=0.7, high=1.5
  )
  np.testing.assert_allclose(three(1.0, 9.0, 0.01), [1.5 * 0.7, 0.7, 1.0], rtol=1e-6)
  np.testing.assert_allclose(three(7.0, 1.4, 1.4), [1.5, 1.4, 1.0], rtol=1e-6)
  np.testing.assert_allclose(three(7.0, 0.8, 0.8), [0.7, 0.8, 1.0], rtol=1e-6)
