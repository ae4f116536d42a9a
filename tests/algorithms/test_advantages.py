"""Tests what every estimator shares, and the price under each."""

from __future__ import annotations

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from advantage_batches import NORMALIZATIONS, normalized, some_inputs

from agent_gspo.algorithms.advantages import estimators as lib
from agent_gspo.algorithms.advantages.groups import group_ids
from agent_gspo.algorithms.options import GROUPINGS

_EPS = 1e-6


def _messages(seed: int = 0):
  """Returns `(question, agent, turn, episode, role, task, costs)` of uneven groups."""
  rng = np.random.default_rng(seed)
  question, agent, turn, sample = rng.integers(0, (4, 3, 2, 2), (60, 4)).T
  task = rng.integers(0, 2, 60).astype(np.float32)
  costs = (rng.integers(0, 30, 60) * 0.003).astype(np.float32)
  alone = np.array([9]), *[np.array([0])] * 3  # a question with one message
  question, agent, turn, sample = (
    np.concatenate([a, b]) for a, b in zip((question, agent, turn, sample), alone, strict=True)
  )
  task, costs = np.append(task, np.float32(1)), np.append(costs, np.float32(0.02))
  return question, agent, turn, 2 * question + sample, agent // 2, task, costs


def _oracle(normalize: str, task, costs, members, floor: float) -> np.ndarray:
  """Returns advantages by a loop over groups in float64, with the population deviation."""
  task, costs = task.astype(np.float64), costs.astype(np.float64)
  reward = task - costs
  out = np.zeros(len(task))
  for group in members:
    if normalize == 'group_mean':
      out[group] = reward[group] - reward[group].mean()
    elif normalize == 'group_std':
      scale = max(np.sqrt(np.mean((reward[group] - reward[group].mean()) ** 2)), floor, _EPS)
      out[group] = (reward[group] - reward[group].mean()) / scale
    elif normalize == 'batch_std':
      scale = max(np.sqrt(np.mean((reward - reward.mean()) ** 2)), floor, _EPS)
      out[group] = (reward[group] - reward[group].mean()) / scale
    else:
      scale = max(np.sqrt(np.mean((task[group] - task[group].mean()) ** 2)), floor, _EPS)
      out[group] = (task[group] - task[group].mean()) / scale - (costs[group] - costs[group].mean())
  return out


def _with_floor(normalize: str, floor: float) -> dict[str, float]:
  return {} if normalize == 'group_mean' else {'std_floor': floor}


def _members(grouping: str, question, agent, turn, episode, role) -> list[list[int]]:
  keys = {
    'question': lambda m: (question[m],),
    'question_agent': lambda m: (question[m], agent[m]),
    'question_turn_agent': lambda m: (question[m], turn[m], agent[m]),
    'question_side': lambda m: (question[m], role[m]),
    'episode_turn_agent': lambda m: (episode[m], turn[m], agent[m]),
  }
  groups: dict[tuple[int, ...], list[int]] = {}
  for m in range(len(question)):
    groups.setdefault(keys[grouping](m), []).append(m)
  return list(groups.values())


@pytest.mark.parametrize('grouping', GROUPINGS)
def test_groups_are_those_that_share_the_key(grouping):
  *columns, _, _ = _messages()
  ids = group_ids(grouping, *columns)
  members = _members(grouping, *columns)
  assert sorted(np.unique(ids)) == list(range(len(members)))
  for group in members:
    np.testing.assert_array_equal(np.nonzero(ids == ids[group[0]])[0], group)


@pytest.mark.parametrize('grouping', GROUPINGS)
@pytest.mark.parametrize('normalize', NORMALIZATIONS)
@pytest.mark.parametrize('floor', [0.0, 0.45])
def test_equals_the_formula(normalize, grouping, floor):
  *columns, task, costs = _messages()
  ids = group_ids(grouping, *columns)
  found = normalized(normalize, task, costs, ids, **_with_floor(normalize, floor))
  expected = _oracle(normalize, task, costs, _members(grouping, *columns), floor)
  assert found.shape == task.shape
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert np.abs(expected).max() > 0.3
  for group in _members(grouping, *columns):
    assert abs(np.asarray(found)[group].mean()) < 1e-5


