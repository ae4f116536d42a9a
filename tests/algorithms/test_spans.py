"""Compares span ratios with loops written from the formulas."""

from __future__ import annotations

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from packed_cases import (
  AGENT,
  EPISODE,
  HIGH,
  LENGTHS,
  LOW,
  MESSAGES,
  SEQUENCE_RATIO,
  SPAN_OF,
  oracle,
  run,
  slope,
  spanned,
)

from agent_gspo.algorithms.objectives.losses import OBJECTIVES, gmpo, grpo
from agent_gspo.algorithms.objectives.parts import PackedTokens
from agent_gspo.algorithms.objectives.spans import span_ids, span_statistics
from agent_gspo.algorithms.options import RATIO_SPANS


@pytest.mark.parametrize('ratio_span', RATIO_SPANS)
def test_span_ids(ratio_span):
  np.testing.assert_array_equal(span_ids(ratio_span, EPISODE, AGENT), SPAN_OF[ratio_span])


def test_unknown_span():
  with pytest.raises(KeyError):
    span_ids('turn', EPISODE, AGENT)


def test_span_statistics():
  rng = np.random.default_rng(0)
  sums, tokens = rng.normal(size=11), np.asarray([*LENGTHS, 0])
  span = np.asarray([*SPAN_OF['agent'], 7])  # the last one is padding, alone in its span
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


def _true_span_objective(name: str, x: PackedTokens, span: np.ndarray, live):
  """Returns `mean over spans of min(s A, clip(s) A)`, times the span's length for luspo."""
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


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('ratio_span', RATIO_SPANS)
@pytest.mark.parametrize('name', SEQUENCE_RATIO)
def test_spans_give_the_value_and_gradient_of_the_true_span_objective(name, ratio_span, seed):
  x, span = spanned(ratio_span, seed)
  result, gradient = run(name, x)
  live = np.asarray(x.logprobs, np.float64)
  total, count = _true_span_objective(name, x, span, live)
  np.testing.assert_allclose(result.total, total, rtol=3e-6, atol=1e-6)
  np.testing.assert_allclose(result.count, count, rtol=1e-6)
  numeric = slope(lambda v: _true_span_objective(name, x, span, v)[0], live)
  np.testing.assert_allclose(gradient, numeric, rtol=2e-5, atol=2e-6)
  assert 0 < (np.abs(numeric) > 0).mean() < 1


@pytest.mark.parametrize('name', SEQUENCE_RATIO)
def test_a_span_may_lie_in_several_micro_batches(name):
  x, _ = spanned('episode', constant=False)
  whole, gradient = run(name, x)
  total, count, parts = 0.0, 0.0, 0.0
  for chosen in (np.arange(12) % 3 == k for k in range(3)):
    mask = jnp.asarray(chosen, jnp.float32)
    part, part_gradient = run(name, x.replace(message_mask=x.message_mask * mask))
    total, count, parts = total + part.total, count + part.count, parts + part_gradient
  np.testing.assert_allclose(total, whole.total, rtol=1e-5)
  np.testing.assert_allclose(count, 3, rtol=1e-6)
  np.testing.assert_allclose(parts, gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('name', SEQUENCE_RATIO)
def test_the_span_of_a_message_alone_is_the_message(name):
  x, _ = spanned('message', constant=False)
  bare = x.replace(span_log_ratio=None, span_share=None)
  for one, other in zip(run(name, x), run(name, bare), strict=True):
    chex.assert_trees_all_close(one, other, rtol=2e-6, atol=1e-6)


def test_messages_of_a_span_keep_their_own_advantage():
  x, span = spanned('episode', constant=False)
  total, advantages = 0.0, np.asarray(x.advantages, np.float64)
  gap = np.asarray(x.logprobs - x.old_logprobs, np.float64) * np.asarray(x.token_mask)
  for m in range(MESSAGES):
    mine = np.isin(np.asarray(x.message_ids), np.nonzero(span == span[m])[0])
    mine &= np.asarray(x.token_mask) > 0
    s = np.exp(gap[mine].sum() / mine.sum())
    bounded = min(max(s, 1 - LOW), 1 + HIGH)
    total += LENGTHS[m] / mine.sum() * min(s * advantages[m], bounded * advantages[m])
  np.testing.assert_allclose(run('gspo', x)[0].total, total, rtol=3e-6)


def test_token_ratios_keep_their_ratio_and_average_over_spans():
  x, span = spanned('agent', constant=False)
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
  with pytest.raises(ValueError, match='must be "message" with gmpo'):
    gmpo(spanned('agent')[0])
