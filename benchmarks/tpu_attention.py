"""Measures HBM traffic and memory of compiled attention, forward and backward, without a TPU.

    pip install ".[tpu]"
    python benchmarks/tpu_attention.py

In bfloat16, for one layer on one chip; the minimum is inputs and outputs, each moved once.
"""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from agent_gspo.ops.attention import tpu
from agent_gspo.ops.attention.masks import TreeMask
from benchmarks import common, tpu_compiler
from benchmarks.hlo_text import Module

# Rows, columns, query heads, key heads, width of a head.
_SHAPES = ((8, 1024, 14, 2, 64), (2, 8192, 14, 2, 64), (2, 8192, 28, 4, 128))


def main() -> None:
  """Prints the table."""
  tpu_compiler.prepare()
  rows = []
  for shape in _SHAPES:
    for chip in tpu_compiler.HOSTS:
      traffic, needed, temporaries = compiled(chip, *shape)
      told = (f'{traffic / 1e6:.0f}', f'{needed / 1e6:.0f}', f'{traffic / needed:.2f}')
      name = '{} x {}, {} heads on {}, {} wide'.format(*shape)
      rows.append((name, chip, *told, f'{temporaries / 2**20:.1f}'))
  head = ('bfloat16', 'chip', 'HBM, MB', 'inputs and outputs, MB', 'ratio', 'temporaries, MiB')
  print(common.table(head, rows))


def compiled(
  chip: str,
  rows: int,
  columns: int,
  heads: int,
  kv_heads: int,
  width: int,
  window: int | None = None,
  cap: float | None = None,
) -> tuple[float, int, int]:
  """Returns HBM bytes moved, bytes of inputs and outputs of both passes, bytes of temporaries."""
  topology = topologies.get_topology_desc(platform='tpu', topology_name=tpu_compiler.HOSTS[chip])
  sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
  shape = lambda *sizes, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)
  q = shape(rows, kv_heads, heads // kv_heads, columns, width)
  k = v = shape(rows, kv_heads, columns, width)

  def both(q, k, v, subtree_end, positions, gradient):
    mask = TreeMask(subtree_end, positions, window)
    out, back = jax.vjp(lambda *of: tpu.attend(*of, mask, cap=cap), q, k, v)
    return out, back(gradient)

  numbers = shape(rows, columns, dtype=jnp.int32)
  program = jax.jit(both).lower(q, k, v, numbers, numbers, q).compile()
  large, small = (2 * rows * columns * width * n for n in (heads, kv_heads))
  # Forward q, k, v -> out; backward q, k, v, out and its gradient -> three gradients.
  needed = (2 * large + 2 * small) + (4 * large + 4 * small)
  traffic = Module(program.as_text()).hbm_bytes()
  return traffic, needed, program.memory_analysis().temp_size_in_bytes


if __name__ == '__main__':
  main()