@pytest.mark.parametrize('normalize', NORMALIZATIONS)
def test_group_of_one_is_zero(normalize):
  task, costs = np.float32([1, 0, 1]), np.float32([0.3, 0.1, 0.9])
  found = normalized(normalize, task, costs, np.arange(3))
  np.testing.assert_array_equal(found, 0.0)


@pytest.mark.parametrize('normalize', NORMALIZATIONS)
@pytest.mark.parametrize('size', [7, 24])
def test_equal_rewards_give_no_advantage(normalize, size):
  """A mean's rounding error must not be divided by a tiny deviation."""
  costs, groups = np.full(size, 0.013, np.float32), np.zeros(size, int)
  for value in (0.9, 0.976, 0.3, 1 / 3, 0.97, 1.0):
    found = normalized(normalize, np.full(size, value, np.float32), costs, groups)
    np.testing.assert_allclose(found, 0.0, atol=1e-6, err_msg=str(value))


@pytest.mark.parametrize('normalize', NORMALIZATIONS)
def test_without_a_price_only_the_task_counts(normalize):
  task = np.float32([1, 0, 0, 1, 1, 1, 0, 0])
  groups = np.repeat([0, 1], 4)
  found = normalized(normalize, task, np.zeros(8, np.float32), groups)
  scale = 1.0 if normalize == 'group_mean' else 0.5
  np.testing.assert_allclose(found, (task - 0.5) / scale, atol=1e-6)


_WRITTEN = np.float32([0, 4, 10, 20])


def _at_price(normalize: str, price: float, task: float) -> np.ndarray:
  """Returns advantages of four episodes that score `task` and write 0 to 20 tokens."""
  costs = np.float32(price) * _WRITTEN
  return np.asarray(normalized(normalize, np.full(4, task, np.float32), costs, np.zeros(4, int)))


@pytest.mark.parametrize('task', [0.0, 1.0])
def test_price_cancels_under_group_std_where_task_scores_tie(task):
  """Any price above 0 acts at full strength, even if all episodes are wrong."""
  low, high = _at_price('group_std', 1e-4, task), _at_price('group_std', 1e-2, task)
  np.testing.assert_allclose(low, high, rtol=2e-3)
  assert low[0] > 1  # silence is worth more than a standard deviation
  np.testing.assert_allclose(low, -(_WRITTEN - _WRITTEN.mean()) / _WRITTEN.std(), rtol=2e-3)


@pytest.mark.parametrize('task', [0.0, 1.0])
@pytest.mark.parametrize('normalize', ['per_component', 'group_mean'])
def test_other_normalizations_keep_the_scale_of_a_price(normalize, task):
  low, high = _at_price(normalize, 1e-4, task), _at_price(normalize, 1e-2, task)
  np.testing.assert_allclose(100 * low, high, rtol=1e-2)
  np.testing.assert_allclose(high, -1e-2 * (_WRITTEN - _WRITTEN.mean()), rtol=1e-3, atol=1e-7)


def test_std_floor_bounds_the_effect_of_a_small_price():
  costs = np.float32(1e-4) * _WRITTEN
  found = normalized('group_std', np.zeros(4, np.float32), costs, np.zeros(4, int), std_floor=0.1)
  assert np.abs(found).max() < 0.02


@pytest.mark.parametrize('normalize', NORMALIZATIONS)
def test_group_in_which_all_are_silent(normalize):
  """It has no signal, and must not change the other group's."""
  groups = np.repeat([0, 1], 4)
  task = np.float32([0, 0, 0, 0, 1, 0, 1, 0])
  costs = np.float32([0, 0, 0, 0, 0.1, 0.2, 0, 0.1])
  found = np.asarray(normalized(normalize, task, costs, groups))
  np.testing.assert_array_equal(found[:4], 0.0)
  assert (found[4:] != 0).all()
  if normalize != 'batch_std':  # whose scale is of the whole batch
    alone = normalized(normalize, task[4:], costs[4:], groups[4:] * 0)
    np.testing.assert_allclose(found[4:], alone, atol=1e-6)


# The public functions.

# Their baseline is not the group's: the batch, a posterior, a virtual reward.
_NOT_OF_THE_GROUP = ('reinforce_pp', 'spo_single', 'ngrpo', 'rae')
# These read gains, not rewards, where they were measured: see test_worth_advantages.
_BY_REWARD = [name for name in lib.ADVANTAGES if name not in lib.GAINS]
# In these a message's reward counts where others were silent, or by agent.
# In hiper and mars2 rewards tie only if they also come in the same turns.
_OWN_GROUPS = ('agent_turn', 'counterfactual')


