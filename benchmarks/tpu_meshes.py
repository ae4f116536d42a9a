"""Tabulates the collectives, memory and FLOPs of a device on each mesh.

    pip install ".[tpu]"
    python benchmarks/tpu_meshes.py --jobs=2    # all cells not done yet, about half an hour
    python benchmarks/tpu_meshes.py --table     # of what is done

The project's programs for Qwen2.5-0.5B, compiled for eight chips of a TPU v5e without one
(`tpu_compile.py`): an update with 8 rows of 1024 per device along data and fsdp, the optimizer's
step, and a decode of 64 messages per device. Results: benchmarks/results/tpu_meshes.json.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import common, tpu_cells, tpu_compiler

RESULTS = common.ROOT / 'benchmarks' / 'results' / 'tpu_meshes.json'
# The model has two key heads: with tensor=2 each device has one.
_MESHES = ((1, 1, 1), (4, 1, 1), (8, 1, 1), (1, 8, 1), (2, 4, 1), (4, 1, 2), (2, 2, 2), (1, 1, 8))
_ROWS = {'update': 8, 'decode': 64, 'optimizer': 8}  # per device along data and fsdp


def _cells() -> dict[str, list[str]]:
  """Returns the arguments of `tpu_compile.py` by name of the cell."""
  found = {}
  for program, rows in _ROWS.items():
    for data, fsdp, tensor in _MESHES:
      found[f'{program} {data}x{fsdp}x{tensor}'] = [
        f'--program={program}',
        f'--topology={tpu_compiler.HOSTS["v5e"]}',
        f'--mesh=data={data},fsdp={fsdp},tensor={tensor}',
        f'--rows={rows * data * fsdp}',
      ]
  return found


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--jobs', type=int, default=1, help='compiled at a time; each takes a core')
  parser.add_argument('--table', action='store_true', help='compile nothing')
  options = parser.parse_args()
  cells, jobs = _cells(), 0 if options.table else options.jobs
  found = tpu_cells.compile_missing(cells, RESULTS, jobs, _kept)
  head = ('program', 'mesh', 'arguments, GiB', 'temporaries, GiB', 'TFLOP', 'estimate, ms')
  rows = [(*name.split(), *_row(found[name])) for name in cells if name in found]
  print(common.table((*head, 'exchanged per device'), rows))
  copied = sum(told['rematerialized'] for told in found.values())
  print(f'\nthe partitioner warned of {copied} arrays copied to all devices')


def _kept(told: tpu_cells.Told) -> tpu_cells.Told:
  keys = ('error', 'arguments_bytes', 'temporaries_bytes', 'compiled_flops', 'estimate_s')
  keys += ('collectives', 'rematerialized', 'versions')
  return {key: told[key] for key in keys if key in told}


def _row(told: tpu_cells.Told) -> tuple[str, ...]:
  if 'error' in told:
    return told['error'], '', '', '', ''
  exchanged = [
    f'{of["count"]:.0f} {kind}s, {of["bytes"] / 1e6:,.1f} MB'
    for kind, of in sorted(told['collectives'].items())
  ]
  return (
    *(f'{told[key] / 2**30:.2f}' for key in ('arguments_bytes', 'temporaries_bytes')),
    f'{told["compiled_flops"] / 1e12:.2f}',
    f'{1000 * told["estimate_s"]:.1f}',
    '; '.join(exchanged) or 'nothing',
  )


if __name__ == '__main__':
  main()
