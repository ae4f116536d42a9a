"""Tabulates the share of a TPU's peak in an update, and of its bandwidth in a decode.

    pip install ".[tpu]"
    python benchmarks/tpu_speed.py --jobs=2    # all cells not done yet, about half an hour
    python benchmarks/tpu_speed.py --table     # of what is done

Uses the compiler's estimates for one chip, without a TPU (`tpu_compile.py`), which also bounds the
time of attention kernels. Results: benchmarks/results/tpu_speed.json.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import common, tpu_cells, tpu_compiler

RESULTS = common.ROOT / 'benchmarks' / 'results' / 'tpu_speed.json'
_POSITIONS = {'qwen2.5-0.5b': 8192, 'qwen2.5-1.5b': 4096}  # of a micro-batch, that fit a v5e
_COLUMNS = 640


def _cells() -> dict[str, list[str]]:
  """Returns the arguments of `tpu_compile.py` by name of the cell."""
  found = {}
  for chip, topology in tpu_compiler.HOSTS.items():
    on = [f'--topology={topology}', '--mesh=data=1,fsdp=1,tensor=1']
    for model, positions in _POSITIONS.items():
      for length in (1024, 4096):
        found[f'update {chip} {model} {length}'] = [
          *('--program=update', *on, f'--model={model}'),
          *(f'--rows={positions // length}', f'--row_tokens={length}'),
        ]
  on = [f'--topology={tpu_compiler.HOSTS["v5e"]}', f'--columns={_COLUMNS}']
  for model, mesh in (
    ('qwen2.5-0.5b', 'data=1,fsdp=1,tensor=1'),
    ('qwen2.5-1.5b', 'data=1,fsdp=1,tensor=1'),
    ('qwen2.5-7b', 'data=1,fsdp=1,tensor=4'),  # a head of keys for each chip
  ):
    for rows in (64, 256):
      name = f'decode v5e {model} {rows}'
      found[name] = ['--program=decode', *on, f'--mesh={mesh}', f'--model={model}']
      found[name].append(f'--rows={rows}')
  return found


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--jobs', type=int, default=1, help='compiled at a time; each takes a core')
  parser.add_argument('--table', action='store_true', help='compile nothing')
  options = parser.parse_args()
  cells = _cells()
  jobs = 0 if options.table else options.jobs
  print(_table(cells, tpu_cells.compile_missing(cells, RESULTS, jobs, _kept)))


def _kept(told: tpu_cells.Told) -> tpu_cells.Told:
  keys = ('error', 'temporaries_bytes', 'useful_flops', 'compiled_flops', 'hbm_bytes')
  keys += ('estimate_s', 'kernels_s', 'once_s', 'share_of_peak', 'share_of_bandwidth', 'versions')
  return {key: told[key] for key in keys if key in told}


def _table(cells: dict[str, list[str]], found: dict[str, dict]) -> str:
  head = ('program, chip, model, rows', 'estimate, ms', 'kernels, ms', 'HBM, GB')
  rows = []
  for name in cells:
    if name not in found:
      continue
    told = found[name]
    if 'error' in told:
      rows.append((name, told['error'], '', '', ''))
      continue
    share = told.get('share_of_peak', told.get('share_of_bandwidth'))
    times = (f'{1000 * told[key]:.1f}' for key in ('estimate_s', 'kernels_s'))
    rows.append((name, *times, f'{told["hbm_bytes"] / 1e9:.1f}', f'{share:.0%}'))
  return common.table((*head, 'of peak, or of bandwidth'), rows)


if __name__ == '__main__':
  main()