def _select(x: lib.AdvantageInputs, where: np.ndarray) -> lib.AdvantageInputs:
  """Selects the messages `where`, in that order."""
  rows = lambda k, v: np.asarray(v) if k == 'baselines' else np.asarray(v)[..., where]
  chosen = {k: rows(k, v) for k, v in x.items() if v is not None}
  chosen['groups'] = np.unique(chosen['groups'], return_inverse=True)[1]
  return lib.AdvantageInputs(**chosen)


@pytest.mark.parametrize('name', list(lib.ADVANTAGES))
def test_batch_size_triggers_no_compilation(name):
  """Steps differ in their number of messages; each compilation would take a second."""
  x = some_inputs(7, 'question_agent')
  timed: list[str] = []
  jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: timed.append(event))
  lib.advantage(_select(x, np.arange(len(x.task) - 3)), name, costs='apart')
  assert not timed
  jax.jit(lambda y: y + 1)(np.zeros(4))
  assert any('compile' in event for event in timed)  # the listener hears compilations


def over_baselines(task, baselines):
  return task - baselines.mean()


def test_an_estimator_without_baselines_keeps_the_old_ones():
  x = some_inputs(7, 'question_agent')
  found = lib.advantage(x, f'{__name__}:over_baselines')
  np.testing.assert_array_equal(found.baselines, x.baselines)
  assert lib.advantage(x, 'group_mean').baselines is None


def sets_baselines(task, baselines, *, roles=2):
  new = np.arange(roles) if roles else 'none'
  return lib.Advantage(values=task, kept=np.ones(len(task)), baselines=new)


def sets_baselines_unread(task):
  return lib.Advantage(values=task, kept=np.ones(len(task)), baselines=np.zeros(2))


def test_baselines_of_an_estimator_of_ones_own_are_checked():
  x, name = some_inputs(7), f'{__name__}:sets_baselines'
  found = lib.advantage(x, name).baselines
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, [0, 1])
  for roles, told in ((3, r'an array of shape \(3,\)'), (0, "a str, 'none'")):
    with pytest.raises(lib.plugins.PluginError, match=f'as baselines, returned {told}; .* 2 roles'):
      lib.advantage(x, name, roles=roles)
  with pytest.raises(lib.plugins.PluginError, match='but does not read `baselines`: add'):
    lib.advantage(x, f'{name}_unread')


@pytest.mark.parametrize('name', list(lib.ADVANTAGES))
def test_any_order_of_messages_gives_the_same(name):
  x = some_inputs(7, 'question_agent')
  order = np.random.default_rng(0).permutation(len(x.task))
  found = lib.advantage(x, name)
  again = lib.advantage(_select(x, order), name)
  assert found.values.shape == found.kept.shape == x.task.shape
  assert found.values.dtype == found.kept.dtype == jnp.float32
  assert np.isfinite(found.values).all()
  assert np.abs(found.values).max() > 0.1
  np.testing.assert_allclose(again.values, np.asarray(found.values)[order], rtol=1e-4, atol=1e-4)
  np.testing.assert_array_equal(again.kept, np.asarray(found.kept)[order])


@pytest.mark.parametrize('name', [n for n in _BY_REWARD if n not in _NOT_OF_THE_GROUP])
def test_a_message_alone_in_its_group_has_no_advantage(name):
  x = some_inputs(7, 'question_agent')
  found = lib.advantage(_select(x, np.flatnonzero(x.question == 6)), name)
  np.testing.assert_array_equal(found.values, 0)
  if name not in (*_OWN_GROUPS, 'hgpo', 'hiper', 'mars2'):  # and among others
    found = lib.advantage(
      x.replace(
        groups=np.arange(len(x.task)),
        observation=np.arange(len(x.task)),
      ),
      name,
    )
    np.testing.assert_allclose(found.values, 0, atol=1e-6)


