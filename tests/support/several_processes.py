"""Runs training in several processes on loopback, each with host devices of its own."""

from __future__ import annotations

import contextlib
import pathlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO

import micro_run
import pytest

from agent_gspo.workdir import json_lines

_STEPS = 3
_OPTIONS = (
  f'--config.steps={_STEPS}',
  '--config.rollout.questions=4',
  '--config.evaluation.every=2',
  '--config.checkpoint.every=1',
)
# Metrics of the clock, of the machine, and of rounding alone.
_FREE = ('time/', 'memory/', 'seconds', 'policy/ratio_first_minibatch_error')
_FREE += ('policy/sampler_trainer_diff',)


def free_port() -> int:
  """Returns a free port outside the range of outgoing connections."""
  while True:
    port = random.randrange(20000, 32000)
    with socket.socket() as some, contextlib.suppress(OSError):
      some.bind(('127.0.0.1', port))
      return port


def _mesh(devices: int) -> list[str]:
  """Returns flags of a mesh that uses all three axes if there are enough devices."""
  fsdp, tensor = min(devices, 2), max(devices // 4, 1)
  return ['--config.mesh.data=-1', f'--config.mesh.fsdp={fsdp}', f'--config.mesh.tensor={tensor}']


def environment(devices: int) -> dict[str, str]:
  """Returns the environment of a process with `devices` host devices."""
  return {
    **micro_run.environment(devices),
    # SFT is kept whatever the mesh, whose rounding it has: one device needs its own.
    'AGENT_GSPO_CACHE': str(micro_run.folder() / 'several_processes'),
  }


def start(
  workdir: pathlib.Path,
  processes: int,
  devices: int,
  output: int | IO[bytes] = subprocess.PIPE,
  under: Callable[[int], list[str]] = lambda index: [],
  options: Callable[[int], list[str]] = lambda index: [],
) -> list[subprocess.Popen]:
  """Starts the processes of a run, each with `devices` host devices.

  Args:
    workdir: Run folder.
    processes: Number of processes.
    devices: Host devices of each process.
    output: Destination of stdout.
    under: Maps a process to the command that wraps its command, if any.
    options: Maps a process to its own flags.
  """
  made = commands(workdir, processes, devices)
  return [
    subprocess.Popen(
      under(index) + command + options(index),
      env=environment(devices),
      cwd=micro_run.folder(),
      stdout=output,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for index, command in enumerate(made)
  ]


def commands(
  workdir: pathlib.Path, processes: int, devices: int, options: Sequence[str] = ()
) -> list[list[str]]:
  """Returns the command line of each process of a run."""
  together = []
  if processes > 1:
    together = [f'--coordinator=127.0.0.1:{free_port()}', f'--num_processes={processes}']
    together.append('--heartbeat_timeout_s=10')  # or each kill would be noticed after 100
  return [
    micro_run.train_command(
      workdir,
      *_OPTIONS,
      *_mesh(processes * devices),
      *together,
      *([f'--process_id={index}'] if together else []),
      *options,
    )
    for index in range(processes)
  ]


def scripts(script: str, folder: pathlib.Path, processes: int, devices: int) -> list[str]:
  """Runs a Python script in several processes; returns the output of each.

  Its arguments are the folder, the coordinator's address and the index of its process.
  """
  beside = {'PYTHONPATH': str(pathlib.Path(__file__).parent)}
  coordinator = f'127.0.0.1:{free_port()}'
  started = [
    subprocess.Popen(
      [sys.executable, '-c', script, str(folder), coordinator, str(index)],
      env=environment(devices) | beside,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for index in range(processes)
  ]
  found = ends(started)
  for status, output in found:
    assert status == 0, output[-3000:]
  return [output for _, output in found]


def ends(started: list[subprocess.Popen]) -> list[tuple[int, str]]:
  """Returns exit status and output of each process."""
  found = []
  for process in started:
    output, _ = process.communicate(timeout=280)
    found.append((process.returncode, output))
  return found


def run(workdir: pathlib.Path, processes: int, devices: int) -> None:
  for status, output in ends(start(workdir, processes, devices)):
    assert status == 0, output[-3000:]


def assert_same_figures(workdir: pathlib.Path, reference: pathlib.Path) -> None:
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


def alone() -> pathlib.Path:
  """Returns the workdir of a run of one process with four devices; do not write there."""
  return micro_run.shared('four_devices', lambda workdir: run(workdir, 1, 4))


def wait_for_lines(workdir: pathlib.Path, lines: int, started: list[subprocess.Popen]) -> None:
  file, until = workdir / 'metrics.jsonl', time.monotonic() + 240
  while time.monotonic() < until:
    with contextlib.suppress(FileNotFoundError):
      if len(file.read_bytes().splitlines()) >= lines:
        return
    if started[0].poll() is not None:
      break
    time.sleep(0.05)
  raise AssertionError(f'no {lines} lines: {ends(started)}')
