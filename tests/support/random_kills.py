"""Stops runs at random moments, and checks that resumed runs end as uninterrupted ones.

    python tests/support/random_kills.py --kills=30 --terms=10 --processes=1 --seed=0

The micro run is started in a folder of its own, and again whenever a signal has ended it, until it
is done; then the next one, until all signals are delivered. Moments are drawn uniformly over the
time that a whole run takes; with several processes the signal goes to one of them, drawn as well.
Each run must equal the uninterrupted one bit for bit (`run_comparison`). SIGTERM must end all
processes with status 130, unless it comes after the last evaluation or before the run has begun.
Several processes must all end; before the run has begun, when they may not have found each other,
this script ends them, as what starts them on several machines would.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# A script finds what lies beside it, not the package above.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import micro_run
import run_comparison
import several_processes

from agent_gspo.workdir import step_folders

_OPTIONS = ('--config.checkpoint.every=3', '--config.checkpoint.keep_best=1')
_LONGEST_SECONDS = 280  # for processes to end, or a run to be done
_ENDED = 'curves and transcripts:'  # the last that a run says


def _start(workdir: pathlib.Path, processes: int) -> list[subprocess.Popen]:
  log = workdir.with_suffix('.log').open('ab')
  if processes > 1:
    return several_processes.start(workdir, processes, 1, output=log)
  return [
    subprocess.Popen(
      micro_run.train_command(workdir, *_OPTIONS),
      env=micro_run.environment(),
      cwd=micro_run.folder(),
      stdout=log,
      stderr=subprocess.STDOUT,
    )
  ]


def _statuses(started: list[subprocess.Popen]) -> list[int]:
  """Returns the exit statuses of all processes; raises if one does not end."""
  until = time.monotonic() + _LONGEST_SECONDS
  try:
    return [process.wait(max(until - time.monotonic(), 0.1)) for process in started]
  finally:
    for process in started:
      if process.poll() is None:
        process.kill()


def _phase(workdir: pathlib.Path) -> str:
  """Returns the progress of a run, by its files."""
  count = lambda name: (
    (workdir / name).read_bytes().count(b'\n') if (workdir / name).exists() else 0
  )
  folder = workdir / 'checkpoints'
  there = [path.name for path in folder.iterdir()] if folder.exists() else []
  saving = ', saving' if any(name.startswith('unfinished') for name in there) else ''
  if not step_folders.steps(folder) and not count('metrics.jsonl'):
    return f'before the first checkpoint{saving}'
  return f'{count("metrics.jsonl")} steps, {count("eval.jsonl")} evaluations{saving}'


def _is_right(number: int, victim: int, statuses: list[int], late: bool, ended: bool) -> bool:
  """Returns whether the exit statuses are valid after a signal during a run."""
  if number == signal.SIGKILL:
    return statuses[victim] == -signal.SIGKILL
  too_late = {0, -signal.SIGTERM} if ended else {0}
  return all(status == 130 for status in statuses) or (late and set(statuses) <= too_late)


class Trial:
  """Interrupts runs, one folder after another.

  Attributes:
    delivered: Number of signals by name.
    problems: Descriptions of failures, one line each.
  """

  def __init__(self, folder: pathlib.Path, processes: int, seed: int):
    self.folder, self.processes = folder, processes
    self.random = random.Random(seed)
    self.delivered: collections.Counter[str] = collections.Counter()
    self.problems: list[str] = []
    self.runs = 0
    self._say = lambda text: print(text, flush=True)
    for name in ('compile', 'reference'):  # the first one compiles
      start = time.monotonic()
      self._finish(folder / name)
      self.seconds = time.monotonic() - start
    self.reference = folder / 'reference'
    self.steps = run_comparison.saved(self.reference)[0]
    self._say(f'a whole run of {processes} process(es): {self.steps} steps, {self.seconds:.1f} s')

  def go(self, signals: list[signal.Signals]) -> None:
    """Delivers the signals in this order, over as many runs as needed."""
    left = list(signals)
    while left and not self.problems:
      workdir = self.folder / f'run{self.runs}'
      while left and not self._interrupted(workdir, left):
        pass
      self._finish(workdir)
      self._compare(workdir)
      shutil.rmtree(workdir, ignore_errors=True)
      self.runs += 1

  def _interrupted(self, workdir: pathlib.Path, left: list[signal.Signals]) -> bool:
    """Starts a run and sends it the next signal; returns whether the run is done."""
    number, moment = left[0], self.random.uniform(0, self.seconds)
    victim = self.random.randrange(self.processes)
    said = len(_text(workdir))
    fresh, start = not workdir.exists(), time.monotonic()
    started = _start(workdir, self.processes)
    while time.monotonic() < start + moment and any(p.poll() is None for p in started):
      time.sleep(0.01)
    if started[victim].poll() is not None:  # it was faster: the signal is for the next one
      done = all(status == 0 for status in _statuses(started))
      if fresh and done:  # nor does a whole run take longer now, whatever else the machine does
        self.seconds = time.monotonic() - start
      return done
    begun = len(_text(workdir)) > said
    phase = _phase(workdir) if begun else 'starting'
    started[victim].send_signal(number)
    late = _phase(workdir).startswith(_phase(self.reference))
    if not begun:
      time.sleep(0.5)
      for process in started:
        if process.poll() is None and self.processes > 1:
          process.kill()
    sent = time.monotonic()
    try:
      statuses = _statuses(started)
    except subprocess.TimeoutExpired:
      self.problems.append(f'{workdir}: not all processes have ended after {number.name}')
      statuses = [process.wait() for process in started]
    if number == signal.SIGKILL and not any(statuses):
      return True  # they had all ended between two looks
    left[:] = left[1:]
    self.delivered[number.name] += 1
    ended = _ENDED in _text(workdir)[said:]
    to = f' to process {victim}' if self.processes > 1 else ''
    self._say(
      f'{sum(self.delivered.values())}: {number.name}{to} at {moment:.2f} s ({phase}): exit status '
      f'{", ".join(map(str, statuses))} after {time.monotonic() - sent:.1f} s'
    )
    if begun and not _is_right(number, victim, statuses, late, ended):
      self.problems.append(f'{workdir}: {number.name} ended with {statuses}')
    return all(status == 0 for status in statuses)

  def _finish(self, workdir: pathlib.Path) -> None:
    statuses = _statuses(_start(workdir, self.processes))
    if any(statuses):
      self.problems.append(f'{workdir}: ended with {statuses}: {_text(workdir)[-2000:]}')

  def _compare(self, workdir: pathlib.Path) -> None:
    try:
      run_comparison.assert_same_run(workdir, self.reference, self.steps)
    except Exception as error:
      kept = pathlib.Path(tempfile.mkdtemp(prefix='random_kills_'))
      shutil.copytree(workdir, kept / 'run')
      self.problems.append(f'{workdir} differs: {str(error)[:1000]}; kept in {kept}')


def _text(workdir: pathlib.Path) -> str:
  with contextlib.suppress(FileNotFoundError):
    return workdir.with_suffix('.log').read_text(errors='replace')
  return ''


def trial(kills: int, terms: int, processes: int, seed: int) -> Trial:
  """Delivers `kills` SIGKILLs and `terms` SIGTERMs; the caller checks `problems`."""
  with tempfile.TemporaryDirectory() as folder:
    os.environ.setdefault(micro_run.SESSION, folder)
    made = Trial(pathlib.Path(folder), processes, seed)
    signals = [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
    made.random.shuffle(signals)
    made.go(signals)
  return made


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--kills', type=int, default=30)
  parser.add_argument('--terms', type=int, default=10)
  parser.add_argument('--processes', type=int, default=1)
  parser.add_argument('--seed', type=int, default=0)
  logging.getLogger('absl').setLevel(logging.ERROR)
  made = trial(**vars(parser.parse_args()))
  for problem in made.problems:
    print('PROBLEM', problem)
  told = ', '.join(f'{count} {name}' for name, count in sorted(made.delivered.items()))
  equal = f'{len(made.problems)} problems' if made.problems else 'all equal bit for bit'
  print(f'{told} to {made.runs} runs of {made.processes} process(es): {equal}')
  raise SystemExit(bool(made.problems))


if __name__ == '__main__':
  main()