@pytest.mark.parametrize('name', [n for n in _BY_REWARD if n not in ('hiper', 'mars2', 'rae')])
@pytest.mark.parametrize('reward', [0.9, 1 / 3, 0.013, 1.0])
def test_tied_rewards_give_no_advantage(name, reward):
  x = some_inputs(7)
  full = lambda value: np.full(len(x.task), value, np.float32)
  options = {'best': np.float32(reward)} if name == 'ngrpo' else {}
  tied = x.replace(task=full(reward), costs=full(0), probability=full(0.3))
  np.testing.assert_allclose(lib.advantage(tied, name, **options).values, 0, atol=1e-6)


_MEASURED = ('gain', 'plain_gain', 'plain_costs', 'silence_costs')


def _ties_among_others(task: float, cost: float) -> lib.AdvantageInputs:
  """Returns four tied groups of 3, 5, 6 and 7 messages, and four in which rewards differ.

  A group is a question with an agent of its own and one message per episode.
  """
  rng = np.random.default_rng(0)
  sizes = (3, 5, 6, 7, 3, 4, 5, 7)
  group = np.repeat(np.arange(8), sizes)
  tied = group < 4
  differ = lambda value: rng.choice(np.float32([0.1, 0.3, 0.7]), len(group)) * np.float32(value)
  order = rng.permutation(len(group))
  fields = {
    'task': np.where(tied, np.float32(task), differ(1.0)),
    'costs': np.where(tied, np.float32(cost), differ(0.1)),
    **dict.fromkeys(('groups', 'question', 'agent', 'role', 'observation'), group),
    'episode': np.arange(len(group)),
    'turn': group * 0,
    'lengths': rng.integers(1, 40, len(group)),
    'silent': rng.random(len(group)) < 0.4,
    'history': np.stack([group, group, np.arange(len(group))]),
    'probability': np.full(len(group), 0.3, np.float32),
    **dict.fromkeys(_MEASURED, np.full(len(group), np.nan, np.float32)),
    'gold': group < 0,
    'taken': group >= 0,
  }
  return lib.AdvantageInputs(**{key: value[..., order] for key, value in fields.items()})


_TIES = (0.1, 0.3, 0.7, 1 / 3, 0.9, 0.976, 0.013, 1.0, 1e-3, 123.4)


@pytest.mark.parametrize('options', [{}, {'costs': 'apart'}])
@pytest.mark.parametrize('name', [n for n in lib.ADVANTAGES if n not in _NOT_OF_THE_GROUP])
def test_ties_among_other_groups_give_exactly_0(name, options):
  """A rounding error would count as a message that can be clipped."""
  runs = [options, {**options, 'whiten': True}] if name == 'per_component' else [options]
  for task, cost, given in itertools.product(_TIES, (0.0, 0.1, 0.013), runs):
    x = _ties_among_others(task, cost)
    found = lib.advantage(x, name, **given).values
    np.testing.assert_array_equal(found[x.question < 4], 0.0, err_msg=f'{task} - {cost}')
    assert np.abs(found[x.question >= 4]).max() > 1e-3


@pytest.mark.parametrize('name', [n for n in lib.ADVANTAGES if n != 'rae'])
@pytest.mark.parametrize('size', [3, 5, 6, 7, 24])
def test_batches_that_tie_give_exactly_0(name, size):
  zeros = np.zeros(size, int)
  columns = ('groups', 'question', 'agent', 'role', 'turn', 'observation')
  for task, cost in itertools.product(_TIES, (0.0, 0.1, 0.013)):
    full = lambda value: np.full(size, value, np.float32)
    x = lib.AdvantageInputs(
      **dict.fromkeys(columns, zeros),
      **{'task': full(task), 'costs': full(cost), 'probability': full(0.3)},
      **dict.fromkeys(_MEASURED, full(np.nan)),
      gold=zeros > 0,
      taken=zeros == 0,
      **{'episode': np.arange(size), 'lengths': np.arange(size) + 1, 'silent': np.arange(size) < 2},
      history=np.stack([zeros, zeros, zeros]),
    )
    options = {'best': np.float32(task) - np.float32(cost)} if name == 'ngrpo' else {}
    np.testing.assert_array_equal(lib.advantage(x, name, **options).values, 0.0)


# Compared with a posterior and with a virtual reward, which have a scale of their own.
_OWN_SCALE = ('spo_single', 'ngrpo')
_SCALED = [n for n in lib.ADVANTAGES if 'eps' in lib.options_of(n) and n not in _OWN_SCALE]


