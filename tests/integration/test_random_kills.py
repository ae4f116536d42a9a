"""Killed at any moment, a run ends where it would have ended; the script does it longer."""

import pytest
import random_kills


@pytest.mark.slow
@pytest.mark.parametrize(
  ('processes', 'options'), [(1, []), (2, []), (1, ['--config.rollout.ahead=2'])]
)
def test_killed_at_random_moments(processes, options):
  made = random_kills.trial(kills=3, terms=1, processes=processes, seed=0, options=options)
  assert not made.problems
  assert made.delivered == {'SIGKILL': 3, 'SIGTERM': 1}
