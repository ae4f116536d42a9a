"""Compares objectives with float64 loops written from the formulas (`packed_cases`)."""

from __future__ import annotations

import functools
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from packed_cases import (
  HIGH,
  LENGTHS,
  LOW,
  MESSAGES,
  OPTIONS,
  PER_TOKEN,
  TOKENS,
  WITH_CLIP,
  case,
  objective,
  oracle,
  run,
  slope,
  with_options,
)

from agent_gspo import plugins
from agent_gspo.algorithms.objectives import losses
from agent_gspo.algorithms.objectives.losses import (
  OBJECTIVES,
  PackedTokens,
  make,
  reverse_kl,
)
from agent_gspo.algorithms.options import ObjectiveOptions

_NAMES = (*OBJECTIVES, 'imitation')
_PESSIMISTIC = ('gspo', 'gspo_token', 'luspo', 'grpo', 'dr_grpo', 'dapo')
_RATIO_NAMES = tuple(name for name in OBJECTIVES if name != 'reinforce')


def _assert_equals_oracle(name: str, x: PackedTokens):
  result, gradient = run(name, x)
  total, count, ratio, clipped = oracle(name, x)
  np.testing.assert_allclose(result.total, total, rtol=3e-6, atol=1e-5)
  np.testing.assert_allclose(result.count, count, rtol=1e-6)
  np.testing.assert_allclose(result.ratio, ratio, rtol=2e-6)
  np.testing.assert_allclose(result.clipped, clipped, rtol=1e-6)
  numeric = slope(lambda live: oracle(name, x, live)[0], x.logprobs)
  np.testing.assert_allclose(gradient, numeric, rtol=2e-5, atol=2e-6)
  assert np.abs(numeric).max() > 0.05
  np.testing.assert_array_equal(gradient[np.asarray(x.token_mask) == 0], 0.0)


def test_defaults_belong_to_the_algorithm():
  clip = lambda low, high: {'clip_low': low, 'clip_high': high}
  assert {name: spec.options for name, spec in OBJECTIVES.items()} == {
    'gspo': clip(3e-4, 4e-4),
    'gspo_token': clip(3e-4, 4e-4),
    'luspo': clip(2e-3, 2.5e-3),
    'grpo': clip(0.2, 0.2),
    'dr_grpo': {'max_length': None, **clip(0.2, 0.2)},
    'dapo': clip(0.2, 0.28),
    'cispo': clip(1.0, 4.0),
    'gmpo': clip(0.4, 0.4),
    'sapo': {'tau_positive': 1.0, 'tau_negative': 1.05},
    'reinforce': {},
  }
  with pytest.raises(TypeError, match='clip_range'):
    losses.gspo(case(), clip_range=0.2)


def test_make_binds_options_and_says_what_is_wrong():
  x = case()
  made = make('grpo', clip_low=0.05)(x)
  np.testing.assert_array_equal(made.total, losses.grpo(x, clip_low=0.05).total)
  with pytest.raises(ValueError, match="'gspoo' is unknown; use one of gspo, "):
    make('gspoo')
  with pytest.raises(ValueError, match=r"options.tau is unknown; 'gspo' takes clip_low, clip_high"):
    make('gspo', tau=1.0)
  with pytest.raises(ValueError, match="'reinforce' takes none"):
    make('reinforce', clip_low=1.0)
  with pytest.raises(ValueError, match="'dr_grpo' needs the option 'max_length'"):
    make('dr_grpo')
  assert make('dr_grpo', max_length=8)(x).count == MESSAGES


def test_shapes_are_checked():
  x = case()
  for broken in (
    {'old_logprobs': x.old_logprobs[:-1]},
    {'message_mask': x.message_mask[:-1]},
    {'token_weights': x.token_mask[:-1]},
    {'importance': x.token_mask[:-1]},
    {'span_share': x.advantages},  # without the log-ratio
    {'logprobs': x.logprobs.astype(int)},
    {'advantages': x.advantages[:, None]},
  ):
    with pytest.raises(AssertionError):
      losses.gspo(x.replace(**broken))


