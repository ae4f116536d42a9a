"""Compares the seconds of a training step here, in TRL and in Tunix, on the same work.

    python -m venv VENVS/trl && VENVS/trl/bin/pip install trl==1.16.0 torch datasets transformers
    python -m venv VENVS/tunix && VENVS/tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2
    python benchmarks/peer_speed.py --peers=trl,tunix --venvs=VENVS --shape=small --repeats=3

The work is peers/work.py. Each library runs its own public trainer in its own environment and
process; the processes alternate, all on one core (--core=-1: on all). A ratio above 1 means that
we are faster: medians of processor seconds on one core, which other load hardly changes, else of
wall seconds. The time from the start of a process to the end of its first step, and its peak
memory, have two figures: of the first process, which compiles, and of the others, which read
compiled programs from JAX's cache on disk (PyTorch compiles nothing here). Prints a markdown table
and writes benchmarks/results/peer_speed_SHAPE.json (of all cores:
peer_speed_SHAPE_all_cores.json).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.peers import work

_OURS = 'agent_gspo'
_PHASES = ('rollout', 'update', 'step')
_STARTS = ('to_first_step_s', 'peak_mb')  # these depend on the compilation cache


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--peers', default='trl,tunix', help='comma between them')
  parser.add_argument('--venvs', type=pathlib.Path, required=True, help='folder with one each')
  parser.add_argument('--shape', choices=work.SHAPES, default='small')
  parser.add_argument('--steps', type=int, default=5)
  parser.add_argument('--warmup', type=int, default=2)
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--core', type=int, default=0)
  options = parser.parse_args()
  if options.repeats < 2:
    raise SystemExit(f'--repeats={options.repeats}: a first start and a later one take two.')
  pythons = {name: options.venvs / name / 'bin' / 'python' for name in options.peers.split(',')}
  for name, python in pythons.items():
    if not python.is_file():
      raise SystemExit(f'--venvs={options.venvs}: there is no {name}/bin/python; see --help.')
  pythons = {_OURS: pathlib.Path(sys.executable), **pythons}
  runs = {name: [] for name in pythons}
  with tempfile.TemporaryDirectory() as caches:
    for _ in range(options.repeats):
      for name, python in pythons.items():
        runs[name].append(_run(name, python, options, pathlib.Path(caches, name)))

  kind = 's' if options.core < 0 else 'cpu_s'
  rows, found = [], {}
  for name, of_name in runs.items():
    medians = {
      f'{phase}_{unit}': statistics.median(
        s[f'{phase}_{unit}'] for r in of_name for s in r['steps']
      )
      for phase in _PHASES
      for unit in ('s', 'cpu_s')
    }
    for key in _STARTS:
      cold, *warm = (run[key] for run in of_name)
      medians |= {f'{key}_cold': cold, f'{key}_warm': statistics.median(warm)}
    found[name] = {'versions': of_name[0]['versions'], **medians}
    ratios = [medians[f'{p}_{kind}'] / found[_OURS][f'{p}_{kind}'] for p in _PHASES]
    found[name] |= {f'{p}_ratio': ratio for p, ratio in zip(_PHASES, ratios, strict=True)}
    rows.append(
      (
        name,
        *(f'{medians[f"{p}_{kind}"]:.2f} ({r:.2f})' for p, r in zip(_PHASES, ratios, strict=True)),
        *(
          '{:.0f}, {:.0f}'.format(*(medians[f'{k}_{at}'] for at in ('cold', 'warm')))
          for k in _STARTS
        ),
      )
    )
  unit = 'wall' if options.core < 0 else 'processor'
  print(
    common.table(
      (
        f'{options.shape}, {unit} seconds (times ours)',
        *_PHASES,
        'to the first step, wall s: cold, warm',
        'peak memory, MB: cold, warm',
      ),
      rows,
    )
  )
  told = {k: v for k, v in vars(options).items() if k != 'venvs'}
  name = f'peer_speed_{options.shape}' + '_all_cores' * (options.core < 0)
  file = common.save(name, {**told, 'machine': common.machine(), 'medians': found})
  print(f'\nwrote {file.relative_to(common.ROOT)}')


def _run(name: str, python: pathlib.Path, options: argparse.Namespace, cache: pathlib.Path) -> dict:
  """Runs one process of a library with a compilation cache; returns its report."""
  script = pathlib.Path(__file__).resolve().parent / 'peers' / f'{name}_steps.py'
  command = [str(python), str(script), f'--shape={options.shape}', f'--steps={options.steps}']
  hold = None if options.core < 0 else lambda: os.sched_setaffinity(0, {options.core})
  settings = {'HF_HUB_OFFLINE': '1', 'TOKENIZERS_PARALLELISM': 'false', 'JAX_PLATFORMS': 'cpu'}
  settings |= {'JAX_COMPILATION_CACHE_DIR': str(cache)}
  settings |= {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
  began = time.time()
  done = subprocess.run(
    [*command, f'--warmup={options.warmup}'],
    env={**os.environ, **settings},
    preexec_fn=hold,
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    raise SystemExit(f'{name} ended with status {done.returncode}:\n{done.stderr[-3000:]}')
  found = json.loads(done.stdout.splitlines()[-1])
  found['to_first_step_s'] = found.pop('first_step_ended') - began
  middle = statistics.median(step['step_s'] for step in found['steps'])
  print(f'{name}: {middle:.2f} s per step', file=sys.stderr, flush=True)
  return found


if __name__ == '__main__':
  main()
