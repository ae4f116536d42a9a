"""Checks that several processes on loopback are one run: figures, files, devices."""

import json
import signal
import subprocess
import sys

import micro_run
import pytest
import several_processes
import tiny

from agent_gspo.models.io import hf
from agent_gspo.sharding import hosts, placement


@pytest.mark.slow
def test_two_processes_are_one_run(tmp_path):
  several_processes.run(tmp_path / 'run', 2, 2)
  several_processes.assert_same_figures(tmp_path / 'run', several_processes.alone())
  assert (tmp_path / 'run' / 'report.html').exists()
  assert (tmp_path / 'run' / 'done').exists()


@pytest.mark.slow
def test_four_processes_are_one_run(tmp_path):
  several_processes.run(tmp_path / 'run', 4, 1)
  several_processes.assert_same_figures(tmp_path / 'run', several_processes.alone())


@pytest.mark.slow
@pytest.mark.parametrize(('processes', 'devices'), [(1, 1), (1, 4), (2, 1)])
def test_a_run_of_eight_devices_goes_on_with_others(tmp_path, processes, devices):
  workdir = tmp_path / 'run'
  started = several_processes.start(workdir, 1, 8)
  several_processes.wait_for_lines(workdir, 1, started)
  started[0].send_signal(signal.SIGTERM)
  several_processes.ends(started)
  several_processes.run(workdir, processes, devices)
  several_processes.assert_same_figures(workdir, several_processes.alone())


@pytest.mark.slow
@pytest.mark.parametrize(('devices', 'actors'), [(1, 0), (3, 1), (4, 2)])
def test_two_processes_roll_out_ahead_as_one(tmp_path, devices, actors):
  """The actors of two processes have their own collectives beside those of the learners."""
  alone = micro_run.shared('ahead', lambda workdir: _run_ahead(workdir, 1, 1, 0))
  _run_ahead(tmp_path / 'run', 2, devices, actors)
  several_processes.assert_same_figures(tmp_path / 'run', alone)


def _run_ahead(workdir, processes, devices, actors) -> None:
  options = ['--config.rollout.ahead=2', f'--config.mesh.actors={actors}']
  for status, output in several_processes.ends(
    several_processes.start(workdir, processes, devices, options=lambda _: options)
  ):
    assert status == 0, output[-3000:]


_GATHER = """
import sys, threading, time
from agent_gspo.sharding import hosts

_, coordinator, index = sys.argv[1:]
hosts.connect(coordinator, 2, int(index))
meetings, waited = hosts.ThreadMeetings(0.1), []

def gather():
  for n in range(2):
    time.sleep(int(index))
    assert meetings.gather((n, index), lambda: waited.append(n)) == [(n, '0'), (n, '1')]
  print(sorted(set(waited)))

thread = threading.Thread(target=gather)
thread.start()
hosts.barrier()  # of the main threads, meanwhile
thread.join()
"""


def test_threads_of_processes_gather_beside_the_main_threads(tmp_path):
  first, _ = several_processes.scripts(_GATHER, tmp_path, processes=2, devices=1)
  assert first.splitlines()[-1] == '[0, 1]'


_READ = """
import dataclasses, json, sys
import jax, numpy as np
import tiny
from flax import traverse_util
from agent_gspo.models import partition
from agent_gspo.models.io import hf
from agent_gspo.sharding import hosts, placement

folder, coordinator, index = sys.argv[1:]
hosts.connect(coordinator, 2, int(index))
config, params = hf.open_hf(folder)
read = {}

def watched(path, array):
  def part(index):
    found = array.part(index)
    read[path] = found.size / np.prod(array.shape)
    return found
  return dataclasses.replace(array, part=part)

flat = {path: watched(path, x) for path, x in traverse_util.flatten_dict(params, sep='/').items()}
where = placement.make_placement({'data': 1, 'fsdp': 2, 'tensor': 2})
placed = partition.place(traverse_util.unflatten_dict(flat, sep='/'), config, where)
for path, x in traverse_util.flatten_dict(placed, sep='/').items():
  whole = np.asarray(traverse_util.flatten_dict(tiny.params(), sep='/')[path])
  for shard in x.addressable_shards:
    np.testing.assert_array_equal(shard.data, whole[shard.index], err_msg=path)
print(json.dumps(read))
"""


def test_each_process_reads_the_part_of_the_weights_that_its_devices_have(tmp_path):
  hf.export_hf(tiny.CONFIG, tiny.params(), tmp_path)
  cut = {'embed/embedding', *(f'layers_{i}/mlp/{x}/kernel' for i in (0, 1) for x in ('up', 'down'))}
  for output in several_processes.scripts(_READ, tmp_path, processes=2, devices=2):
    read = json.loads(output.splitlines()[-1])
    assert {path: read[path] for path in cut} == dict.fromkeys(cut, 0.5)  # halves over fsdp
    assert read['final_norm/scale'] == 1.0


def test_a_signal_that_comes_after_the_end_changes_nothing():
  """A process that died while waiting would make all the others fail."""
  sent = 'for n in (signal.SIGTERM, signal.SIGINT): os.kill(os.getpid(), n)'
  script = 'import os, signal; from agent_gspo.training import interruption; interruption.ignore()'
  assert subprocess.run([sys.executable, '-c', f'{script}\n{sent}'], check=False).returncode == 0


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('127.0.0.1:1', 0, -1), '--num_processes, --process_id missing'),
    (('', 2, 0), '--coordinator missing'),
    (('127.0.0.1:1', 2, 2), '--process_id=2 must be below --num_processes=2'),
    (('', 0, -1, 0), '--heartbeat_timeout_s=0 must be at least 1'),
  ],
)
def test_half_a_description_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    hosts.connect(*arguments)


def test_shares_cover_everything_once(monkeypatch):
  monkeypatch.setattr('jax.process_count', lambda: 3)
  shares = []
  for index in range(3):
    monkeypatch.setattr('jax.process_index', lambda index=index: index)
    shares += [*range(10)[hosts.share(10)]]
  assert shares == [*range(10)]


@pytest.mark.parametrize(
  ('shape', 'message'),
  [
    ({'data': 99, 'fsdp': 2, 'tensor': 1}, 'mesh.data=99, mesh.fsdp=2.*198 devices'),
    ({'data': -1, 'fsdp': 99, 'tensor': 1}, '99 devices, but there are'),
  ],
)
def test_a_mesh_larger_than_the_devices_is_refused(shape, message):
  with pytest.raises(ValueError, match=message):
    placement.make_placement(shape)
