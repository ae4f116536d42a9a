"""Several processes on loopback are one run: its figures, its files, and its end."""

import contextlib
import pathlib
import signal
import socket
import subprocess
import time

import micro_run
import pytest

from agent_gspo.sharding import hosts, placement
from agent_gspo.workdir import json_lines

_STEPS = 3
_OPTIONS = (
  f'--config.steps={_STEPS}',
  '--config.rollout.questions=4',
  '--config.evaluation.every=2',
  '--config.checkpoint.every=1',
)
# Of the clock, of the machine, and what is rounding altogether.
_FREE = ('time/', 'memory/', 'seconds', 'policy/ratio_first_minibatch_error')
_FREE += ('policy/sampler_trainer_diff',)


def _free_port() -> int:
  with socket.socket() as some:
    some.bind(('127.0.0.1', 0))
    return some.getsockname()[1]


def _mesh(devices: int) -> list[str]:
  """All three axes as soon as there are enough devices."""
  fsdp, tensor = min(devices, 2), max(devices // 4, 1)
  return ['--config.mesh.data=-1', f'--config.mesh.fsdp={fsdp}', f'--config.mesh.tensor={tensor}']


def _start(workdir: pathlib.Path, processes: int, devices: int) -> list[subprocess.Popen]:
  """The processes of a run with so many devices each, started together."""
  environment = {
    **micro_run.environment(),
    'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
  }
  together = []
  if processes > 1:
    together = [f'--coordinator=127.0.0.1:{_free_port()}', f'--num_processes={processes}']
  return [
    subprocess.Popen(
      micro_run.train_command(
        workdir,
        *_OPTIONS,
        *_mesh(processes * devices),
        *together,
        *([f'--process_id={index}'] if together else []),
      ),
      env=environment,
      cwd=micro_run.folder(),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for index in range(processes)
  ]


def _ends(started: list[subprocess.Popen]) -> list[tuple[int, str]]:
  """Exit status and output of each."""
  found = []
  for process in started:
    output, _ = process.communicate(timeout=280)
    found.append((process.returncode, output))
  return found


def _run(workdir: pathlib.Path, processes: int, devices: int) -> None:
  for status, output in _ends(_start(workdir, processes, devices)):
    assert status == 0, output[-3000:]


def _assert_same_figures(workdir: pathlib.Path, reference: pathlib.Path) -> None:
  for name in ('metrics.jsonl', 'eval.jsonl'):
    found, expected = ([*json_lines.iterate(w / name)] for w in (workdir, reference))
    assert len(found) == len(expected), name
    for one, other in zip(expected, found, strict=True):
      assert one.keys() == other.keys()
      for key, value in one.items():
        if isinstance(value, float) and not key.startswith(_FREE):
          assert other[key] == pytest.approx(value, rel=1e-4, abs=1e-6), (name, key)
  texts = [
    [
      m['text']
      for record in json_lines.iterate(w / 'transcripts.jsonl')
      for m in record['messages']
    ]
    for w in (workdir, reference)
  ]
  assert texts[0] == texts[1]
  assert [r['step'] for r in json_lines.iterate(workdir / 'metrics.jsonl')] == [1, 2, 3]


@pytest.fixture(scope='module')
def alone(tmp_path_factory) -> pathlib.Path:
  """The run of one process with four devices."""
  workdir = tmp_path_factory.mktemp('alone') / 'run'
  _run(workdir, 1, 4)
  return workdir


@pytest.mark.slow
def test_two_processes_are_one_run(alone, tmp_path):
  _run(tmp_path / 'run', 2, 2)
  _assert_same_figures(tmp_path / 'run', alone)
  assert (tmp_path / 'run' / 'report.html').exists()


@pytest.mark.slow
def test_four_processes_are_one_run(alone, tmp_path):
  _run(tmp_path / 'run', 4, 1)
  _assert_same_figures(tmp_path / 'run', alone)


def _wait_for_lines(workdir: pathlib.Path, lines: int, started: list[subprocess.Popen]) -> None:
  file, until = workdir / 'metrics.jsonl', time.monotonic() + 240
  while time.monotonic() < until:
    with contextlib.suppress(FileNotFoundError):
      if len(file.read_bytes().splitlines()) >= lines:
        return
    if started[0].poll() is not None:
      break
    time.sleep(0.05)
  raise AssertionError(f'no {lines} lines: {_ends(started)}')


@pytest.mark.slow
@pytest.mark.parametrize('killed', [0, 1])
def test_a_killed_process_ends_all_and_the_rerun_goes_on(alone, tmp_path, killed):
  workdir = tmp_path / 'run'
  started = _start(workdir, 2, 2)
  _wait_for_lines(workdir, 1, started)
  started[killed].send_signal(signal.SIGKILL)
  statuses = [status for status, _ in _ends(started)]  # none is left waiting
  assert statuses[killed] == -signal.SIGKILL
  assert statuses[1 - killed] != 0
  _run(workdir, 2, 2)
  _assert_same_figures(workdir, alone)


@pytest.mark.slow
def test_sigterm_to_one_process_saves_and_ends_all(alone, tmp_path):
  workdir = tmp_path / 'run'
  started = _start(workdir, 2, 2)
  _wait_for_lines(workdir, 1, started)
  started[1].send_signal(signal.SIGTERM)
  ends = _ends(started)
  assert [status for status, _ in ends] == [130, 130], ends
  _run(workdir, 1, 4)  # with another number of processes
  _assert_same_figures(workdir, alone)


@pytest.mark.slow
@pytest.mark.parametrize(('processes', 'devices'), [(1, 1), (1, 4), (2, 1)])
def test_a_run_of_eight_devices_goes_on_with_others(alone, tmp_path, processes, devices):
  workdir = tmp_path / 'run'
  started = _start(workdir, 1, 8)
  _wait_for_lines(workdir, 1, started)
  started[0].send_signal(signal.SIGTERM)
  _ends(started)
  _run(workdir, processes, devices)
  _assert_same_figures(workdir, alone)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('127.0.0.1:1', 0, -1), '--num_processes, --process_id missing'),
    (('', 2, 0), '--coordinator missing'),
    (('127.0.0.1:1', 2, 2), '--process_id=2 must be below --num_processes=2'),
  ],
)
def test_half_a_description_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    hosts.connect(*arguments)


def test_shares_are_all_there_is(monkeypatch):
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
def test_a_mesh_that_there_are_no_devices_for(shape, message):
  with pytest.raises(ValueError, match=message):
    placement.make_placement(shape)
