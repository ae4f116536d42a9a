"""Compiles the project's programs for TPUs, without a TPU, and reports their cost.

    pip install ".[tpu]"    # libtpu, which holds the compiler
    python benchmarks/tpu_compile.py --program=update --topology=v5e:2x4 \\
      --mesh=data=8,fsdp=1,tensor=1 --model=qwen2.5-0.5b --rows=64 --row_tokens=1024 --json=FILE

Programs: `update` (gradients of a micro-batch of `rows` packed rows), `optimizer` (AdamW on them),
`prefill` (`rows` rows of prompts into the pool) and `decode` (one token for each of `rows` messages
with caches of `columns`). bfloat16 with float32 parameters and moments, blocks recomputed in the
backward pass. Prints the contents of the file, all of it per device:

- temporaries_bytes, arguments_bytes, outputs_bytes: the compiler's memory analysis; `error` instead
  if the program does not fit.
- useful_flops: of the matrix products in the algorithm; compiled_flops: of those in the program,
  recomputed and masked ones included. An update counts all loss tokens as used.
- hbm_bytes, estimate_s: traffic, and the compiler's estimate of the time; of a decode, per token.
  `once_s` is the time before the first token.
- kernels_s: of attention kernels, which the compiler does not estimate, see `_kernels_seconds`.
- share_of_peak: time of useful_flops at the chip's peak, over the longer of estimate and traffic;
  share_of_bandwidth: of a decode, time to read weights and caches once, over the same.
- collectives: by kind the count, and the bytes that a device receives.
- rematerialized: warnings of the partitioner that it replicates an array to reshard it.

One core, 20 to 150 s. Use estimates to compare variants of a program, not as times.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models import flops, partition
from agent_gspo.models.config import REMAT_KEEPS, ModelConfig
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.ops.attention import IMPLEMENTATIONS, tpu
from agent_gspo.packing import train_batches
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding.placement import AXES, ONE_DEVICE, Placement
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import Programs
from agent_gspo.types import Message
from benchmarks import tpu_compiler
from benchmarks.hlo_text import Module
from benchmarks.model_shapes import MODELS


@dataclasses.dataclass(frozen=True)
class Chip:
  """Peak figures of a device by its datasheet.

  Attributes:
    clock_hz: Cycles per second.
    flops: FLOP/s of bfloat16 matrix products.
    hbm: HBM bytes per second.
    depth: Rows of a systolic array.
    lanes: Float32 operations of the vector units per cycle.
  """

  clock_hz: float
  flops: float
  hbm: float
  depth: int
  lanes: int


CHIPS = {
  'v4': Chip(1.05e9, 275e12, 1.228e12, 128, 8192),
  'v5e': Chip(1.5e9, 197e12, 0.819e12, 128, 4096),
  'v5p': Chip(1.75e9, 459e12, 2.765e12, 128, 8192),
  'v6e': Chip(1.75e9, 918e12, 1.64e12, 256, 4096),
}
_VECTOR_OPERATIONS = 16  # per attention score: comparisons, exponential, sums, casts


def main() -> None:
  """Runs the command."""
  options = _options()
  tpu_compiler.prepare()
  placement, device = _placement(options)
  config = MODELS[options.model].replace(
    dtype='bfloat16',
    remat=True,
    remat_keeps=options.remat_keeps,
    lora_rank=options.lora_rank,
    attention=options.attention,
  )
  shards = placement.row_shards
  if options.rows % shards:
    raise SystemExit(f'--rows={options.rows} is not a multiple of data * fsdp = {shards}')
  lower = {'update': _update, 'optimizer': _update, 'prefill': _prefill, 'decode': _decode}
  start = time.monotonic()
  log: list[str] = []
  with _standard_error(log):
    lowered = lower[options.program](_Target(options, config, placement, device))
    try:
      found = _figures(*_compiled(lowered), options)
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      found = {'error': _does_not_fit(str(error))}
  found['rematerialized'] = ''.join(log).count('Involuntary full rematerialization')
  found |= {
    'useful_flops': _useful_flops(options, config) / _devices(options),
    'compile_s': round(time.monotonic() - start, 1),
    'versions': {'jax': jax.__version__, 'libtpu': importlib.metadata.version('libtpu')},
  }
  if 'estimate_s' in found:
    found |= _shares(found, options, config)
  text = json.dumps({**vars(options), **found}, indent=2)
  print(text)
  if options.json:
    pathlib.Path(options.json).write_text(text + '\n', encoding='utf-8')
  if 'error' in found:
    raise SystemExit(1)


def _options() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  programs = ('update', 'optimizer', 'prefill', 'decode')
  parser.add_argument('--program', choices=programs, default='update')
  parser.add_argument('--topology', default='v5e:2x4', help='as v5e:2x4, v5p:2x2x1, v6e:2x4')
  parser.add_argument('--mesh', default='data=8,fsdp=1,tensor=1', help='sizes of the axes')
  parser.add_argument('--model', choices=MODELS, default='qwen2.5-0.5b')
  parser.add_argument('--lora_rank', type=int, default=0, help='0 trains all parameters')
  parser.add_argument('--attention', choices=IMPLEMENTATIONS[1:], default='tpu')
  parser.add_argument('--remat_keeps', choices=REMAT_KEEPS, default='nothing')
  parser.add_argument('--rows', type=int, default=64, help='packed rows, or messages to decode')
  parser.add_argument('--row_tokens', type=int, default=1024, help='of a packed row')
  parser.add_argument('--columns', type=int, default=640, help='of a cache: prompt and message')
  parser.add_argument('--new_tokens', type=int, default=128, help='of the columns, for the message')
  each = 'under fsdp, gather weights for each token, not once before the first'
  parser.add_argument('--gather_each_token', action='store_true', help=each)
  parser.add_argument('--text', default='', help='file for the compiled text')
  parser.add_argument('--json', default='', help='file to write')
  return parser.parse_args()


def _sizes(options: argparse.Namespace) -> list[int]:
  found = re.fullmatch(r'data=(\d+),fsdp=(\d+),tensor=(\d+)', options.mesh)
  if found is None:
    raise SystemExit(f'--mesh={options.mesh} is not of the form data=8,fsdp=1,tensor=1')
  return [int(size) for size in found.groups()]


def _devices(options: argparse.Namespace) -> int:
  return math.prod(_sizes(options))


def _placement(options: argparse.Namespace) -> tuple[Placement, Any]:
  """Returns a mesh on the first devices of the topology, as in a run, and the first device."""
  if options.topology.partition(':')[0] not in CHIPS:
    raise SystemExit(f'--topology={options.topology}: the kinds are {", ".join(CHIPS)}')
  count = _devices(options)
  topology = topologies.get_topology_desc(platform='tpu', topology_name=options.topology)
  if count > len(topology.devices):
    raise SystemExit(
      f'--mesh={options.mesh} has {count} devices, --topology={options.topology} '
      f'{len(topology.devices)}'
    )
  devices = np.asarray(topology.devices[:count]).reshape(_sizes(options))
  return Placement(Mesh(devices, AXES)) if count > 1 else ONE_DEVICE, topology.devices[0]


@dataclasses.dataclass(frozen=True)
class _Target:
  """Options, model and devices of a compilation."""

  options: argparse.Namespace
  config: ModelConfig
  placement: Placement
  device: Any

  def abstract(self, tree: Any, shardings: Any) -> Any:
    """Returns the tree's shapes with shardings, or one for all; None is the one device."""
    if shardings is None:
      shardings = jax.sharding.SingleDeviceSharding(self.device)
    if isinstance(shardings, jax.sharding.Sharding):
      one = shardings
      shardings = jax.tree.map(lambda unused: one, tree)
    at = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return jax.tree.map(at, tree, shardings)

  def array(self, shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return self.abstract(jax.ShapeDtypeStruct(shape, dtype), sharding)

  def params(self) -> Any:
    shapes = jax.eval_shape(functools.partial(init_params, self.config), jax.random.key(0))
    return self.abstract(shapes, partition.shardings(shapes, self.config, self.placement))

  def sampler(self) -> Sampler:
    return Sampler(
      self.config,
      max_new_tokens=self.options.new_tokens,
      gather_once=not self.options.gather_each_token,
      placement=self.placement,
    )

  def pool(self, sampler: Sampler, rows: int, width: int) -> Any:
    kv, *others = jax.eval_shape(lambda: sampler.pool(rows, width))
    of_rows = self.abstract(others, self.placement.rows)
    return self.abstract(kv, sampler.decoding.cache), *of_rows


def _update(target: _Target) -> Any:
  """Lowers the gradients of a micro-batch, or the optimizer's step."""
  options, config, placement = target.options, target.config, target.placement
  optimizer = state_lib.make_optimizer(LearnerOptions(), updates=1)
  layout = partition.layout(config, placement, placement.replica_rows)
  programs = Programs(Transformer(config, layout), losses.gspo, optimizer, 1.0, placement=placement)
  make = functools.partial(state_lib.init, optimizer=optimizer, lora=config.lora_rank > 0)
  shapes = jax.eval_shape(make, target.params())
  state = target.abstract(shapes, partition.shardings(shapes, config, placement))
  totals = jax.eval_shape(programs.no_totals, state.trainable)
  totals = target.abstract(totals, partition.replica_shardings(totals, config, placement))
  if options.program == 'optimizer':
    return programs.apply.lower(state.trainable, state.opt_state, totals)
  batch = target.abstract(_micro_batch(options.rows, options.row_tokens), placement.rows)
  return programs.accumulate.lower(state.trainable, state.frozen, None, totals, batch)


def _micro_batch(rows: int, row_tokens: int) -> Any:
  """Returns a packed micro-batch, of which only the shapes matter."""
  ids = np.zeros(2, np.int32)
  message = Message(0, 0, 0, 0, ids, ids, np.zeros(2, np.float32), True, '')
  packed = train_batches.pack_messages([message], pack_length=row_tokens, micro_batch_size=rows)
  return packed[0]


def _prefill(target: _Target) -> Any:
  """Lowers the prefill of rows of prompts into a pool of as many rows."""
  sampler, options = target.sampler(), target.options
  row = target.array((options.rows, options.row_tokens), jnp.int32, target.placement.rows)
  pool = target.pool(sampler, options.rows, options.row_tokens)
  return sampler.prefill.lower(target.params(), pool, (row, row, row, None), 0)


def _decode(target: _Target) -> Any:
  """Lowers the decode loop, whose body counts once."""
  sampler, options = target.sampler(), target.options
  n, columns = options.rows, options.columns - options.new_tokens
  if columns < 1:
    raise SystemExit(f'--columns={options.columns} must be more than --new_tokens')
  whole = target.placement.replicated
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), n))
  per_row = jax.ShapeDtypeStruct((n,), jnp.int32)
  source = jax.ShapeDtypeStruct((n, columns), jnp.int32)
  temperature, stops = target.array((), jnp.float32, whole), target.array((8,), jnp.int32, whole)
  params = target.params()
  rows = (source, per_row, per_row, keys, None, None, None, temperature, stops)
  pool = target.pool(sampler, target.placement.row_shards, columns)
  shapes = jax.eval_shape(lambda *of: sampler.start(*of, options.new_tokens), params, pool, rows)
  if target.placement.mesh is None:
    state = target.abstract(shapes, None)
  else:
    state = jax.tree.map(
      lambda sharding, part: target.abstract(part, sharding), sampler.decoding, shapes
    )
  bound = target.array((), jnp.int32, whole)
  return sampler.decode.lower(params, state, (bound, bound, temperature, stops))


