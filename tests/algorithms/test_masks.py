"""The off-policy mask against a loop written from the formula."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_cases import MESSAGES, OPTIONS, case, spanned

from agent_gspo.algorithms.objectives.losses import OBJECTIVES, make
from agent_gspo.algorithms.objectives.masks import opsm
from agent_gspo.algorithms.objectives.packed import PackedTokens


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
  x, span = spanned('agent', seed=1, constant=False)
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
  total = lambda logprobs, threshold: (
    make(name, opsm_threshold=threshold, **OPTIONS[name])(x.replace(logprobs=logprobs)).total
  )
  gradient, with_mask = (np.asarray(jax.grad(total)(x.logprobs, v)) for v in (None, 0.1))
  np.testing.assert_array_equal(with_mask[masked], 0.0)
  np.testing.assert_allclose(with_mask[~masked], gradient[~masked], rtol=1e-5, atol=1e-7)
  plain, masked = (make(name, opsm_threshold=v, **OPTIONS[name])(x) for v in (None, 0.1))
  assert masked.count == plain.count
