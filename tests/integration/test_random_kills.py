"""Killed at any moment, a run ends where it would have ended; the script does it longer."""

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
def test_killed_while_rollouts_wait(tmp_path):
  assert queue_kills.trial(tmp_path, kills=2, terms=0, processes=1) == 1


@pytest.mark.slow
@pytest.mark.parametrize(('processes', 'actors'), [(1, 0), (2, 0), (2, 1)])
def test_killed_often_while_rollouts_wait(tmp_path, processes, actors):
  found = queue_kills.trial(tmp_path, kills=20, terms=5, processes=processes, seed=1, actors=actors)
  assert found == 5