@pytest.mark.parametrize('name', _SCALED)
def test_small_spreads_count_as_much_as_large_ones(name):
  x = some_inputs(4)
  x = x.replace(costs=x.costs * 0, gain=np.full_like(x.gain, np.nan))
  found = lib.advantage(x, name)
  small = lib.advantage(x.replace(task=x.task * np.float32(1e-4)), name)
  np.testing.assert_allclose(small.values, found.values, atol=1e-5)


def test_rewards_of_messages_and_of_episodes_by_hand():
  """One agent with two turns, one with one, in one episode."""
  zeros, costs = np.zeros(3, int), np.float32([0.1, 0.2, 0.3])
  x = lib.AdvantageInputs(
    task=np.ones(3, np.float32), costs=costs, groups=zeros, question=zeros, episode=zeros,
    agent=np.array([0, 1, 0]), turn=np.array([0, 0, 1]),
  )  # fmt: skip
  np.testing.assert_allclose(x.own_rewards, [-0.1, 0.8, 0.7], rtol=1e-6)
  np.testing.assert_allclose(x.episode_rewards, [0.9, 0.8, 0.7], rtol=1e-6)
  x = x.replace(reward=np.float32([5, 6, 7]))
  np.testing.assert_allclose(x.own_rewards, [4.9, 5.8, 6.7], rtol=1e-6)
  np.testing.assert_allclose(x.episode_rewards, [11.9, 5.8, 11.7], rtol=1e-6)


def test_a_reward_at_the_mean_of_its_group_has_advantage_0():
  rewards, groups = np.float32([0.25, 0.5, 0.75, 1, 0, 0.5, 0.5]), np.array([0, 0, 0, 1, 1, 1, 1])
  for name in (
    'group_mean',
    'group_std',
    'rloo',
    'reinforce_pp_baseline',
    'seeupo',
    'per_component',
  ):
    x = _ties_among_others(0.0, 0.0)
    x = _select(x, np.arange(7)).replace(task=rewards, costs=rewards * 0, groups=groups)
    found = lib.advantage(x, name).values
    np.testing.assert_array_equal(found == 0, [False, True, False, False, False, True, True])


@pytest.mark.parametrize('name', [n for n in _BY_REWARD if n != 'rae'])
def test_group_in_which_all_are_silent_and_wrong(name):
  """Tests question 5 of `some_inputs` alone, without statistics of other questions."""
  x = some_inputs(7)
  found = lib.advantage(_select(x, np.flatnonzero(x.question == 5)), name)
  expected = -1 / np.sqrt(5) if name == 'ngrpo' else 0  # five zeros and a one
  np.testing.assert_allclose(found.values, expected, atol=1e-6)


@pytest.mark.parametrize('name', list(lib.ADVANTAGES))
def test_costs_apart_keep_the_meaning_of_lambda(name):
  x = some_inputs(8, 'question_agent')
  free = x.replace(costs=np.zeros_like(x.costs))
  base = lib.advantage(free, name)
  np.testing.assert_array_equal(lib.advantage(free, name, costs='apart').values, base.values)
  np.testing.assert_array_equal(lib.advantage(free, name, costs='apart').kept, base.kept)
  price = np.zeros(len(x.task))
  for group in _members('question_agent', x.question, x.agent, x.turn, x.episode, x.role):
    price[group] = x.costs[group].astype(float) - x.costs[group].astype(float).mean()
  for scale in (1, 20):
    found = lib.advantage(x.replace(costs=x.costs * np.float32(scale)), name, costs='apart')
    np.testing.assert_allclose(found.values, base.values - scale * price, rtol=1e-4, atol=1e-4)
    # Dropped is what carries neither signal nor price.
    back = (np.asarray(base.values) == 0) & (np.abs(price) > 1e-7)
    np.testing.assert_array_equal(found.kept, np.maximum(base.kept, back))


def test_costs_inside_are_part_of_the_reward():
  x = some_inputs(8)
  whole = x.replace(task=x.task - x.costs, costs=np.zeros_like(x.costs))
  np.testing.assert_array_equal(x.rewards, whole.task)
  for name in ('group_std', 'opo', 'gigpo'):
    found = lib.advantage(x, name)
    np.testing.assert_array_equal(found.values, lib.advantage(whole, name).values)
    assert np.abs(found.values - lib.advantage(x, name, costs='apart').values).max() > 1e-3
  with pytest.raises(ValueError, match='inside, apart'):
    lib.advantage(x, 'group_std', costs='outside')


