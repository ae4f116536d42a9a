"""Provides what benchmarks share: training runs, the machine, tables and results."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'benchmarks' / 'results'


def train(config: pathlib.Path, workdir: pathlib.Path, overrides: Iterable[str]) -> None:
  """Runs `launch/train.py` to its end, in a process of its own.

  Args:
    config: File of the config.
    workdir: Workdir of the run.
    overrides: `--config.<field>=<value>`; the last one for a field counts.

  Raises:
    SystemExit: The run failed; its output has the reason.
  """
  command = [sys.executable, str(ROOT / 'launch' / 'train.py'), f'--config={config}']
  done = subprocess.run([*command, f'--workdir={workdir}', *overrides], check=False)
  if done.returncode:
    raise SystemExit(done.returncode)


def check_overrides(arguments: Sequence[str]) -> list[str]:
  """Returns the arguments that a benchmark does not define, if all of them set config fields.

  Raises:
    SystemExit: One does not.
  """
  for argument in arguments:
    if not argument.startswith('--config.') or '=' not in argument:
      raise SystemExit(f'unknown argument {argument!r}; fields are set by --config.<field>=<value>')
  return list(arguments)


def machine() -> dict[str, Any]:
  """Returns the devices, cores and versions of a measurement."""
  import jax  # here: it takes a second

  devices = jax.local_devices()
  kind = _processor() if devices[0].platform == 'cpu' else devices[0].device_kind
  return {
    'device': f'{len(devices)} x {kind}',
    'cores': os.cpu_count(),
    'python': platform.python_version(),
    'jax': jax.__version__,
  }


def _processor() -> str:
  """Returns the name of the processor, if the system reports it, else of the architecture."""
  try:
    for line in pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines():
      if line.startswith('model name'):
        return line.partition(':')[2].strip()
  except OSError:
    pass
  return platform.processor() or platform.machine()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Returns a Markdown table; all columns but the first are aligned to the right."""
  lines = [header, ['---', *['---:'] * (len(header) - 1)], *rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def save(name: str, figures: Mapping[str, Any]) -> pathlib.Path:
  """Writes figures to `benchmarks/results/<name>.json`."""
  RESULTS.mkdir(parents=True, exist_ok=True)
  file = RESULTS / f'{name}.json'
  file.write_text(json.dumps(figures, indent=2) + '\n', encoding='utf-8')
  return file
