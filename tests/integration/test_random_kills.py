"""Checks that a run killed at random moments ends as if uninterrupted."""

import pytest
import queue_kills
import random_kills


@pytest.mark.slow
@pytest.mark.parametrize('processes', [1, 2])
def test_killed_at_random_moments(processes):
  made = random_kills.trial(kills=3, terms=1, processes=processes, seed=0)
  assert not made.problems
  assert made.delivered == {'SIGKILL': 3, 'SIGTERM': 1}


@pytest.mark.slow
@pytest.mark.parametrize('schedule', ['fixed', 'free'])
def test_killed_while_rollouts_wait(tmp_path, schedule):
  found = queue_kills.trial(tmp_path, kills=2, terms=1, processes=1, seed=2, schedule=schedule)
  assert found == 1


@pytest.mark.slow
@pytest.mark.parametrize('schedule', ['fixed', 'free'])
@pytest.mark.parametrize(('processes', 'actors'), [(1, 0), (2, 0), (2, 1)])
def test_killed_often_while_rollouts_wait(tmp_path, processes, actors, schedule):
  found = queue_kills.trial(
    tmp_path, kills=20, terms=5, processes=processes, seed=1, actors=actors, schedule=schedule
  )
  assert found == 5