def test_solved_groups_still_feel_a_price_under_costs_apart():
  """ngrpo drops them; the price brings them back."""
  x = some_inputs(8)
  solved = _select(x, np.flatnonzero(x.question == 4))
  assert (
    np.asarray(lib.advantage(solved.replace(costs=solved.costs * 0), 'ngrpo').kept) == 0
  ).all()
  found = lib.advantage(solved, 'ngrpo', costs='apart')
  assert np.asarray(found.kept).all()
  np.testing.assert_allclose(found.values, solved.costs.mean() - solved.costs, atol=1e-6)


def test_a_price_brings_back_only_what_was_dropped_for_a_tie(monkeypatch):
  """A custom estimator may drop a message that has an advantage."""
  drops = lambda rewards: lib.Advantage(
    values=np.float32([0, 0.5, 0.5]), kept=np.float32([0, 0, 1])
  )
  monkeypatch.setitem(lib.ADVANTAGES, 'drops', drops)
  columns = ('groups', 'question', 'agent', 'turn', 'episode')
  x = lib.AdvantageInputs(
    task=np.ones(3, np.float32),
    costs=np.float32([0.1, 0.2, 0.3]),
    **dict.fromkeys(columns, np.zeros(3, int)),
  )
  np.testing.assert_array_equal(lib.advantage(x, 'drops', costs='apart').kept, [1, 0, 1])


def test_equal_costs_bring_nothing_back():
  """The mean of 24 costs of 0.013 has a rounding error."""
  zeros, ones = np.zeros(24, int), np.ones(24, np.float32)
  solved = lib.AdvantageInputs(
    task=ones, costs=ones, groups=zeros, question=zeros,
    episode=np.arange(24), agent=zeros, turn=zeros,
  )  # fmt: skip
  for cost in (0.013, 1 / 3, 0.976):
    found = lib.advantage(
      solved.replace(costs=np.full(24, cost, np.float32)), 'ngrpo', costs='apart'
    )
    np.testing.assert_array_equal(found.kept, 0)
  small = solved.replace(costs=np.repeat(np.float32([0, 2e-7]), 12))  # but a small price does
  np.testing.assert_array_equal(lib.advantage(small, 'ngrpo', costs='apart').kept, 1)


@pytest.mark.parametrize(
  ('name', 'field'),
  [
    ('opo', 'lengths'),
    ('counterfactual', 'silent'),
    ('gigpo', 'observation'),
    ('hgpo', 'history'),
    ('spo_single', 'probability'),
  ],
)
def test_missing_field_is_named(name, field):
  assert field in lib.fields_of(name)
  with pytest.raises(ValueError, match=f"'{name}' reads inputs.{field}"):
    lib.advantage(some_inputs().replace(**{field: None}), name)


def test_fields_must_fit_each_other():
  x = some_inputs()
  for changes in ({'lengths': x.lengths[1:]}, {'history': x.history[:, 1:]}, {'task': x.question}):
    with pytest.raises(AssertionError):
      lib.advantage(x.replace(**changes), 'group_mean')


def test_options_are_the_keyword_parameters():
  assert lib.options_of('hgpo') == {'alpha': 1.0, 'std_floor': 0.0, 'eps': 1e-6}
  assert lib.options_of('group_mean') == {}
  assert lib.fields_of('per_component') == ('task', 'costs', 'groups')
  x = some_inputs()
  found = lib.advantage(x, 'group_std', std_floor=10.0).values
  np.testing.assert_allclose(found, lib.advantage(x, 'group_mean').values / 10, rtol=1e-5)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('rewards, groups, *, scale=1.0', None),
    ('task, costs', None),
    ('rewards, price', 'parameter price is none of task, costs, .*, rewards'),
    ('rewards, gain', 'parameter gain is none of task, costs'),  # measured for `GAINS` alone
    ('rewards, *, scale', "option 'scale' needs a number"),
  ],
)
def test_a_custom_estimator_reads_known_fields_only(text, message, tmp_path, monkeypatch):
  (tmp_path / 'own_estimator.py').write_text(f'def f({text}): return None')
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, 'own_estimator', raising=False)
  if message is None:
    lib.check('own_estimator:f', {})
    return
  with pytest.raises(ValueError, match=message):
    lib.check('own_estimator:f', {})
