"""Measures seconds per step and peak memory of a config.

    python benchmarks/quickstart_profile.py --config=configs/quickstart.py --steps=3

Trains for a few steps in a temporary folder, almost without evaluations. The first step compiles
and is reported separately. Fields of the config can be set: --config.rollout.group_size=4.
Prints a markdown table and writes benchmarks/results/profile_<config>.json.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.workdir import records
from benchmarks import common

_PHASES = ('rollout', 'score', 'update', 'step')
_NO_EVALUATION = (
  '--config.evaluation.questions=1',
  '--config.evaluation.every=0',
  '--config.checkpoint.every=1000000',
)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--config', type=pathlib.Path, required=True)
  parser.add_argument('--steps', type=int, default=3, help='at least 2')
  options, rest = parser.parse_known_args()
  if options.steps < 2:
    parser.error('--steps must be at least 2: the first one compiles')
  overrides = common.check_overrides(rest)
  with tempfile.TemporaryDirectory() as scratch:
    start = time.monotonic()
    workdir = pathlib.Path(scratch) / 'run'
    common.train(
      options.config, workdir, [*_NO_EVALUATION, *overrides, f'--config.steps={options.steps}']
    )
    seconds = time.monotonic() - start
    run = records.load_run(workdir)
  usage = resource.getrusage(resource.RUSAGE_CHILDREN)
  scale = 1 if sys.platform == 'darwin' else 1024
  figures = {
    'config': options.config.name,
    'overrides': overrides,
    'model': run.config['model_source'],
    'steps': options.steps,
    'machine': common.machine(),
    'command_s': seconds,
    'command_cpu_s': usage.ru_utime + usage.ru_stime,
    'process_peak_mb': usage.ru_maxrss * scale / 1e6,
    'device_peak_mb': max(m['memory/peak_mb'] for m in run.metrics),
    'first_step_s': {p: run.metrics[0][f'time/{p}_s'] for p in _PHASES},
    'later_steps_s': {
      p: statistics.mean(m[f'time/{p}_s'] for m in run.metrics[1:]) for p in _PHASES
    },
    'positions': statistics.mean(m['packing/positions'] for m in run.metrics[1:]),
    'unshared_positions': statistics.mean(m['packing/unshared_positions'] for m in run.metrics[1:]),
    'written_per_question': statistics.mean(
      m['tokens/written_per_question'] for m in run.metrics[1:]
    ),
  }
  print(_report(figures))
  file = common.save(f'profile_{options.config.stem}', figures)
  print(f'\nwrote {file.relative_to(common.ROOT)}')


def _report(figures: dict) -> str:
  first, later = figures['first_step_s'], figures['later_steps_s']
  where = figures['machine']
  seconds = common.table(
    ('seconds', 'first step, compiling', f'mean of the {figures["steps"] - 1} after it'),
    [(p if p != 'step' else 'whole step', f'{first[p]:.2f}', f'{later[p]:.2f}') for p in _PHASES],
  )
  others = common.table(
    (figures['config'], ''),
    [
      ('peak memory of the process, MB', f'{figures["process_peak_mb"]:.0f}'),
      ('peak memory by the training log, MB', f'{figures["device_peak_mb"]:.0f}'),
      ('positions of an update', f'{figures["positions"]:.0f}'),
      ('the same with a row a message', f'{figures["unshared_positions"]:.0f}'),
      ('tokens written per question', f'{figures["written_per_question"]:.1f}'),
      ('the whole command, seconds', f'{figures["command_s"]:.0f}'),
      ('its processor time, seconds', f'{figures["command_cpu_s"]:.0f}'),
    ],
  )
  machine = f'{figures["model"]}, {where["device"]}, {where["cores"]} cores, jax {where["jax"]}'
  return f'{machine}\n\n{seconds}\n\n{others}'


if __name__ == '__main__':
  main()
