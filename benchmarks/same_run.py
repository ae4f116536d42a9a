"""Checks that a run has the same objectives and messages on other meshes and processes.

    python benchmarks/same_run.py --config=configs/tiny.py --steps=5 \\
      --config.learner.micro_batch_size=8    # a row for each device

Trains by `launch/train.py` on one device, then on 8 host devices in four meshes, by 2 and by 4
processes on loopback, by 2 of which one is killed (SIGKILL) and both are started again, and for
three steps on 8 devices and the others on 1, on 4 and by 2 processes. Each is compared with the run
of one device: the largest difference of a step's objective, the number of steps before it exceeds
1e-6, and the number of messages with another text. Rounding can flip a draw near a boundary; from
there on the runs diverge.

With --each_step every step of the meshes and processes starts from the checkpoint of the run of one
device before that step, so that rounding does not accumulate. With --seeds=0,1,2 all comparisons
are repeated for each seed.

Further overrides of the config may follow: --config.sft.steps=100. Prints one markdown table per
seed and writes benchmarks/results/same_run_<config>.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.workdir import json_lines
from benchmarks import common

_Runs = Iterable[tuple[str, Callable[[pathlib.Path], None]]]
"""Compared runs by name."""

_AXES = ('data', 'fsdp', 'tensor')
_STOPPED_AFTER = 3  # steps
_ALIKE = 1e-6


@dataclasses.dataclass(frozen=True)
class _Command:
  """Training command with a number of processes and of devices for each."""

  arguments: tuple[str, ...]
  mesh: tuple[int, int, int] = (1, 1, 1)
  processes: int = 1

  def start(self, workdir: pathlib.Path, *more: str) -> list[subprocess.Popen]:
    devices = self.mesh[0] * self.mesh[1] * self.mesh[2] // self.processes
    # One thread: with more, the order of a sum, and so its rounding, is not deterministic.
    flags = f'--xla_force_host_platform_device_count={devices}'
    flags += ' --xla_cpu_multi_thread_eigen=false'
    command = [sys.executable, str(common.ROOT / 'launch' / 'train.py'), f'--workdir={workdir}']
    command += [*self.arguments, *more]
    command += [f'--config.mesh.{a}={n}' for a, n in zip(_AXES, self.mesh, strict=True)]
    if self.processes > 1:
      command += [f'--coordinator=127.0.0.1:{_free_port()}', f'--num_processes={self.processes}']
      command += ['--heartbeat_timeout_s=10']
    own = lambda i: [f'--process_id={i}'] if self.processes > 1 else []
    return [
      subprocess.Popen(
        command + own(i),
        env={**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
      )
      for i in range(self.processes)
    ]

  def run(self, workdir: pathlib.Path, *more: str) -> None:
    for process in self.start(workdir, *more):
      _, told = process.communicate()
      if process.returncode:
        raise SystemExit(f'{self} ended with {process.returncode}:\n{told.decode()[-3000:]}')


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--config', type=pathlib.Path, required=True)
  parser.add_argument('--steps', type=int, default=5, help=f'more than {_STOPPED_AFTER}')
  parser.add_argument('--each_step', action='store_true', help='from the same parameters')
  parser.add_argument('--seeds', type=_integers, default=(0,), help='comma between them')
  options, rest = parser.parse_known_args()
  if options.steps <= _STOPPED_AFTER:
    parser.error(f'--steps={options.steps}: some runs are stopped after {_STOPPED_AFTER}')
  overrides = common.check_overrides(rest)
  arguments = (f'--config={options.config}', *overrides, f'--config.steps={options.steps}')
  arguments += ('--config.logging.transcripts=1000000',)
  if options.each_step:
    keep = f'--config.checkpoint.keep={options.steps}'
    arguments += ('--config.checkpoint.every=1', keep)
  by_seed = {}
  for seed in options.seeds:
    of_seed = (*arguments, f'--config.seed={seed}')
    found = by_seed[seed] = _compared(of_seed, _each_step if options.each_step else _runs)
    head = (
      f'seed {seed}, beside one device',
      'objective differs by',
      'steps alike',
      'messages with other tokens',
    )
    rows = [
      (
        name,
        f'{f["objective"]:.0e}',
        str(f['steps_alike']),
        f'{f["other_tokens"]} of {f["messages"]}',
      )
      for name, f in found.items()
    ]
    print(common.table(head, rows), flush=True)
  name = f'same_{"step" if options.each_step else "run"}_{options.config.stem}'
  told = {'overrides': overrides, 'machine': common.machine(), 'runs_by_seed': by_seed}
  print(f'\nwrote {common.save(name, told).relative_to(common.ROOT)}')


def _integers(text: str) -> tuple[int, ...]:
  return tuple(map(int, text.split(',')))


def _compared(
  arguments: tuple[str, ...], make: Callable[[tuple[str, ...], pathlib.Path], _Runs]
) -> dict[str, dict[str, Any]]:
  """Returns the differences of the runs of `make` from that of one device."""
  found = {}
  with tempfile.TemporaryDirectory() as scratch:
    reference = pathlib.Path(scratch) / 'reference'
    _Command(arguments).run(reference)
    for i, (name, run) in enumerate(make(arguments, reference)):
      workdir = pathlib.Path(scratch) / str(i)
      start = time.monotonic()
      run(workdir)
      found[name] = _difference(workdir, reference)
      took = time.monotonic() - start
      print(f'{name}: {found[name]}, {took:.0f} s', file=sys.stderr, flush=True)
  return found


def _commands(arguments: tuple[str, ...]) -> dict[str, _Command]:
  """Returns the meshes and processes by name."""
  meshes = ((8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 1, 8))
  found = {f'8 devices, {"x".join(map(str, m))}': _Command(arguments, m) for m in meshes}
  return found | {f'{n} processes': _Command(arguments, (n, 1, 1), n) for n in (2, 4)}


def _each_step(arguments: tuple[str, ...], reference: pathlib.Path) -> _Runs:
  """Yields runs whose every step starts from the reference's checkpoint before it."""
  last = _steps(reference)

  def apart(command: _Command) -> Callable[[pathlib.Path], None]:
    def run(workdir: pathlib.Path) -> None:
      shutil.copytree(reference, workdir)
      for file in ('metrics.jsonl', 'transcripts.jsonl'):
        (workdir / file).unlink()
      for step in range(last):
        one = workdir / f'from_{step}'
        shutil.copytree(reference, one)
        for saved in (one / 'checkpoints').iterdir():
          if int(saved.name) > step:
            shutil.rmtree(saved)
        command.run(one)
        for file in ('metrics.jsonl', 'transcripts.jsonl'):
          with open(workdir / file, 'a', encoding='utf-8') as out:
            for record in json_lines.iterate(one / file):
              if record['step'] == step + 1 and record.get('label', 'train') == 'train':
                out.write(json.dumps(record) + '\n')

    return run

  for name, command in _commands(arguments).items():
    yield name, apart(command)


