"""Compares the off-policy mask and truncated importance sampling with loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_cases import MESSAGES, OPTIONS, case, oracle, slope, spanned

from agent_gspo.algorithms.objectives.losses import OBJECTIVES, make
from agent_gspo.algorithms.objectives.off_policy import opsm, truncated_weights
from agent_gspo.algorithms.objectives.parts import PackedTokens
from agent_gspo.algorithms.options import TIS_LEVELS

_CAP = 1.5


# The off-policy mask.


def _stale(x: PackedTokens, threshold: float, span: np.ndarray | None = None) -> np.ndarray:
  """Returns the messages that OPSM masks, by a loop."""
  masked = np.zeros(12, bool)
  behavior = x.old_logprobs if x.sampler_logprobs is None else x.sampler_logprobs
  new, old = (np.asarray(v, np.float64) for v in (x.logprobs, behavior))
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


def test_opsm_measures_from_the_behavior_policy():
  """Also if ratios start from the trainer's log-probs of the newest weights."""
  x = case(1)
  sampler = jnp.asarray(_sampler(x))
  x = x.replace(advantages=-1 - jnp.abs(x.advantages), sampler_logprobs=sampler)
  for threshold in np.linspace(0.05, 0.5, 10).tolist():
    masked = _stale(x, threshold)
    assert 0 < masked.sum() < MESSAGES
    expected = np.where(masked, 0.0, np.asarray(x.advantages))
    np.testing.assert_array_equal(opsm(x, threshold=threshold).advantages, expected)
  assert (_stale(x, 0.1) != _stale(x.replace(sampler_logprobs=None), 0.1)).any()


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
  """Masked sequences get no gradient but count; the rest is as it was."""
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


# Truncated importance sampling.


def _sampler(x, seed: int = 4) -> np.ndarray:
  """Returns log-probs on both sides of the old ones, with arbitrary padding."""
  noise = np.random.default_rng(seed).normal(0.0, 0.3, len(x.old_logprobs))
  return np.where(x.token_mask > 0, x.old_logprobs + noise, 1e4 * noise).astype(np.float32)


def _by_hand(x, sampler, cap: float, level: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns weights of real tokens, and whether they were truncated, by a loop."""
  weights, truncated = np.ones(len(sampler)), np.zeros(len(sampler))
  real = np.asarray(x.token_mask) > 0
  old, sampler = np.asarray(x.old_logprobs, np.float64), np.asarray(sampler, np.float64)
  for t in np.flatnonzero(real):
    mine = [t]
    if level == 'message':
      mine = np.flatnonzero(real & (np.asarray(x.message_ids) == x.message_ids[t]))
    quotient = np.prod(np.exp(old[mine]) / np.exp(sampler[mine]))
    weights[t], truncated[t] = min(cap, quotient), quotient > cap
  return weights, truncated


@pytest.mark.parametrize('level', TIS_LEVELS)
@pytest.mark.parametrize('cap', [1.0, _CAP, 50.0])
def test_weights_equal_the_formula(level, cap):
  x = case(2)
  sampler = _sampler(x)
  found = truncated_weights(x, jnp.asarray(sampler), cap=cap, level=level)
  expected = _by_hand(x, sampler, cap, level)
  real = np.asarray(x.token_mask) > 0
  for ours, theirs in zip(found, expected, strict=True):
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(np.asarray(ours)[real], theirs[real], rtol=1e-5)
  if level == 'token':  # padding is not another policy, whatever it holds
    np.testing.assert_array_equal(found[0][~real], 1.0)
  if cap == _CAP:
    assert 0 < expected[1][real].mean() < 1
    assert expected[0].min() < 0.8


@pytest.mark.parametrize('level', TIS_LEVELS)
def test_weights_are_1_where_sampler_and_trainer_agree_and_finite_where_they_do_not(level):
  x = case(2)
  same, truncated = truncated_weights(x, x.old_logprobs, cap=_CAP, level=level)
  np.testing.assert_array_equal(same, 1.0)
  np.testing.assert_array_equal(truncated, 0.0)
  for far in (-1e30, 1e30):
    weights, _ = truncated_weights(x, x.old_logprobs + far, cap=_CAP, level=level)
    np.testing.assert_allclose(weights[x.token_mask > 0], 0.0 if far > 0 else _CAP, rtol=1e-6)


@pytest.mark.parametrize('level', TIS_LEVELS)
@pytest.mark.parametrize('name', OBJECTIVES)
def test_the_weight_is_a_constant_factor_of_the_surrogate(name, level):
  """Against finite differences of an oracle in which the weight does not move."""
  plain = case(1)
  sampler = jnp.asarray(_sampler(plain))
  objective = make(name, **OPTIONS[name])

  def total(logprobs, old):
    # Old log-probs that follow the policy, as in a first mini-batch: the weight depends on them.
    x = plain.replace(logprobs=logprobs, old_logprobs=old)
    weights, _ = truncated_weights(x, sampler, cap=_CAP, level=level)
    result = objective(x.replace(importance=weights, old_logprobs=jax.lax.stop_gradient(old)))
    return result.total, result.count

  (value, count), gradients = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(
    plain.logprobs, plain.old_logprobs
  )
  weighted = plain.replace(importance=_by_hand(plain, sampler, _CAP, level)[0])
  np.testing.assert_allclose(value, oracle(name, weighted)[0], rtol=1e-5, atol=1e-5)
  assert count == objective(plain).count
  numeric = slope(lambda live: oracle(name, weighted, live)[0], plain.logprobs)
  np.testing.assert_allclose(gradients[0], numeric, rtol=5e-5, atol=5e-6)
  np.testing.assert_array_equal(gradients[1], 0.0)


def test_messages_sampled_from_another_policy_are_weighed_as_if_from_the_old_one():
  """The mean under the sampler, weighted, is the mean under the trainer's old policy."""
  rng = np.random.default_rng(0)
  sampler, old = (rng.dirichlet(np.full(4, 2.0), size=3) for _ in range(2))
  drawn = np.stack([rng.choice(4, 20_000, p=p) for p in sampler], axis=1)
  logprobs = lambda p: np.log(p[np.arange(3), drawn]).astype(np.float32).reshape(-1)
  count = len(drawn)
  x = case().replace(
    logprobs=jnp.asarray(logprobs(old)),
    old_logprobs=jnp.asarray(logprobs(old)),
    message_ids=jnp.repeat(jnp.arange(count), 3),
    token_mask=jnp.ones(3 * count),
    advantages=jnp.ones(count),
    message_mask=jnp.ones(count),
  )
  weights, _ = truncated_weights(x, jnp.asarray(logprobs(sampler)), cap=1e9, level='message')
  value = (drawn[:, 0] == 1) * 1.0 + (drawn[:, 1:] == 2).all(axis=1)  # not a sum over tokens
  expected = old[0, 1] + old[1, 2] * old[2, 2]
  found = np.mean(np.asarray(weights).reshape(-1, 3)[:, 0] * value)
  assert found == pytest.approx(expected, rel=0.1)
  assert np.mean(value) != pytest.approx(expected, rel=0.2)
