"""Compares the compiler's memory of updates and decodes on TPU slices with the plan's.

    pip install ".[tpu]"
    python benchmarks/tpu_fit.py --jobs=2                    # all cells not done yet: hours
    python benchmarks/tpu_fit.py --models=qwen2.5-0.5b:0 --slices=v5e-8 --programs=update
    python benchmarks/tpu_fit.py --table                     # of what is done, compiles nothing

A cell is a model, a slice, a program and a row length; each is compiled by `tpu_compile.py` in a
process of its own and stored in benchmarks/results/tpu_fit.json, so a stopped run resumes.
Models up to 0.5B use data parallelism (`data`), larger ones FSDP (`fsdp`). A device has 4096
positions of a micro-batch, or 32 messages of 1024 columns (8 of 4096). A decode all-gathers weights
once if that fits by the plan, as a run does (`sampler.gather_weights`), else for each token.

Compared is the memory of a device during the program: arguments, results and temporaries, and the
moments, which the update does not touch.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import re
import sys
from typing import Any

os.environ |= {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_force_host_platform_device_count=16'}
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import numpy as np
from jax.sharding import Mesh

from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding.placement import AXES, Placement
from agent_gspo.training import plan
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from benchmarks import common, tpu_cells
from benchmarks.model_shapes import MODELS

RESULTS = common.ROOT / 'benchmarks' / 'results' / 'tpu_fit.json'
SLICES = {  # as Google names them -> topology, chips, usable HBM of a chip in GiB
  'v5e-8': ('v5e:2x4', 8, 15.75),
  'v5e-16': ('v5e:4x4', 16, 15.75),
  'v5p-8': ('v5p:2x2x1', 4, 95.0),
  'v5p-32': ('v5p:2x2x4', 16, 95.0),
  'v6e-8': ('v6e:2x4', 8, 31.25),
}

VARIANTS = (
  ('smollm2-135m', 0),
  ('qwen2.5-0.5b', 0),
  ('qwen2.5-1.5b', 0),
  ('qwen2.5-7b', 0),
  ('qwen2.5-7b', 16),
  ('qwen2.5-32b', 16),
  ('qwen3-30b-a3b', 16),
  ('gemma3-1b', 0),
  ('gemma3-4b', 16),
)  # model, rank of its adapters
_POSITIONS, _NEW_TOKENS = 4096, 128


@dataclasses.dataclass(frozen=True)
class Cell:
  """One program of one model on one slice."""

  program: str
  slice: str
  model: str
  lora_rank: int
  length: int

  @property
  def name(self) -> str:
    return ' '.join(map(str, dataclasses.astuple(self)))

  @property
  def axis(self) -> str:
    return 'data' if self.model in ('smollm2-135m', 'qwen2.5-0.5b') else 'fsdp'

  @property
  def rows(self) -> int:
    """Returns the rows of a device."""
    return (8 if self.program == 'decode' else 1) * _POSITIONS // self.length

  def arguments(self) -> list[str]:
    topology, chips, _ = SLICES[self.slice]
    sizes = {axis: chips if axis == self.axis else 1 for axis in AXES}
    return [
      f'--program={self.program}',
      f'--topology={topology}',
      f'--mesh={",".join(f"{axis}={size}" for axis, size in sizes.items())}',
      f'--model={self.model}',
      f'--lora_rank={self.lora_rank}',
      f'--rows={self.rows * chips}',
      f'--row_tokens={self.length}',
      f'--columns={self.length}',
      f'--new_tokens={_NEW_TOKENS}',
      *['--gather_each_token'] * self.gathers_each_token,
    ]

  @property
  def gathers_each_token(self) -> bool:
    if self.program != 'decode' or self.axis != 'fsdp':
      return False
    planned, _ = _planned(self, gather_once=True)
    return planned > SLICES[self.slice][2] * 2**30


def main() -> None:
  """Runs the command."""
  options = _options()
  cells = [
    Cell(program, slice_, model, rank, length)
    for program in options.programs
    for length in options.lengths
    for slice_ in options.slices
    for model, rank in VARIANTS
    if f'{model}:{rank}' in options.models
  ]
  jobs = 0 if options.table else options.jobs
  arguments = {cell.name: cell.arguments() for cell in cells}
  found = tpu_cells.compile_missing(arguments, RESULTS, jobs, _held)
  _print_table([cell for cell in cells if cell.name in found], found)


def _options() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  names = [f'{model}:{rank}' for model, rank in VARIANTS]
  parser.add_argument('--programs', nargs='+', default=('update', 'decode'))
  parser.add_argument('--slices', nargs='+', choices=SLICES, default=tuple(SLICES))
  parser.add_argument('--models', nargs='+', choices=names, default=names, help='name:lora_rank')
  parser.add_argument('--lengths', nargs='+', type=int, default=(1024, 4096))
  parser.add_argument('--jobs', type=int, default=1, help='compiled at a time; each takes a core')
  parser.add_argument('--table', action='store_true', help='compile nothing')
  return parser.parse_args()


def _held(told: tpu_cells.Told) -> tpu_cells.Told:
  """Returns the stored result: bytes on a device, or the error if it does not fit."""
  if 'error' in told:
    return {'error': told['error'], 'compile_s': told['compile_s']}
  return {
    'temporaries_bytes': told['temporaries_bytes'],
    'others_bytes': told['arguments_bytes'] + told['outputs_bytes'] - told['aliased_bytes'],
    'estimate_s': told.get('estimate_s'),
    'compile_s': told['compile_s'],
  }


def _planned(cell: Cell, *, gather_once: bool) -> tuple[int, int]:
  """Returns the bytes on a device by the plan, and those of the moments."""
  _, chips, _ = SLICES[cell.slice]
  shape = [chips if axis == cell.axis else 1 for axis in AXES]
  placement = Placement(Mesh(np.asarray(jax.devices()[:chips]).reshape(shape), AXES))
  model = MODELS[cell.model].replace(dtype='bfloat16', remat=True, lora_rank=cell.lora_rank)
  optimizer = state_lib.make_optimizer(LearnerOptions(), updates=1)
  state = plan.state_bytes(model, placement, optimizer)
  if cell.program == 'update':
    update, _ = plan.learner_programs(model, placement, state, rows=cell.rows, length=cell.length)
    return sum(state.values()) + update.bytes, state['moments']
  sampler = Sampler(model, max_new_tokens=_NEW_TOKENS, gather_once=gather_once, placement=placement)
  columns = cell.length - _NEW_TOKENS
  _, writing = plan.rollout_programs(
    sampler, width=columns, rows=1, columns=columns, messages=cell.rows
  )
  writing = dataclasses.replace(writing, arrays={'cache': writing.arrays['cache']})
  return sum(state.values()) + writing.bytes, state['moments']


def _print_table(cells: list[Cell], found: dict[str, Any]) -> None:
  print('| program | rows of | slice | model | compiler, GiB per device | plan | plan / compiler |')
  print('| --- | ---: | --- | --- | ---: | ---: | ---: |')
  worst = 0.0
  for cell in cells:
    each_token = cell.gathers_each_token
    result, (planned, moments) = found[cell.name], _planned(cell, gather_once=not each_token)
    name = f'{cell.model}, LoRA' if cell.lora_rank else cell.model
    program = cell.program + ', gathering each token' * each_token
    head = f'| {program} | {cell.length} | {cell.slice} | {name} |'
    if 'error' in result:
      needed = re.search(r'temporaries \(([\d.]+)G\)', result['error'])
      told = f'does not fit ({needed[1]} of temporaries)' if needed else result['error']
      print(f'{head} {told} | {planned / 2**30:.2f} | |')
      continue
    held = result['temporaries_bytes'] + result['others_bytes'] + moments
    fits = '' if held <= SLICES[cell.slice][2] * 2**30 else ' (too much, with the moments)'
    worst = max(worst, abs(math.log(planned / held)))
    print(f'{head} {held / 2**30:.2f}{fits} | {planned / 2**30:.2f} | {planned / held:.2f} |')
  print(f'plan and compiler differ by {math.exp(worst) - 1:.0%} at most')


if __name__ == '__main__':
  main()
