"""Runs one `math_worker` process: started upon use, replaced when it ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Mapping

_WORKER = pathlib.Path(__file__).with_name('math_worker.py')

_lock = threading.Lock()
_process: subprocess.Popen[str] | None = None
_owner = 0  # A fork must not write into its parent's pipe.


def ask(request: Mapping[str, object]) -> bool | str | None:
  """Returns the worker's reply to a request; None also if it ran out of time or memory.

  Thread-safe by a lock, and safe in forked processes, which start their own worker.

  Raises:
    RuntimeError: if the worker cannot be started.
  """
  with _lock:
    try:
      line = _reply(_running(), json.dumps(request))
    except BaseException:  # upon an interrupt, the pending reply must not answer the next request
      _stop()
      raise
    if line:
      return json.loads(line)
    _stop()
    return None


def _reply(process: subprocess.Popen[str], line: str) -> str:
  """Sends a line and returns the worker's reply, '' if it has ended."""
  assert process.stdin is not None
  assert process.stdout is not None
  with contextlib.suppress(BrokenPipeError):
    process.stdin.write(line + '\n')
    process.stdin.flush()
    return process.stdout.readline()
  return ''


def _running() -> subprocess.Popen[str]:
  global _process, _owner
  if _process is None or _owner != os.getpid():
    _process = subprocess.Popen(
      # -P: keeps the worker's folder off its import path.
      [sys.executable, '-P', str(_WORKER)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      encoding='utf-8',
    )
    _owner = os.getpid()
    if not _reply(_process, '{"expression": "1"}'):
      raise RuntimeError(
        'the grader of mathematical expressions did not start (its error stands above); '
        "is math-verify installed? It comes with the extra `data`: pip install '.[data]'"
      )
  return _process


@atexit.register
def _stop() -> None:
  """Ends this process's worker; the next request starts another."""
  global _process
  if _process is not None and _owner == os.getpid():
    process, _process = _process, None
    process.kill()
    process.communicate()  # closes both pipes and waits
