"""Tests the two time scales of HiPER: subgoals, and the messages that follow them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from advantage_batches import exact, some_inputs

from agent_gspo.algorithms.advantages import estimators as lib
from agent_gspo.algorithms.advantages import hierarchical


def _hiper(e: dict[str, np.ndarray], rewards: np.ndarray, lam: float) -> tuple[np.ndarray, int]:
  """Returns advantages by a loop over spans, and the number of spans with a successor."""
  count, followed = len(rewards), 0
  spans: list[tuple[list[int], int]] = []  # messages, next subgoal or -1
  sets = np.zeros(count, bool)
  for episode in np.unique(e['episode']):
    own = [m for m in range(count) if e['episode'][m] == episode]
    own.sort(key=lambda m: (e['turn'][m], e['agent'][m]))
    planner = [m for m in own if e['agent'][m] == 0]
    starts = [m for m in planner if m == planner[0] or not e['silent'][m]]
    sets[starts] = True
    cuts = [0, *(own.index(m) for m in starts), len(own)]
    for first, last in itertools.pairwise(cuts):
      spans.append((own[first:last], own[last] if last < len(own) else -1))
  later = lambda m, among: rewards[
    [i for i in among if e['agent'][i] == e['agent'][m] and e['turn'][i] >= e['turn'][m]]
  ].sum()
  state = lambda m: (e['question'][m], e['agent'][m], e['observation'][m])

  def baseline(values, m, of):
    equal = [i for i in range(count) if of[i] and state(i) == state(m)]
    same = [i for i in range(count) if of[i] and e['groups'][i] == e['groups'][m]]
    return values[equal if len(equal) > 1 else same].mean()

  whole = lambda m: [i for i in range(count) if e['episode'][i] == e['episode'][m]]
  returns = np.array([later(m, whole(m)) for m in range(count)])
  high = {m: baseline(returns, m, sets) for m in np.flatnonzero(sets)}
  target, after = np.zeros(count), np.full(count, -1)
  for own, following in spans:
    for m in own:
      target[m] = later(m, own) + (high[following] if following >= 0 else 0)
      after[m] = following
  found = np.array([target[m] - baseline(target, m, sets | True) for m in range(count)])
  for m in sorted(high, key=lambda m: -e['turn'][m]):
    found[m] = target[m] - high[m]
    if after[m] >= 0:
      found[m] += lam * found[after[m]]
      followed += 1
  for kind in (sets, ~sets & (e['agent'] == 0), e['agent'] > 0):  # subgoals, silence, executors
    found[kind] /= np.sqrt(np.mean(found[kind] ** 2))
  return found, followed


@pytest.mark.parametrize(('lam', 'grouping'), [(0.95, 'question'), (0.3, 'question_turn_agent')])
def test_hiper_credits_subgoals_and_what_follows_them(lam, grouping):
  x = some_inputs(4, grouping)
  earned = np.random.default_rng(1).random(len(x.task)).astype(np.float32)
  x = x.replace(reward=earned, observation=x.observation % 5)
  e = exact(x)
  expected, followed = _hiper(e, e['reward'] - e['costs'], lam)
  assert followed > 3
  found = lib.advantage(x, 'hiper', lam=lam).values
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('step', [1, -1])
def test_hiper_by_hand(step):
  """Two episodes; the planner sets two subgoals in the first, one in the second."""
  agent, turn = np.array([0, 1, 0, 1] * 2), np.array([0, 0, 1, 1] * 2)
  episode, zeros = np.repeat([0, 1], 4), np.zeros(8, int)
  silent = np.array([False] * 6 + [True, False])
  rewards = np.float32([0, 0, 1, 1, 0, 0, 0, 0])
  columns = (rewards, zeros, zeros, episode, agent, turn, silent, 2 * turn + agent)
  found = hierarchical.hiper(*(column[::step] for column in columns), lam=0.5)[::step]
  # V_high: 1/2 at the start, 1 at the second subgoal, which is alone in its group of three:
  # (1 + 1 + 0) / 3. U of the executors: 2/3, 1; 0, 0.
  second = 1 - 2 / 3
  subgoals = np.array([2 / 3 - 1 / 2 + second / 2, second, -1 / 2])
  executors = np.array([1 / 3, 1 / 2, -1 / 3, -1 / 2])
  scale = lambda v: v / np.sqrt(np.mean(v**2))
  np.testing.assert_allclose(found[[0, 2, 4]], scale(subgoals), rtol=1e-5)
  np.testing.assert_allclose(found[[1, 3, 5, 7]], scale(executors), rtol=1e-5)
  np.testing.assert_allclose(found[6], -1, rtol=1e-5)  # silence, where the other message earned 1
