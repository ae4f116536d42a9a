"""Compares turn-level advantages with their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
from advantage_batches import by_group, exact, members, some_inputs, standardised, values_of

from agent_gspo.algorithms.advantages import estimators as lib
from agent_gspo.algorithms.advantages import turn_level


@pytest.fixture(scope='module', params=['question', 'question_turn_agent'])
def x(request):
  return some_inputs(4, request.param)


def test_agent_turn_normalises_what_is_still_to_be_paid(x):
  e = exact(x)
  returns = np.zeros(len(e['task']))
  for m in range(len(returns)):
    later = (
      (e['episode'] == e['episode'][m])
      & (e['agent'] == e['agent'][m])
      & (e['turn'] >= e['turn'][m])
    )
    returns[m] = e['task'][m] - e['costs'][later].sum()
  expected = by_group(returns, members(e['agent']), standardised)
  np.testing.assert_allclose(values_of('agent_turn', x), expected, atol=1e-5)
  expected = by_group(returns, members(e['agent']), lambda v: standardised(v, 2.0))
  np.testing.assert_allclose(values_of('agent_turn', x, std_floor=2.0), expected, atol=1e-5)


def test_agent_turn_does_not_blame_a_message_for_what_was_spent_before():
  costs = np.float32([0.3, 0.0, 0.0, 0.3])  # two episodes of two turns by one agent
  zeros = np.zeros(4, int)
  found = turn_level.agent_turn(
    np.ones(4, np.float32), costs, np.array([0, 0, 1, 1]), zeros, np.array([0, 1, 0, 1])
  )
  np.testing.assert_allclose(found, standardised(np.array([-0.3, 0, -0.3, -0.3])), rtol=1e-4)


@pytest.mark.parametrize(('omega', 'divide'), [(1.0, True), (0.3, True), (1.0, False)])
def test_gigpo_adds_the_step_to_the_episode(x, omega, divide):
  e = exact(x)
  normalise = standardised if divide else lambda v: v - v.mean()
  whole = by_group(e['rewards'], members(e['groups']), normalise)
  step = by_group(e['rewards'], members(e['question'], e['observation']), normalise)
  found = values_of('gigpo', x, omega=omega, divide=divide)
  np.testing.assert_allclose(found, whole + omega * step, rtol=1e-4, atol=1e-4)
  assert (np.abs(step) > 0.1).any()


def test_gigpo_compares_episodes_by_all_that_the_author_earned():
  """Returns to go differ between episodes, total returns do not."""
  x = some_inputs(4, 'question_agent')
  earned = np.random.default_rng(0).random(len(x.task)).astype(np.float32)
  x = x.replace(reward=earned, observation=np.arange(len(earned)))
  whole = by_group(earned, members(x.episode, x.agent), lambda v: v * 0 + v.sum()) - x.costs
  expected = by_group(whole, members(x.groups), standardised)
  np.testing.assert_allclose(values_of('gigpo', x), expected, rtol=1e-4, atol=1e-4)


def test_gigpo_step_that_no_one_shares_adds_nothing():
  rewards, zeros = np.float32([1, 0, 0, 1]), np.zeros(4, int)
  found = turn_level.gigpo(rewards, zeros, zeros, np.array([0, 0, 1, 2]), rewards)
  np.testing.assert_allclose(found, [2, -2, -1, 1], rtol=1e-5)
  # The same ids under another question are another step.
  found = turn_level.gigpo(rewards, np.arange(4), np.arange(4), zeros, rewards)
  np.testing.assert_array_equal(found, 0)


def test_matchtir_adds_the_turn_to_the_episode():
  x = some_inputs(4)
  x = x.replace(reward=np.random.default_rng(0).random(len(x.task)).astype(np.float32))
  e = exact(x)
  earned = by_group(e['reward'], members(x.episode, x.agent), lambda v: v * 0 + v.sum())
  whole = by_group(earned - e['costs'], members(e['groups']), standardised)
  turn = by_group(e['rewards'], members(e['groups'], e['agent'], e['turn']), standardised)
  np.testing.assert_allclose(values_of('matchtir', x), (whole + turn) / 2, rtol=1e-4, atol=1e-4)


def test_matchtir_of_matched_tool_calls():
  """Two episodes of two turns; similarities of their calls, then answers; discount 0.5."""
  agent, turn = np.zeros(4, int), np.array([0, 1, 0, 1])
  earned = np.float32([0.5, 1, 1, 0])  # the first answers right, the second calls right
  found = turn_level.matchtir(
    np.float32([1, 1, 1, 0]), agent, agent, turn, np.repeat(earned.reshape(2, 2).sum(1), 2)
  )
  # The first turns tie: 0.5 + 0.5 * 1 = 1 + 0.5 * 0.
  np.testing.assert_allclose(found, [0.5, 1, -0.5, -1], rtol=1e-4)


def _tree(seed: int) -> lib.AdvantageInputs:
  """Trees of three questions: two episodes, some begun later, two agents in turn, candidates."""
  rng = np.random.default_rng(seed)
  rows = []
  for episode in range(6):
    for turn in range(int(rng.integers(2)), int(rng.integers(2, 5))):
      count = int(rng.integers(1, 4))
      goes_on = rng.integers(count)
      for agent in ([0], [1], [0, 1], [1])[turn]:
        rows += [(episode // 2, episode, agent, turn, k == goes_on) for k in range(count)]
  question, episode, agent, turn, taken = rng.permutation(np.array(rows)).T
  reward = rng.random(len(rows)).astype(np.float32)
  costs = np.float32(0.1) * rng.random(len(rows)).astype(np.float32)
  return lib.AdvantageInputs(
    task=reward, reward=reward, costs=costs, groups=question, question=question, episode=episode,
    agent=agent, turn=turn, taken=taken > 0,
  )  # fmt: skip


@pytest.mark.parametrize(('gamma', 'mix'), [(0.5, 0.5), (0.3, 0.9), (1.0, 0.0)])
def test_mars2_compares_with_parents_and_siblings(gamma, mix):
  kinds = set()
  for seed in range(4):
    x = _tree(seed)
    e = exact(x)
    reward, shaped = e['reward'] - e['costs'], np.zeros(len(e['task']))
    rows = [*zip(*(e[k].tolist() for k in ('question', 'episode', 'agent', 'turn')), strict=True)]
    for m, (question, episode, agent, turn) in enumerate(rows):
      up = (e['episode'] == episode) & (e['turn'] == turn - 1) & e['taken']
      begun = {at: min(row[3] for row in rows if row[1] == at) for at in e['episode'].tolist()}
      # Without a parent, the others are those of all episodes that begin in this turn.
      others = [
        i
        for i, row in enumerate(rows)
        if i != m and (row == rows[m] if up.any() else row[0::2] == (question, agent)
                       and row[3] == turn == begun[row[1]])
      ]  # fmt: skip
      kinds.add((bool(up.any()), bool(others)))
      baseline = reward[m]
      if up.any() and others:
        baseline = (1 - mix) * reward[up].mean() + mix * reward[others].mean()
      elif up.any() or others:
        baseline = reward[up].mean() if up.any() else reward[others].mean()
      shaped[m] = reward[m] + gamma * (reward[m] - baseline)
    expected = by_group(shaped, members(e['question'], e['agent']), standardised)
    found = values_of('mars2', x, gamma=gamma, mix=mix)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  assert len(kinds) >= 3


def test_mars2_by_hand():
  """Two first answers, of 0.2 and 0.6; the better is refined to 1 and to 0."""
  zeros, turn = np.zeros(4, int), np.array([0, 0, 1, 1])
  reward, taken = np.float32([0.2, 0.6, 1, 0]), np.array([False, True, True, False])
  found = turn_level.mars2(reward, zeros, zeros, zeros, turn, taken)
  # Baselines: 0.6; 0.2; (0.6 + 0) / 2; (0.6 + 1) / 2.
  np.testing.assert_allclose(found, standardised(np.array([0, 0.8, 1.35, -0.4])), rtol=1e-5)


def test_mars2_of_one_chain():
  """The first answer has neither parent nor sibling, the next two have a parent."""
  reward = np.float32([0.2, 0.6, 0.1])
  zeros = np.zeros(3, int)
  found = turn_level.mars2(reward, zeros, zeros, zeros, np.arange(3), zeros == 0)
  np.testing.assert_allclose(found, standardised(np.array([0.2, 0.8, -0.15])), rtol=1e-5)


@pytest.mark.parametrize('alpha', [1.0, 0.0, 2.0])
def test_hgpo_weighs_long_histories_more(x, alpha):
  e = exact(x)
  levels = [
    by_group(e['rewards'], members(e['question'], ids), standardised) for ids in e['history']
  ]
  # As in the code: 0 in groups of one or of ties.
  levels = [np.where(np.abs(a) < 1e-9, 0, a) for a in levels]
  expected = np.zeros(len(e['task']))
  seen = set()
  for m in range(len(expected)):
    known = [k for k in (1, 2, 3) if levels[k - 1][m] != 0]
    seen.add(len(known))
    if known:
      weights = np.array([(k + 1.0) ** alpha for k in known])
      expected[m] = weights @ [levels[k - 1][m] for k in known] / weights.sum()
  assert seen == {0, 1, 2, 3}
  np.testing.assert_allclose(values_of('hgpo', x, alpha=alpha), expected, rtol=1e-4, atol=1e-4)


def test_hgpo_by_hand():
  history = np.array([[0, 0, 0, 0], [0, 0, 1, 2]])
  found = turn_level.hgpo(np.float32([1, 0, 0, 1]), np.zeros(4, int), history)
  # k = 1 and 2 weigh 2 and 3; the last two messages are alone at k = 2.
  np.testing.assert_allclose(found, [1, -1, -1, 1], rtol=1e-5)
  found = turn_level.hgpo(np.float32([1, 0, 0, 0]), np.zeros(4, int), history)
  first = standardised(np.array([1.0, 0, 0, 0]))
  expected = [(2 * first[0] + 3) / 5, (2 * first[1] - 3) / 5, first[2], first[3]]
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_hgpo_does_not_count_a_level_that_ties():
  """Its rounding errors would take weight from the level at which messages differ."""
  rewards = np.repeat(np.float32([0.9, 0.976]), 7)
  history = np.stack([np.zeros(14, int), np.repeat([0, 1], 7)])
  found = turn_level.hgpo(rewards, np.zeros(14, int), history)
  np.testing.assert_allclose(found, np.repeat([-1, 1], 7), rtol=1e-4)


def test_counterfactual_compares_with_the_authors_silence(x):
  e = exact(x)
  expected = np.zeros(len(e['task']))
  fallbacks = 0
  for m in range(len(expected)):
    same = (
      (e['question'] == e['question'][m])
      & (e['agent'] == e['agent'][m])
      & (e['turn'] == e['turn'][m])
      & e['silent']
    )
    if not same.any():
      same, fallbacks = e['groups'] == e['groups'][m], fallbacks + 1
    expected[m] = e['rewards'][m] - e['rewards'][same].mean()
  assert fallbacks
  np.testing.assert_allclose(values_of('counterfactual', x), expected, atol=1e-5)


def test_counterfactual_asks_whether_a_message_paid():
  """Four episodes; the agent speaks in two, of which one is solved, at a price of 0.1."""
  silent = np.array([False, False, True, True])
  zeros, groups = np.zeros(4, int), np.zeros(4, int)
  rewards = np.float32([0.9, -0.1, 1, 1])
  found = turn_level.counterfactual(rewards, groups, zeros, zeros, zeros, silent)
  np.testing.assert_allclose(found, [-0.1, -1.1, 0, 0], atol=1e-6)  # silence does as well
  rewards = np.float32([0.9, -0.1, 0, 0])
  found = turn_level.counterfactual(rewards, groups, zeros, zeros, zeros, silent)
  np.testing.assert_allclose(found, [0.9, -0.1, 0, 0], atol=1e-6)


@pytest.mark.parametrize('silent', [True, False])
def test_counterfactual_of_an_agent_that_never_or_always_spoke(silent):
  rewards, zeros = np.float32([1, 0, 0, 1]), np.zeros(4, int)
  found = turn_level.counterfactual(rewards, zeros, zeros, zeros, zeros, np.full(4, silent))
  np.testing.assert_allclose(found, rewards - 0.5, atol=1e-6)


@pytest.mark.parametrize(('beta', 'gamma'), [(1.0, 0.9), (0.5, 1.0)])
def test_advantage_alignment_adds_what_others_gain_after_what_the_author_gained(x, beta, gamma):
  earned = np.random.default_rng(3).normal(size=len(x.task)).astype(np.float32)
  x = x.replace(reward=earned)
  e = exact(x)
  count, rewards = len(earned), e['reward'] - e['costs']

  def later(m, counts):
    same = (e['episode'] == e['episode'][m]) & (e['turn'] >= e['turn'][m])
    return rewards[same & counts].sum()

  returns = np.array([later(m, e['agent'] == e['agent'][m]) for m in range(count)])
  of_others = np.array([later(m, e['role'] != e['role'][m]) for m in range(count)])
  own = by_group(returns, members(e['groups']), standardised)
  others = by_group(of_others, members(e['groups']), standardised)
  expected = own.copy()
  for m in range(count):
    mine = (e['episode'] == e['episode'][m]) & (e['agent'] == e['agent'][m])
    before = sorted(np.flatnonzero(mine & (e['turn'] < e['turn'][m])), key=lambda k: -e['turn'][k])
    past = sum(gamma**distance * own[k] for distance, k in enumerate(before, start=1))
    expected[m] += beta * gamma * past * others[m]
  assert np.abs(expected - own).max() > 0.1
  found = values_of('advantage_alignment', x, beta=beta, gamma=gamma)
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
