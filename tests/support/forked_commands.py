"""Runs commands of launch/ that end early, many in one process: the imports are paid once.

`python forked_commands.py` reads a JSON list of argument lists, the first of each naming the
command, and writes a list of `[exit status, stdout, stderr]`. A command may have a signal for
itself, see `_arm`: "train@POINT@CALLS@NUMBER". Each run writes the rollouts that it resumes with
into files `held_*` of its workdir; layers of rollouts ahead take `LAYER_SECONDS` more.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import pathlib
import runpy
import sys
import tempfile
import threading
import time

# A script finds what lies beside it, not the package above.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import micro_run

import agent_gspo.training.loop  # noqa: F401 (what a command would import)
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding import hosts
from agent_gspo.training.ahead import Ahead

_queues: list[Ahead] = []


def _watch(workdir: pathlib.Path) -> None:
  """Records each queue, and writes the rollouts that it resumes with."""
  init = Ahead.__init__

  def watched_init(self, setup, saved: bytes) -> None:
    init(self, setup, saved)
    _queues.append(self)
    if saved and hosts.is_first():
      (workdir / f'held_{len([*workdir.glob("held_*")])}').write_bytes(saved)

  Ahead.__init__ = watched_init  # type: ignore[method-assign]
  sample, pause = Sampler.__call__, float(os.environ.get('LAYER_SECONDS', '0'))

  def slow(*arguments, **options):
    if threading.current_thread() is not threading.main_thread():
      time.sleep(pause)
    return sample(*arguments, **options)

  Sampler.__call__ = slow  # type: ignore[method-assign]


def _arm(point: str, calls: int, number: int) -> None:
  """Makes this process send itself a signal at call number `calls` of a function (module:path).

  Counts only calls while a rollout of a later step is queued, in flight or finished.
  """
  module, path = point.split(':')
  *owners, name = path.split('.')
  owner = functools.reduce(getattr, owners, importlib.import_module(module))
  real, left = getattr(owner, name), [None] * calls

  def watched(*arguments, **options):
    waiting = [begun.step for queue in _queues for begun in list(queue._begun)[1:]]
    if waiting and left:
      left.pop()
      if not left:
        os.write(2, f'waiting at {path}: {waiting}\n'.encode())
        os.kill(os.getpid(), number)
    return real(*arguments, **options)

  setattr(owner, name, watched)


def main() -> None:
  results, commands = [], json.load(sys.stdin)
  if any('@' in name for name, *_ in commands):
    importlib.import_module('agent_gspo.workdir.event_file')  # of runs alone: seconds
  gc.freeze()  # children would walk all that is imported as they end: a third of a second each
  for name, *arguments in commands:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
      child = os.fork()
      if not child:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        name, *signal = name.split('@')
        given = dict(x.split('=', 1) for x in arguments if x.startswith('--workdir='))
        if '--workdir' in given:
          _watch(pathlib.Path(given['--workdir']))
        if signal:
          _arm(signal[0], *map(int, signal[1:]))
        file = str(micro_run.ROOT / 'launch' / f'{name}.py')
        sys.argv = [file, *arguments]
        runpy.run_path(file, run_name='__main__')
        os._exit(0)  # commands exit by themselves
      _, status = os.waitpid(child, 0)
      texts = []
      for file in (out, err):
        file.seek(0)
        texts.append(file.read().decode())
      results.append([os.waitstatus_to_exitcode(status), *texts])
  json.dump(results, sys.stdout)


if __name__ == '__main__':
  main()
