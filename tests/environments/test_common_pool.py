"""Tests the common pool: harvests, regrowth, collapse."""

from __future__ import annotations

import copy
import pickle
import random

import hypothesis
import hypothesis.strategies as st
import pytest

from agent_gspo.environments.common_pool import CommonPool, Pool
from agent_gspo.types import Question

TASK = CommonPool(months=2)
FEW = CommonPool(agents=1, capacity=2, collapse=1, months=1)
BEGUN = Pool(stock=16, weather=('fair', 'wet'), forecaster=3)


def test_too_few_worlds_for_three_splits_are_refused():
  message = r'task.options: agents=1, capacity=2, .* must allow more worlds; .* Widen them'
  with pytest.raises(ValueError, match=message):
    [FEW.questions(split)[0] for split in ('train', 'validation', 'test')]


@pytest.mark.parametrize(
  ('talk', 'first', 'taken', 'stock', 'done'),
  [
    ({}, {0: 'take 2', 1: 'take 2', 2: 'take 1', 3: 'take 1'}, (2, 2, 1, 1), 15, False),
    ({0: 'take 9'}, {0: 'I take 4 please'}, (4, 0, 0, 0), 18, False),  # talk takes nothing
    ({}, {}, (0, 0, 0, 0), 24, False),  # up to the capacity
    ({}, {0: 'take 12', 1: 'take 12', 2: 'take 8'}, (6, 6, 4, 0), 0, True),
    ({}, dict.fromkeys(range(4), 'take 9999'), (4, 4, 4, 4), 0, True),
    ({}, {0: 'take 14'}, (14, 0, 0, 0), 3, True),  # collapses below 4
    ({}, {0: 'take 13'}, (13, 0, 0, 0), 4, False),
    ({}, {0: 'take', 1: 'take x', 2: 'take -3', 3: '3 take 1 2'}, (0, 0, 0, 1), 22, False),
  ],
)
def test_a_month(talk, first, taken, stock, done):
  state, rewards, over = TASK.act(BEGUN, talk)
  assert (state.stock, rewards, over) == (16, {}, False)
  state, rewards, over = TASK.act(state, first)
  assert (state.taken, state.stock, over) == (taken, stock, done)
  assert rewards == pytest.approx({i: n / 4 for i, n in enumerate(taken)})  # 24 * 2 / 3 / 4
  assert TASK.outcome(state) == ('collapsed' if done else 'kept')
  shared = CommonPool(months=2, rewards='shared')
  assert shared.act(shared.act(BEGUN, talk)[0], first)[1] == pytest.approx(sum(taken) / 16)


@pytest.mark.parametrize(
  ('stock', 'wanted', 'taken'),
  [
    (19, [999] * 20, [1] * 19 + [0]),  # ties: the earlier agents
    (7, [5, 9, 2], [2, 4, 1]),  # 2.1875, 3.9375, 0.875
    (7, [1, 1, 9], [1, 0, 6]),  # 0.636, 0.636, 5.727
    (1, [1, 3], [0, 1]),
  ],
)
def test_whoever_wants_too_much_gets_all_that_is_left(stock, wanted, taken):
  task = CommonPool(agents=len(wanted), months=2)
  texts = {agent: f'take {want}' for agent, want in enumerate(wanted)}
  state, *_ = task.act(Pool(stock, ('wet', 'wet'), forecaster=0, step=1), texts)
  assert (list(state.taken), state.stock) == (taken, 0)


def test_one_agent_of_each_month_sees_the_weather_and_all_see_the_harvests():
  see = lambda state: [TASK.observe(state, agent) for agent in range(4)]
  state = BEGUN
  assert see(state) == ['talk : 16 left'] * 3 + ['talk : 16 left fair']
  state, *_ = TASK.act(state, {})
  assert see(state) == ['take : 16 left'] * 4
  state, *_ = TASK.act(state, {0: 'take 2'})
  assert see(state) == ['talk : 2 0 0 0 21 left wet'] + ['talk : 2 0 0 0 21 left'] * 3
  state, *_ = TASK.act(state, {})
  state, _, done = TASK.act(state, {0: 'take 11'})
  assert (done, state.stock, TASK.outcome(state)) == (True, 20, 'kept')


def test_questions_depend_on_the_seed_and_splits_share_no_pool():
  drawn = lambda task, split: [
    task.begin(task.questions(split)[i], s) for i in range(200) for s in (0, 1)
  ]
  task = CommonPool()
  first = drawn(task, 'train')
  assert first == drawn(CommonPool(), 'train')
  assert first[::2] == first[1::2]
  assert first != drawn(CommonPool(seed=1), 'train')
  found = [
    {state for seed in (0, 1) for state in drawn(CommonPool(seed=seed), split)}
    for split in ('train', 'validation', 'test')
  ]
  assert min(map(len, found)) > 50
  assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]


_WORDS = st.sampled_from(['take', '2', '24', '9999', '99999', '٣', '-1', '\x00', 'Take', ':'])
_TEXTS = st.one_of(st.text(max_size=30), st.lists(_WORDS, max_size=6).map(' '.join))


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.lists(st.dictionaries(st.integers(0, 4), _TEXTS), min_size=4, max_size=4))
def test_no_text_is_an_error_and_nobody_earns_more_than_there_is(steps):
  state, done = BEGUN, False
  for step, texts in enumerate(steps):
    if done:
      return
    before = pickle.dumps(state)
    now, rewards, done = TASK.act(state, texts)
    assert pickle.dumps(state) == before
    stock, state = state.stock, pickle.loads(pickle.dumps(now))
    assert state == now == copy.deepcopy(now)
    assert 0 <= state.stock <= TASK.capacity
    if step % 2 == 0:
      assert rewards == {}
      continue
    assert sum(rewards.values()) * 4 <= stock + 1e-9
    for agent in range(4):
      assert rewards[agent] >= 0
      assert not rewards[agent] or 'take ' in texts[agent]
  assert done


def test_demonstrations_speak_the_vocabulary():
  task, rng = CommonPool(), random.Random(0)
  words = {*task.vocabulary()}
  for i in range(20):
    state, done = task.begin(task.questions('train')[i], 0), False
    while not done:
      texts = {}
      for agent in range(4):
        assert {*task.observe(state, agent).split()} <= words
        texts[agent] = task.demonstration(
          Question('', '', ''), agent, [], rng, state=state, silence_probability=0.5
        )
        assert {*texts[agent].split()} <= words
      state, _, done = task.act(state, texts)


def test_options_that_make_no_pool_are_refused():
  with pytest.raises(ValueError, match=r'collapse=20 must be at most half'):
    CommonPool(collapse=20)
  with pytest.raises(ValueError, match="question 'asked-1' has no world"):
    TASK.begin(Question('asked-1', '', ''), 0)
