"""Shards the arrays of a model over a mesh by one table of rules.

Each matrix is sharded over `tensor` and `fsdp`. Tensor parallelism splits heads, MLP width and
vocabulary (Megatron-LM, arXiv 1909.08053); FSDP splits the other axis (ZeRO stage 3, arXiv
1910.02054), in a stack of experts their number. An axis that the mesh size does not divide is
replicated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, cast

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import tensor_names
from agent_gspo.models.io.stored import StoredArray
from agent_gspo.models.transformer import Layout
from agent_gspo.ops.precision import operand
from agent_gspo.sharding.placement import AXES, ROWS, Placement, by_process, own_devices

_READERS = 4  # threads

# Suffix of a parameter's path -> mesh axes of its last axes. Others (norms) are replicated.
_RULES = tuple(
  (re.compile(rf'(?:^|/)(?:{path})$'), axes)
  for path, axes in (
    ('embed/embedding', ('tensor', 'fsdp')),
    ('lm_head/kernel', ('fsdp', 'tensor')),
    ('(?:gate|up)/kernel', ('fsdp', None, 'tensor')),  # of experts
    ('down/kernel', ('fsdp', 'tensor', None)),
    ('(?:q|k|v|gate|up)/kernel', ('fsdp', 'tensor')),
    ('(?:q|k|v)/bias', ('tensor',)),
    ('(?:o|down)/kernel', ('tensor', 'fsdp')),
    ('(?:q|k|v|gate|up)/lora_a', ('fsdp', None)),
    ('(?:q|k|v|gate|up)/lora_b', (None, 'tensor')),
    ('(?:o|down)/lora_a', ('tensor', None)),
    ('(?:o|down)/lora_b', (None, 'fsdp')),
  )
)


def parameter_spec(
  path: str, shape: tuple[int, ...], config: ModelConfig, placement: Placement
) -> PartitionSpec:
  """Returns the partition spec of a parameter; only the last names of `path` matter."""
  for pattern, axes in _RULES:
    if pattern.search(path) and len(shape) >= len(axes):
      break
  else:
    return PartitionSpec()
  assert placement.mesh is not None
  # Heads are never split.
  heads = {
    'q': config.num_heads,
    'k': config.num_kv_heads,
    'v': config.num_kv_heads,
    'o': config.num_heads,
  }.get(path.split('/')[-2])
  cut: list[str | None] = [None] * (len(shape) - len(axes))
  for axis, size in zip(axes, shape[-len(axes) :], strict=True):
    divided = heads if axis == 'tensor' and heads else size
    cut.append(axis if axis and divided % placement.mesh.shape[axis] == 0 else None)
  return PartitionSpec(*cut)


def shardings(tree: Any, config: ModelConfig, placement: Placement) -> Any:
  """Returns the sharding of each array or shape of a tree; None without a mesh."""
  if placement.mesh is None:
    return None
  mesh = placement.mesh

  def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
    return NamedSharding(mesh, parameter_spec(_joined(path), leaf.shape, config, placement))

  return jax.tree_util.tree_map_with_path(of, tree)


def replica_shardings(tree: Any, config: ModelConfig, placement: Placement) -> Any:
  """Returns the shardings of arrays stacked by replica, `[replicas, ...]`; None without a mesh."""
  if placement.mesh is None:
    return None
  axis = None if placement.one_replica else 'data'
  one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)
  prefixed = lambda sharding: placement.sharding(axis, *sharding.spec)
  return jax.tree.map(prefixed, shardings(one, config, placement))


def place(tree: Any, config: ModelConfig, placement: Placement) -> Any:
  """Moves the arrays of a tree to their shardings; NumPy arrays move one shard at a time.

  Each process reads the shards of its own devices from `StoredArray`s, without caching them.
  """
  where = shardings(tree, config, placement)
  leaves, kind = jax.tree.flatten(tree)
  if not any(isinstance(x, StoredArray) for x in leaves):
    return placement.put(tree, where)
  wanted = [None] * len(leaves) if where is None else jax.tree.leaves(where)

  def of(x: Any, sharding: NamedSharding | None) -> Any:
    return placement.read(x.shape, x.part, sharding) if isinstance(x, StoredArray) else x

  # A few at a time: each dequantization takes a core and the memory of a whole array.
  with futures.ThreadPoolExecutor(_READERS) as pool:
    read = list(pool.map(of, leaves, wanted))
  return placement.put(jax.tree.unflatten(kind, read), where)


def shapes(
  make: Callable[[Any], Any], params: Any, config: ModelConfig, placement: Placement
) -> Any:
  """Returns the outputs of `make(params)` as sharded `jax.ShapeDtypeStruct`s, by `eval_shape`."""
  shape = lambda x, where=None: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
  made = jax.eval_shape(make, jax.tree.map(shape, params))
  where = shardings(made, config, placement)
  if where is None:
    return jax.tree.map(lambda x: shape(x, SingleDeviceSharding(jax.devices()[0])), made)
  return jax.tree.map(shape, made, where)


def own_copy(tree: Any, config: ModelConfig, own: Placement) -> Any:
  """Returns all parameters on this process's own devices, `own`, from those of all processes.

  Arrays that span processes are first gathered over the devices of each process; then arrays move
  from device to device, except for shards already in place.
  """
  local = jax.tree_util.tree_map_with_path(functools.partial(_within_process, config), tree)
  return place(jax.tree.map(functools.partial(_as_cut, own), local), config, own)


def _within_process(config: ModelConfig, path: tuple[Any, ...], x: Any) -> Any:
  """Gathers an array that spans processes on the devices of each; returns others unchanged."""
  if not isinstance(x, jax.Array) or x.is_fully_addressable:
    return x
  whole = cast(Mesh, cast(NamedSharding, x.sharding).mesh)
  own = cast(Mesh, own_devices(Placement(whole)).mesh)
  devices = by_process(whole.devices.flat).reshape(-1, *own.devices.shape)
  everywhere = Mesh(devices, ('process', *own.axis_names))
  spec = parameter_spec(_joined(path), x.shape, config, Placement(own))
  moved = jax.device_put(x, NamedSharding(everywhere, spec))
  parts = [shard.data for shard in moved.addressable_shards]
  return jax.make_array_from_single_device_arrays(x.shape, NamedSharding(own, spec), parts)


def _as_cut(own: Placement, x: Any) -> Any:
  """Gathers an array on its devices along axes that `own` does not shard alike.

  Between meshes JAX copies equal shards from device to device, and other arrays through the host.
  """
  cut = getattr(x, 'sharding', None)
  if own.mesh is None or not isinstance(cut, NamedSharding):
    return x
  sizes = cut.mesh.shape
  kept = PartitionSpec(
    *(axis if axis and own.size(axis) == sizes[axis] else None for axis in cut.spec)
  )
  if kept == cut.spec:
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(cut.mesh, kept))


def layout(
  config: ModelConfig, placement: Placement, rows: NamedSharding | PartitionSpec | None
) -> Layout:
  """Returns the decoder's `Layout` on a mesh, with `rows` for the residual stream."""
  if placement.mesh is None:
    return Layout()
  # Within a replica, specs refer to the mesh of the enclosing `shard_map`.
  whole = isinstance(rows, NamedSharding)
  on_mesh = functools.partial(NamedSharding, placement.mesh) if whole else lambda spec: spec
  weights = {}
  for path, shape in _multiplied(config) if placement.cut_by_fsdp else ():
    kept = parameter_spec(path, shape, config, placement)
    if 'fsdp' in kept:
      weights[path] = on_mesh(kept), on_mesh(_whole_along_fsdp(kept))
  lookup = None
  table = parameter_spec(
    'embed/embedding', (config.vocab_size, config.embed_dim), config, placement
  )
  if placement.cut_by_fsdp and table[-1] == 'fsdp':
    data = 'data' if whole else None
    lookup = on_mesh(PartitionSpec(data)), on_mesh(PartitionSpec(data, None, 'fsdp'))
  own_rows, mesh, axes = _own_rows(placement, rows)
  heads = 'tensor' if config.num_kv_heads % placement.size('tensor') == 0 else None
  width = 'tensor' if config.mlp_dim % placement.size('tensor') == 0 else None
  return Layout(
    rows,
    lookup,
    weights,
    heads=None if config.attention == 'reference' else (PartitionSpec(own_rows, heads), mesh, axes),
    experts=(PartitionSpec(own_rows), width, mesh, axes),
  )