class OracleTest(chex.TestCase):
  """Compares values with the oracle, with and without jit."""

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(*_NAMES)
  def test_equals_the_formula(self, name):
    x = case(7)
    result = self.variant(objective(name))(x)
    np.testing.assert_allclose(result.total, oracle(name, x)[0], rtol=3e-6, atol=1e-5)


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('name', _NAMES)
def test_value_and_gradient_equal_the_formula(name, seed):
  _assert_equals_oracle(name, case(seed))


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('name', _NAMES)
def test_weights_and_penalty_equal_the_formula(name, seed):
  _assert_equals_oracle(name, with_options(case(seed), seed))


def test_the_case_visits_every_branch_of_the_clip():
  x = case()
  for name in ('gspo', 'grpo', 'gmpo'):
    _, _, ratio, clipped = oracle(name, x)
    real = np.asarray(x.message_mask) > 0
    for positive in (True, False):
      chosen = clipped[real & ((np.asarray(x.advantages) > 0) == positive)]
      assert (chosen > 0).any(), (name, positive)
      assert (chosen < 1).any(), (name, positive)
    assert (ratio[real] < 1 - LOW).any()
    assert (ratio[real] > 1 + HIGH).any()
    assert ((ratio[real] > 1 - LOW) & (ratio[real] < 1 + HIGH)).any()


@pytest.mark.parametrize('spread', [0.0, 0.3, 3.0, 40.0])
def test_gspo_token_is_gspo_in_value_and_gradient(spread):
  with jax.enable_x64(True):
    x = case(3, spread=spread, dtype=np.float64)
    result, gradient = run('gspo', x)
    token_result, token_gradient = run('gspo_token', x)
  np.testing.assert_allclose(token_result.total, result.total, rtol=1e-12)
  np.testing.assert_allclose(token_gradient, gradient, rtol=1e-9)
  np.testing.assert_allclose(token_result.ratio, result.ratio, rtol=1e-12)
  np.testing.assert_allclose(token_result.clipped, result.clipped, rtol=1e-6)


def test_all_mean_objectives_agree_on_one_token_messages_and_only_there():
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
  expected = run('gspo', x)
  for name in ('grpo', 'luspo', 'dapo'):
    chex.assert_trees_all_close(run(name, x), expected, rtol=1e-6, atol=1e-8)
  means = [float(r.total / r.count) for r in (run(n, case())[0] for n in ('gspo', 'grpo', 'dapo'))]
  assert min(abs(np.diff([*means, means[0]]))) > 1e-3


def test_what_a_long_message_weighs():
  """Saying a message twice: the mean takes no notice, the others do."""
  x = case(scramble=False, spread=0.0)
  twice = jax.tree.map(lambda v: jnp.concatenate([v, v]), x).replace(
    advantages=x.advantages, message_mask=x.message_mask
  )
  factors = {'gspo': (1, 1), 'luspo': (2, 1), 'dapo': (2, 2), 'dr_grpo': (2, 1), 'gmpo': (1, 1)}
  for name, (of_total, of_count) in factors.items():
    once, doubled = (objective(name)(v) for v in (x, twice))
    np.testing.assert_allclose(doubled.total, of_total * once.total, rtol=1e-5)
    np.testing.assert_allclose(doubled.count, of_count * once.count)
    np.testing.assert_allclose(doubled.ratio, once.ratio, rtol=1e-6)


@pytest.mark.parametrize('name', _NAMES)
def test_padding_and_order_change_nothing(name):
  plain = case(5, scramble=False)
  result, gradient = run(name, plain)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)

  order = np.random.default_rng(1).permutation(len(gradient))
  other, other_gradient = run(name, plain.replace(**{k: plain[k][order] for k in PER_TOKEN}))
  close(other.total, result.total)
  close(other_gradient, gradient[order])
  close(other.ratio, result.ratio)

  bare = plain.replace(
    **{k: plain[k][:TOKENS] for k in PER_TOKEN},
    advantages=plain.advantages[:MESSAGES],
    message_mask=plain.message_mask[:MESSAGES],
  )
  other, other_gradient = run(name, bare)
  close(other.total, result.total)
  close(other_gradient, gradient[:TOKENS])
  assert result.count == other.count