def _compiled(lowered: Any) -> tuple[Any, str]:
  """Returns the compiled program and its text."""
  # As the compiler writes it to a file: for v5p, `as_text` cannot read it.
  with tempfile.TemporaryDirectory() as folder:
    compiled = lowered.compile({'xla_dump_to': folder, 'xla_dump_hlo_as_text': True})
    (file,) = pathlib.Path(folder).glob('*.after_codegen.txt')
    return compiled, file.read_text(encoding='utf-8')


def _figures(compiled: Any, text: str, options: argparse.Namespace) -> dict[str, Any]:
  """Returns the figures of the compiler and of the compiled text, per device."""
  memory = compiled.memory_analysis()
  found: dict[str, Any] = {
    'temporaries_bytes': memory.temp_size_in_bytes,
    'arguments_bytes': memory.argument_size_in_bytes,
    'outputs_bytes': memory.output_size_in_bytes,
    'aliased_bytes': memory.alias_size_in_bytes,
  }
  if options.text:
    pathlib.Path(options.text).write_text(text, encoding='utf-8')
  module = Module(text)
  chip = CHIPS[options.topology.partition(':')[0]]
  if options.program == 'decode':
    module, whole = module.loop(), module
    found['once_s'] = (whole.cycles() - module.cycles()) / chip.clock_hz
  return {
    **found,
    'compiled_flops': module.flops(),
    'hbm_bytes': module.hbm_bytes(),
    'estimate_s': module.cycles() / chip.clock_hz,
    'kernels_s': _kernels_seconds(module, chip),
    'collectives': module.collectives(),
  }