def _runs(arguments: tuple[str, ...], reference: pathlib.Path) -> _Runs:
  """Yields runs from the first step on; `reference` is not used."""
  commands = _commands(arguments)
  for name, command in commands.items():
    yield name, command.run
  two = commands['2 processes']

  def killed(workdir: pathlib.Path) -> None:
    started = two.start(workdir, '--config.checkpoint.every=1')
    while not _steps(workdir):
      time.sleep(0.1)
    started[1].send_signal(signal.SIGKILL)
    for process in started:
      process.communicate()
    two.run(workdir, '--config.checkpoint.every=1')

  yield '2 processes, one killed', killed

  def goes_on(other: _Command) -> Callable[[pathlib.Path], None]:
    def run(workdir: pathlib.Path) -> None:
      eight = commands['8 devices, 2x2x2']
      started = eight.start(workdir, '--config.checkpoint.every=1')[0]
      while _steps(workdir) < _STOPPED_AFTER:
        time.sleep(0.05)
      started.send_signal(signal.SIGTERM)
      started.communicate()
      other.run(workdir, '--config.checkpoint.every=1')

    return run

  for name, other in (
    ('1 device', _Command(arguments)),
    ('4 devices', _Command(arguments, (2, 2, 1))),
    ('2 processes', two),
  ):
    yield f'8 devices, then {name}', goes_on(other)


def _steps(workdir: pathlib.Path) -> int:
  """Returns the number of steps that a run has logged so far."""
  file = workdir / 'metrics.jsonl'
  return len(file.read_bytes().splitlines()) if file.exists() else 0


def _difference(workdir: pathlib.Path, reference: pathlib.Path) -> dict[str, Any]:
  """Returns the largest difference of an objective, and counts differing messages by text."""
  objectives, messages = [], []
  for of in (workdir, reference):
    objectives.append([m['policy/objective'] for m in json_lines.iterate(of / 'metrics.jsonl')])
    talks = (t for t in json_lines.iterate(of / 'transcripts.jsonl') if t['label'] == 'train')
    messages.append([message['text'] for talk in talks for message in talk['messages']])
  differences = [abs(one - other) for one, other in zip(*objectives, strict=True)]
  unlike = [step for step, difference in enumerate(differences) if difference > _ALIKE]
  return {
    'objective': max(differences),
    'steps_alike': unlike[0] if unlike else len(differences),
    'other_tokens': sum(one != other for one, other in zip(*messages, strict=True)),
    'messages': len(messages[0]),
  }


def _free_port() -> int:
  with socket.socket() as some:
    some.bind(('127.0.0.1', 0))
    return some.getsockname()[1]


if __name__ == '__main__':
  main()