def _multiplied(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
  """Yields path suffix and shape of each kernel and adapter, of every layer."""
  stack = (config.num_adapters,) if config.num_adapters > 1 else ()
  for name in tensor_names.table(config):
    *_, module, kind = name.ours.split('/')
    if kind != 'kernel' or module == 'lm_head':  # `ops.lm_head` handles the head
      continue
    yield f'{module}/kernel', name.shape
    if config.lora_rank and not (config.spec.is_mixture and '/mlp/' in name.ours):
      width, features = name.shape
      yield f'{module}/lora_a', (*stack, width, config.lora_rank)
      yield f'{module}/lora_b', (*stack, config.lora_rank, features)


def _own_rows(
  placement: Placement, rows: NamedSharding | PartitionSpec | None
) -> tuple[tuple[str, ...] | str | None, Mesh | None, frozenset[str]]:
  """Returns the axes that shard rows, the mesh and its axes, as in `Layout.heads`."""
  if isinstance(rows, NamedSharding):
    return ROWS, placement.mesh, frozenset(AXES)
  return 'fsdp' if placement.cut_by_fsdp else None, None, frozenset(AXES) - {'data'}


def gathered(params: Any, config: ModelConfig, placement: Placement) -> Any:
  """Gathers FSDP parameters once, for a compiled program that reads them repeatedly.

  Arrays sharded over `fsdp` are rounded to `config.dtype` and replicated along it; they stay
  sharded over `tensor`. Other arrays are returned unchanged.
  """

  def of(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
    kept = parameter_spec(_joined(path), x.shape, config, placement)
    if 'fsdp' not in kept:
      return x
    x = placement.constrain(operand(x, config.dtype), placement.sharding(*kept))
    return placement.constrain(x, placement.sharding(*_whole_along_fsdp(kept)))

  return jax.tree_util.tree_map_with_path(of, params) if placement.cut_by_fsdp else params


def cache_sharding(config: ModelConfig, placement: Placement) -> NamedSharding | None:
  """Returns the sharding of the KV cache `[rows, num_kv_heads, columns, head_dim]`, or None."""
  if placement.mesh is None:
    return None
  whole = config.num_kv_heads % placement.mesh.shape['tensor']
  return placement.sharding(ROWS, None if whole else 'tensor')


def _whole_along_fsdp(spec: PartitionSpec) -> PartitionSpec:
  return PartitionSpec(*(None if axis == 'fsdp' else axis for axis in spec))


def _joined(path: tuple[Any, ...]) -> str:
  """Joins the keys of a tree path with '/'; a key may itself be a tuple of names."""
  keys = (getattr(key, 'key', getattr(key, 'name', '')) for key in path)
  return '/'.join('/'.join(key) if isinstance(key, tuple) else str(key) for key in keys)
