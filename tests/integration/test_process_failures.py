"""Checks that a failure of one process ends all, and that the rerun resumes."""

import re
import signal
import time

import pytest
import several_processes

from agent_gspo.workdir import step_folders


@pytest.mark.slow
@pytest.mark.parametrize('killed', [0, 1])
def test_a_killed_process_ends_all_and_the_rerun_goes_on(tmp_path, killed):
  workdir = tmp_path / 'run'
  started = several_processes.start(workdir, 2, 2)
  several_processes.wait_for_lines(workdir, 1, started)
  started[killed].send_signal(signal.SIGKILL)
  start = time.monotonic()
  ends = several_processes.ends(started)  # none is left waiting
  assert time.monotonic() - start < 15
  assert ends[killed][0] == -signal.SIGKILL
  assert ends[1 - killed][0] == 2, ends[1 - killed][1][-3000:]
  line = f'error: process {killed} of 2 ended: it was killed, or its host is out of reach'
  assert ends[1 - killed][1].splitlines()[-1] == line
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


@pytest.mark.slow
@pytest.mark.parametrize('full', [0, 1])
def test_a_disk_that_is_full_for_one_process_ends_all_with_its_line(tmp_path, full):
  """A thread writes the failing process's part of a checkpoint; the others wait for it."""
  workdir = tmp_path / 'run'
  # Blocks of 1024 bytes. A compiled program that does not fit would be half of one to other tests.
  limit = 'export JAX_ENABLE_COMPILATION_CACHE=0; ulimit -f 20; exec "$@"'
  limited = ['bash', '-c', limit, 'bash']
  started = several_processes.start(
    workdir, 2, 1, under=lambda index: limited if index == full else []
  )
  for status, output in several_processes.ends(started):
    assert status == 2, output
    line = rf'error: checkpoint 0 could not be written to {workdir}/checkpoints: File too large\. '
    assert re.search(line + 'There is no checkpoint yet: make room', output), output
  assert step_folders.steps(workdir / 'checkpoints') == []
