"""What ends one of several processes ends all of them, and the rerun goes on."""

import signal

import pytest
import several_processes


@pytest.mark.slow
@pytest.mark.parametrize('killed', [0, 1])
def test_a_killed_process_ends_all_and_the_rerun_goes_on(tmp_path, killed):
  workdir = tmp_path / 'run'
  started = several_processes.start(workdir, 2, 2)
  several_processes.wait_for_lines(workdir, 1, started)
  started[killed].send_signal(signal.SIGKILL)
  statuses = [status for status, _ in several_processes.ends(started)]  # none is left waiting
  assert statuses[killed] == -signal.SIGKILL
  assert statuses[1 - killed] != 0
  several_processes.run(workdir, 2, 2)
  several_processes.assert_same_figures(workdir, several_processes.alone())


@pytest.mark.slow
def test_sigterm_to_one_process_saves_and_ends_all(tmp_path):
  workdir = tmp_path / 'run'
  started = several_processes.start(workdir, 2, 2)
  several_processes.wait_for_lines(workdir, 1, started)
  started[1].send_signal(signal.SIGTERM)
  ends = several_processes.ends(started)
  assert [status for status, _ in ends] == [130, 130], ends
  several_processes.run(workdir, 1, 4)  # with another number of processes
  several_processes.assert_same_figures(workdir, several_processes.alone())
