"""Measures parity, speed and memory on the accelerator of this machine, in ten minutes.

    python benchmarks/on_device.py --out=benchmarks/results/on_device.json
    python benchmarks/on_device.py --parts=update,decode --minutes=4

Parts, in the order in which they are named:
  parity      attention and LM head against float32 definitions: outputs and gradients
  update      milliseconds, tokens per second and MFU of an optimizer step
  decode      tokens per second, and share of the bandwidth used to read weights and cache
  memory      peak memory of those updates and decodes against `training/plan.py`
  scoring     the worth scoring pass of `training/answer_values.py` against the rest of its step
  quickstart  the curve of configs/quickstart.py in bfloat16
Each case runs in its own process, so that its peak memory is separate and a crash ends no other.
Results are printed and written to the file as they come, and the table at the end. A case stopped
at the time limit counts as skipped, not failed. Without an accelerator shapes are small, and
quickstart runs only if it is named.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import common

Figures = dict[str, Any]

_CASES = common.ROOT / 'benchmarks' / 'device_cases.py'
_RESULT = 'RESULT '  # as in device_cases.py, which imports JAX
_PARTS = ('parity', 'update', 'decode', 'memory', 'scoring', 'quickstart')


def run(command: Sequence[str], seconds: float, keep: Callable[[Figures], None]) -> str:
  """Runs a case to its end.

  Args:
    command: Command of the case.
    seconds: Timeout after which it is killed, with all processes that it started.
    keep: Callback for the figures that it prints.

  Returns:
    Its state: 'ok', 'skipped: <reason>', or 'failed: <exit status>' and its last lines.
  """
  process = subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
  )
  late = threading.Event()

  def end() -> None:
    late.set()
    os.killpg(process.pid, signal.SIGKILL)

  timer = threading.Timer(max(seconds, 0.1), end)
  timer.start()
  last, state = collections.deque(maxlen=15), 'ok'
  assert process.stdout is not None
  try:
    for line in process.stdout:
      _, told, figures = line.partition(_RESULT)  # possibly after progress output
      if not told:
        print(line, end='', flush=True)
        last.append(line)
      elif 'skipped' in (figures := json.loads(figures)):
        state = f'skipped: {figures["skipped"]}'
      else:
        keep(figures)
    code = process.wait()
  finally:
    timer.cancel()
    if process.poll() is None:  # interrupted
      os.killpg(process.pid, signal.SIGKILL)
  if late.is_set():
    return f'skipped: out of time after {seconds:.0f} s'
  return f'failed: exit status {code}\n{"".join(last)}' if code else state


def main() -> int:
  """Runs the benchmark; returns the exit status."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--parts', help=f'comma between them; by default {",".join(_PARTS)}')
  parser.add_argument('--out', type=pathlib.Path, default=common.RESULTS / 'on_device.json')
  parser.add_argument('--minutes', type=float, default=10.0, help='after which it ends')
  parser.add_argument('--steps', type=int, default=12, help='of the quickstart')
  parser.add_argument('--attention', default='auto', help='model.attention of all but parity')
  options = parser.parse_args()
  parts = options.parts.split(',') if options.parts else list(_PARTS)
  if unknown := set(parts) - set(_PARTS):
    parser.error(f'--parts={options.parts}: {", ".join(unknown)} must be of {", ".join(_PARTS)}')
  ends = time.monotonic() + 60 * options.minutes
  found: dict[str, Any] = {'machine': {}, 'states': {}, 'results': {}}

  def keep(figures: Figures) -> None:
    part = figures.pop('part')
    if part == 'machine':
      found['machine'] = figures
    elif part in parts:
      figures = _with_shares(figures, found['machine'])
      found['results'].setdefault(part, []).append(figures)
    print(part, json.dumps(figures), flush=True)
    write()

  def write() -> None:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + '\n', encoding='utf-8')

  def run_case(case: str) -> None:
    start = time.monotonic()
    state = run([sys.executable, str(_CASES), case], ends - start, keep)
    found['states'][case] = {'state': state, 'seconds': round(time.monotonic() - start, 1)}
    print(f'{case}: {state} ({time.monotonic() - start:.0f} s)', flush=True)
    write()

  run_case('machine')
  platform = found['machine'].get('platform')
  if platform == 'cpu':
    print('no accelerator was found: small shapes, on the CPU', flush=True)
    if not options.parts:
      parts.remove('quickstart')
  for case in _cases(parts, found['machine'], options.steps, options.attention):
    run_case(case)
  if 'memory' in parts and 'memory' not in found['results']:
    found['states']['memory'] = {'state': 'skipped: nothing was told', 'seconds': 0.0}
  write()
  print(_summary(found))
  print(f'wrote {options.out}' + '; no accelerator was found' * (platform == 'cpu'))
  return int(any(x['state'].startswith('failed') for x in found['states'].values()))


def _cases(parts: Sequence[str], machine: Figures, steps: int, attention: str) -> list[str]:
  """Returns the cases of the parts, in their order; none for an unknown machine."""
  programs = {'update', 'decode'} & set(parts) or {'update', 'decode'}
  first = {'quickstart': (steps,), 'scoring': (machine.get('platform'),)}
  first |= dict.fromkeys(programs, machine.get('models', ()))
  cases: list[str] = []
  for part in parts if machine else ():
    if part == 'parity':
      cases.append(part)
    for name in sorted(programs) if part == 'memory' else (part,):  # memory: of what runs anyway
      cases += [f'{name}:{argument}:{attention}' for argument in first.get(name, ())]
  return list(dict.fromkeys(cases))


def _summary(found: Figures) -> str:
  """Returns the results as markdown tables, the machine and the states of the cases."""
  lines = []
  for part, results in found['results'].items():
    head = list(dict.fromkeys(key for figures in results for key in figures))
    rows = [[_told(figures.get(key, '')) for key in head] for figures in results]
    lines.append(f'\n{part}\n{common.table(head, rows)}')
  lines.append(f'\n{json.dumps(found["machine"])}')
  for case, of_case in found['states'].items():
    lines.append(f'{case}: {of_case["state"].splitlines()[0]} ({of_case["seconds"]:.0f} s)')
  return '\n'.join(lines)


def _with_shares(figures: Figures, machine: Figures) -> Figures:
  """Adds shares of the measured peak (products or copies) and of the datasheet's."""
  shares = {}
  for unit, peak, share in (('tflops', 'matmul', 'mfu'), ('gb_s', 'copy', 'of_bandwidth')):
    for kind, name in ((peak, share), ('datasheet', f'{share}_datasheet')):
      if unit in figures and f'{kind}_{unit}' in machine:
        shares[name] = figures[unit] / machine[f'{kind}_{unit}']
  return figures | shares


def _told(value: Any) -> str:
  if not isinstance(value, float):
    return str(value)
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.3g}'


if __name__ == '__main__':
  raise SystemExit(main())