def _kernels_seconds(module: Module, chip: Chip) -> float:
  """Bounds the seconds of attention kernels from above, as the compiler has no estimate.

  Counts all blocks at and below the diagonal. Products use as many rows of a systolic array as a
  head is wide, and do not overlap with vector operations.
  """
  total = 0.0
  for name, products in ((tpu.NAME, 2), (tpu.GRADIENT_NAME, 5)):
    for call, times in module.kernels(f'{name}.'):
      *heads, width, length = call.results[0].shape
      block = tpu.block_of(length)
      scores = math.prod(heads) * length * (length + block) / 2
      at_peak = products * 2 * width * scores / chip.flops
      vectors = _VECTOR_OPERATIONS * scores / (chip.lanes * chip.clock_hz)
      total += times * (at_peak / min(1, width / chip.depth) + vectors)
  return total


def _shares(
  found: dict[str, Any], options: argparse.Namespace, config: ModelConfig
) -> dict[str, float]:
  """Returns the share of the chip's peak, by the larger of estimate and traffic."""
  chip = CHIPS[options.topology.partition(':')[0]]
  seconds = max(found['estimate_s'] + found['kernels_s'], found['hbm_bytes'] / chip.hbm)
  if options.program == 'decode':
    # Operands and caches are read once a token.
    sizes = config.num_kv_heads * config.head_dim * 2 * config.num_layers * options.columns
    weights = flops.body_weights(config) + config.vocab_size * config.embed_dim
    needed = 2 * (weights / _sizes(options)[2] + sizes * options.rows / _devices(options))
    return {'share_of_bandwidth': needed / chip.hbm / seconds}
  return {'share_of_peak': found['useful_flops'] / chip.flops / seconds}


def _useful_flops(options: argparse.Namespace, config: ModelConfig) -> float:
  """Returns the FLOPs of the algorithm's matrix products, over all devices."""
  rows, positions = options.rows, options.rows * options.row_tokens
  seen = options.row_tokens / 2  # a position sees half of its row
  return {
    'optimizer': lambda: 0.0,
    'decode': lambda: flops.forward(config, rows, options.columns, rows),
    'prefill': lambda: flops.forward(config, positions, seen, 0),
    'update': lambda: flops.update(config, positions, seen, positions),
  }[options.program]()


def _does_not_fit(message: str) -> str:
  used = re.search(r'Used [\d.]+[KMGT] of [\d.]+[KMGT] hbm[^.]*\.[^.]*\.', message)
  return used[0] if used else message.splitlines()[0]


@contextlib.contextmanager
def _standard_error(log: list[str]) -> Iterator[None]:
  """Captures the standard error of the compiler's native code in `log`; prints it afterwards."""
  with tempfile.TemporaryFile() as file:
    shown = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(shown, 2)
      os.close(shown)
      file.seek(0)
      log.append(file.read().decode(errors='replace'))
      sys.stderr.write(log[-1])


if __name__ == '__main__':
  main()
