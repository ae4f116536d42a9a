"""Compiles the cells of a table of TPU programs, each in its own process, and stores results."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import common

Told = dict[str, Any]
"""Output of `tpu_compile.py` for a program; `error` if it does not fit."""


def compile_missing(
  cells: Mapping[str, Sequence[str]], file: pathlib.Path, jobs: int, keep: Callable[[Told], Told]
) -> dict[str, Told]:
  """Compiles the `cells` missing in a file and returns all results; resumes a stopped run.

  Args:
    cells: Arguments of `tpu_compile.py` by name.
    file: File of results by name, written after each.
    jobs: Cells compiled at a time, each on one core; 0 compiles nothing.
    keep: Maps the output of `tpu_compile.py` to the stored result.
  """
  found = json.loads(file.read_text()) if file.exists() else {}
  lock = threading.Lock()

  def compile_one(name: str) -> None:
    result = keep(_compiled(cells[name]))
    with lock:
      found[name] = result
      file.write_text(json.dumps(dict(sorted(found.items())), indent=1) + '\n')
    print(f'{name}: {result}', file=sys.stderr, flush=True)

  if jobs:
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
      list(pool.map(compile_one, [name for name in cells if name not in found]))
  return found


def _compiled(arguments: Sequence[str]) -> Told:
  with tempfile.NamedTemporaryFile('r', suffix='.json') as file:
    script = common.ROOT / 'benchmarks' / 'tpu_compile.py'
    command = [sys.executable, str(script), *arguments, f'--json={file.name}']
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = json.loads(file.read() or '{}')
  if not told:
    raise SystemExit(f'{" ".join(arguments)} failed:\n{done.stderr[-2000:]}')
  return told