@pytest.mark.parametrize('name', _NAMES)
def test_one_message_a_row_equals_all_in_one_array(name):
  """Tests rows of one message each, padded to the longest, and a batch of one."""
  x = case(4, scramble=False)
  result, gradient = run(name, x)
  total, count, rows = 0.0, 0.0, []
  for m, length in enumerate(LENGTHS):
    start = sum(LENGTHS[:m])
    cells = np.minimum(start + np.arange(max(LENGTHS)), TOKENS - 1)
    row = x.replace(
      **{k: x[k][cells] for k in PER_TOKEN},
      advantages=x.advantages[m : m + 1],
      message_mask=jnp.ones(1),
    ).replace(
      message_ids=jnp.zeros(max(LENGTHS), jnp.int32),
      token_mask=jnp.asarray(np.arange(max(LENGTHS)) < length, jnp.float32),
    )
    part, part_gradient = run(name, row)
    total, count = total + part.total, count + part.count
    rows.append(part_gradient[:length])
    np.testing.assert_allclose(part.ratio, result.ratio[m : m + 1], rtol=1e-6)
  np.testing.assert_allclose(total, result.total, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(count, result.count)
  np.testing.assert_allclose(np.concatenate(rows), gradient[:TOKENS], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('name', _NAMES)
def test_sum_of_parts_is_the_whole(name):
  """Micro-batches of unequal size: (total, count) add up, means would not."""
  x = with_options(case(2))
  total = count = 0.0
  for first, last in ((0, 1), (1, 4), (4, MESSAGES)):
    at = jnp.arange(len(x.advantages))
    chosen = (at >= first) & (at < last)
    part = x.replace(message_mask=x.message_mask * chosen)  # their tokens stay, and do not count
    result, _ = run(name, part)
    total, count = total + result.total, count + result.count
  whole, _ = run(name, x)
  np.testing.assert_allclose(total, whole.total, rtol=1e-5)
  np.testing.assert_allclose(count, whole.count, rtol=1e-6)


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


@pytest.mark.parametrize('name', _PESSIMISTIC)
@pytest.mark.parametrize(
  ('ratio', 'advantage', 'passes'),
  [(2.0, 1.0, False), (0.5, 1.0, True), (2.0, -1.0, True), (0.5, -1.0, False), (1.0, -1.0, True)],
)
def test_clip_takes_the_pessimistic_side(name, ratio, advantage, passes):
  """With A < 0 a grown ratio keeps its gradient; `max` would drop it."""
  result, gradient = run(name, _one(float(np.log(ratio)), advantage))
  length = OPTIONS[name].get('max_length', 1.0)
  np.testing.assert_allclose(gradient, [ratio * advantage / length if passes else 0.0], rtol=1e-6)
  np.testing.assert_array_equal(result.clipped, [0.0 if passes else 1.0])
  expected = (ratio if passes else np.clip(ratio, 1 - LOW, 1 + HIGH)) * advantage / length
  np.testing.assert_allclose(result.total, expected, rtol=1e-6)


@pytest.mark.parametrize('advantage', [1.0, -1.0])
@pytest.mark.parametrize(('ratio', 'weight'), [(0.5, 1 - LOW), (1.05, 1.05), (3.0, 1 + HIGH)])
def test_cispo_never_drops_a_gradient(ratio, weight, advantage):
  result, gradient = run('cispo', _one(float(np.log(ratio)), advantage))
  np.testing.assert_allclose(gradient, [weight * advantage], rtol=1e-6)
  np.testing.assert_array_equal(result.clipped, [float(weight != ratio)])


def test_sapo_has_the_slope_of_the_policy_gradient_on_policy():
  for advantage in (1.0, -1.0):
    _, gradient = run('sapo', _one(0.0, advantage))
    np.testing.assert_allclose(gradient, [advantage], rtol=1e-6)
    _, far = run('sapo', _one(2.0, advantage))
    assert 0 < far[0] * advantage < 0.5


@pytest.mark.parametrize('name', _RATIO_NAMES)
@pytest.mark.parametrize('log_ratio', [-1e4, -150.0, 150.0, 1e4, 1e30])
@pytest.mark.parametrize('advantage', [1.0, -1.0, 0.0])
def test_overflowing_log_ratio_gives_no_nan(name, log_ratio, advantage):
  result, gradient = run(name, _one(log_ratio, advantage))
  for array in (gradient, *result.values()):
    assert np.isfinite(array).all()
  if advantage > 0 and name in _PESSIMISTIC:  # the clipped value is the exact one
    expected = (1 + HIGH if log_ratio > 0 else 0.0) / OPTIONS[name].get('max_length', 1.0)
    np.testing.assert_allclose(result.total, expected, atol=1e-8)
  if log_ratio < 0 and name != 'cispo':
    np.testing.assert_allclose(result.ratio, 0.0, atol=1e-8)
  if log_ratio > 0:
    assert result.ratio[0] > 1e8


@pytest.mark.parametrize('name', _NAMES)
def test_infinities_in_the_padding_stay_there(name):
  x = with_options(case(scramble=False))
  x = x.replace(message_mask=x.message_mask.at[3].set(0.0))  # its tokens are still there
  tokens, messages = x.token_mask == 0, x.message_mask == 0
  dirty = x.replace(
    logprobs=jnp.where(tokens, jnp.nan, x.logprobs),
    old_logprobs=jnp.where(tokens, -jnp.inf, x.old_logprobs),
    token_penalty=jnp.where(tokens | messages[x.message_ids], jnp.inf, x.token_penalty),
    # Padding that says it belongs to a message that is padding as well.
    message_ids=jnp.where(tokens, MESSAGES, x.message_ids),
    advantages=jnp.where(messages, jnp.nan, x.advantages),
  )
  found = run(name, dirty)
  chex.assert_trees_all_equal(found, run(name, x))
  np.testing.assert_array_equal(found[0].ratio[messages], 0.0)
  np.testing.assert_array_equal(found[0].clipped[messages], 0.0)


@pytest.mark.parametrize('name', _NAMES)
def test_nothing_but_padding_is_zero_of_zero(name):
  x = jax.tree.map(jnp.zeros_like, case())
  result, gradient = run(name, x.replace(logprobs=x.logprobs - 3.0))
  assert result.total == result.count == 0
  np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize('name', WITH_CLIP)
def test_four_steps_on_one_rollout_are_partly_clipped(name):
  """Takes K = 4 steps of a tabular policy: ratio 1 at the first, partly clipped later."""
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
  function = functools.partial(OBJECTIVES[name], **{**OPTIONS[name], **_NARROW})

  @jax.jit
  def step(table, message_mask):
    def mean(table):
      result = function(x.replace(logprobs=logprobs(table), message_mask=message_mask))
      return result.total / result.count, result

    gradient, result = jax.grad(mean, has_aux=True)(table)
    return table + 2.0 * gradient / jnp.linalg.norm(gradient), result

  clipped, ratio = [], []
  for k in range(4):
    of_minibatch = jnp.asarray(np.arange(16) % 4 == k, jnp.float32)
    table, result = step(table, of_minibatch)
    clipped.append(np.asarray(result.clipped)[k::4])
    ratio.append(np.asarray(result.ratio)[k::4])
  np.testing.assert_allclose(ratio[0], 1.0, atol=1e-6)
  np.testing.assert_array_equal(clipped[0], 0.0)
  assert 0 < np.mean(clipped[1:]) < 1
  assert np.abs(np.concatenate(ratio[1:]) - 1).max() > 0.05


_NARROW = {'clip_low': 0.03, 'clip_high': 0.03}


@pytest.mark.parametrize(
  ('section', 'expected'),
  [
    (ObjectiveOptions('gspo'), make('gspo')),
    (
      ObjectiveOptions('gspo', clip_low=0.1, clip_high=0.2),
      make('gspo', clip_low=0.1, clip_high=0.2),
    ),
    (ObjectiveOptions('gspo', ratio_span='agent'), make('gspo')),
    (ObjectiveOptions('dr_grpo'), make('dr_grpo', max_length=7.0)),
    (ObjectiveOptions('dr_grpo', options={'max_length': 5.0}), make('dr_grpo', max_length=5.0)),
    (ObjectiveOptions('dapo', opsm_threshold=0.0), make('dapo', opsm_threshold=0.0)),
  ],
)
def test_the_section_of_a_config_is_an_objective(section, expected):
  x = case(0)
  found, result = losses.from_config(section, max_length=7)(x), expected(x)
  chex.assert_trees_all_equal(found, result)
  assert float(jnp.abs(result.total)) > 0


@pytest.mark.parametrize('span', ['agent', 'episode'])
def test_an_objective_without_spans_is_refused_them(span):
  losses.from_config(ObjectiveOptions('gmpo'), max_length=7)
  with pytest.raises(
    ValueError, match=f"objective.ratio_span='{span}' must be \"message\" for 'gmpo'"
  ):
    losses.from_config(ObjectiveOptions('gmpo', ratio_span=span), max_length=7)


def test_reverse_kl_pulls_each_token_to_the_teacher():
  x = case(1)
  total = lambda logprobs: reverse_kl(x.replace(logprobs=logprobs)).total
  found, gradient = jax.value_and_grad(total)(x.logprobs)
  apart = np.where(x.token_mask > 0, x.old_logprobs - x.logprobs, 0)
  assert found == pytest.approx(-0.5 * np.sum(apart**2), rel=1e-5)
  np.testing.assert_allclose(gradient, apart, rtol=1e-5, atol=1e-6)


_OWN = """
import agent_gspo.algorithms as a
def good(x, *, scale=1.0): return a.gspo(x)
def nothing(): return 0
def anything(*x): return 0
def number(x): return 0.0
def per_message(x): return a.gspo(x).replace(total=x.advantages)
def per_token(x): return a.gspo(x).replace(ratio=x.logprobs)
def word(x): return a.gspo(x).replace(count='six')
def spans(x): return a.gspo(x.replace(advantages=x.advantages * x.span_share))
"""


@pytest.mark.parametrize(
  ('name', 'told'),
  [
    ('good', None),
    ('nothing', 'must take PackedTokens, then each option'),
    ('anything', 'must take PackedTokens, then each option'),
    ('number', r'returned a float, 0\.0; must return an agent_gspo\.algorithms\.Objective'),
    ('per_message', r'total is float32 of shape \(3,\); must be real numbers of shape \(\)'),
    ('per_token', r'ratio is float32 of shape \(6,\); must be real numbers of shape \(3,\)'),
    ('word', r"count is a str, 'six'; must be real numbers"),
    ('spans', None),
  ],
)
def test_an_objective_of_ones_own_is_tried_before_a_run(name, told, tmp_path, monkeypatch):
  (tmp_path / 'own_losses.py').write_text(_OWN)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, 'own_losses', raising=False)
  name = f'own_losses:{name}'

  def trial():
    losses.trace(name, make(name), given=('span_log_ratio', 'span_share'))

  if told is None:
    trial()
  else:
    with pytest.raises(plugins.PluginError, match=told):
      trial()


@pytest.mark.parametrize('fields', [{'kl_coef': 0.1}, {'ratio_span': 'episode'}])
def test_a_teacher_replaces_the_objective(fields):
  needs = lambda **given: ObjectiveOptions(**given).needs_reference
  assert [needs(), needs(kl_coef=0.1), needs(teacher='team.json')] == [False, True, True]
  with pytest.raises(ValueError, match=r"teacher='team\.json' replaces the objective: set .*kl_c"):
    ObjectiveOptions(teacher='team.json', **fields)


def test_bounds_of_the_clip_are_those_that_are_set_or_the_objectives():
  usual = losses.clip_band(ObjectiveOptions(name='gspo'))
  assert usual == {'clip_low': 3e-4, 'clip_high': 4e-4}
  assert losses.clip_band(ObjectiveOptions(name='gspo', clip_low=0.1)) == usual | {'clip_low': 0.1}
  assert losses.clip_band(ObjectiveOptions(name='reinforce')) == {}
  with pytest.raises(ValueError, match=r"clip_low=0\.1: objective 'reinforce' takes no clip_low"):
    losses.clip_band(ObjectiveOptions(name='reinforce', clip_low=0.1))
