"""Tables of TPU programs: each cell is compiled in a process of its own and kept in a file."""

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
"""What `tpu_compile.py` says of a program; `error` alone where it does not fit."""


def compile_missing(
  cells: Mapping[str, Sequence[str]], file: pathlib.Path, jobs: int, keep: Callable[[Told], Told]
) -> dict[str, Told]:
  """What the file holds, and of `cells` what it lacked; a run goes on where it was stopped.

  Args:
    cells: arguments of `tpu_compile.py` by name.
    file: of results by name, written after each.
    jobs: compiled at a time, each takes a core; 0 compiles nothing.
    keep: of what is told, what the file holds.
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
