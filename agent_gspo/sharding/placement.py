"""Defines the mesh of devices, and shards rows over it.

The mesh has three axes: rows of a batch are sharded over `data` and `fsdp`, parameters over `fsdp`
and `tensor` (by the table in `models.partition`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

AXES = ('data', 'fsdp', 'tensor')
ROWS = ('data', 'fsdp')
"""Axes over which rows of a batch are sharded."""


@dataclasses.dataclass(frozen=True)
class Placement:
  """Mesh with the axes `AXES`; the compiler inserts collectives over devices.

  Attributes:
    mesh: Mesh of devices; None leaves everything on the default device.
    turn: Lock for threads whose programs span these devices: programs of two threads that start in
      different orders on two devices would deadlock. No lock without actors.
  """

  mesh: Mesh | None = None
  turn: contextlib.AbstractContextManager[Any] = dataclasses.field(
    default=contextlib.nullcontext(), compare=False
  )

  def size(self, axis: str) -> int:
    """Returns the size of an axis of `AXES`; 1 without a mesh."""
    return 1 if self.mesh is None else self.mesh.shape[axis]

  @property
  def devices(self) -> int:
    """Returns the number of devices."""
    return math.prod(self.size(axis) for axis in AXES)

  @property
  def row_shards(self) -> int:
    """Returns the number of row shards, `data * fsdp`."""
    return math.prod(self.size(axis) for axis in ROWS)

  def sharding(self, *spec: Any) -> NamedSharding | None:
    """Returns the `NamedSharding` of a spec, or None without a mesh."""
    return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec(*spec))

  @property
  def spans_processes(self) -> bool:
    """Returns whether some devices belong to another process."""
    return self.mesh is not None and self.mesh.is_multi_process

  @property
  def replicated(self) -> NamedSharding | None:
    """Returns the sharding of replicated arrays."""
    return self.sharding()

  @property
  def rows(self) -> NamedSharding | None:
    """Returns the sharding of arrays with rows on axis 0; `row_shards` must divide them."""
    return self.sharding(ROWS)

  @property
  def one_device(self) -> SingleDeviceSharding | None:
    """Returns the sharding of arrays without a mesh, on the first device; None with a mesh.

    State is committed to it, as restored arrays are: with uncommitted arguments a program would be
    compiled again.
    """
    return SingleDeviceSharding(jax.local_devices()[0]) if self.mesh is None else None

  def put(self, tree: Any, shardings: Any) -> Any:
    """Moves the arrays of a tree to `shardings`; NumPy arrays move one shard at a time."""
    if self.mesh is None:
      return jax.device_put(tree, self.one_device)
    if not self.spans_processes:
      return jax.device_put(tree, shardings)

    def of(x: Any, sharding: NamedSharding) -> jax.Array:
      if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
      x = np.asarray(x)
      return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    if isinstance(shardings, NamedSharding):
      return jax.tree.map(lambda x: of(x, shardings), tree)
    return jax.tree.map(of, tree, shardings)

  def read(
    self,
    shape: tuple[int, ...],
    part: Callable[[tuple[slice, ...]], np.ndarray],
    sharding: NamedSharding | None,
  ) -> jax.Array:
    """Reads an array of `shape`; each process reads the bounding box of its devices' shards.

    `part` maps one slice per axis to the values there.
    """
    if sharding is None:
      return jax.device_put(part((slice(None),) * len(shape)))

    def ends(index: tuple[slice, ...] | None) -> np.ndarray:
      assert index is not None
      return np.asarray([s.indices(n)[:2] for s, n in zip(index, shape, strict=True)])

    parts = np.stack([*map(ends, sharding.addressable_devices_indices_map(shape).values())])
    first, last = parts[..., 0].min(0), parts[..., 1].max(0)
    box = part(tuple(map(slice, first.tolist(), last.tolist())))
    within = lambda index: box[
      tuple(slice(*pair) for pair in (ends(index) - first[:, None]).tolist())
    ]
    return jax.make_array_from_callback(shape, sharding, within)

  def shard_rows(self, tree: Any) -> Any:
    """Shards the arrays of a tree along their first axis."""
    return tree if self.mesh is None else self.put(tree, self.rows)

  def constrain(self, tree: Any, shardings: Any) -> Any:
    """Constrains arrays in a compiled function to `shardings` (see `put`)."""
    return tree if self.mesh is None else jax.lax.with_sharding_constraint(tree, shardings)

  @property
  def cut_by_fsdp(self) -> bool:
    """Returns whether parameters are sharded over `fsdp`."""
    return self.size('fsdp') > 1

  @property
  def replicas(self) -> int:
    """Returns the number of parameter replicas with separate gradients, see `by_replica`."""
    return 1 if self.one_replica else self.size('data')

  @property
  def one_replica(self) -> bool:
    """Returns whether gradients are computed for all devices together, not by replica."""
    # With all three axes, TPU's compiler aborts on separate replicas (libtpu 0.0.52).
    return self.cut_by_fsdp and (self.size('data') == 1 or self.size('tensor') > 1)

  @property
  def replica_rows(self) -> NamedSharding | PartitionSpec | None:
    """Returns the sharding of arrays with rows on axis 0 within `by_replica`."""
    if self.mesh is None or self.one_replica:
      return self.rows
    return PartitionSpec('fsdp') if self.cut_by_fsdp else PartitionSpec()

  def by_replica(self, function: Callable[..., Any], whole: int) -> Callable[..., Any]:
    """Maps `function` over replicas of the parameters, each with its shard of the rows.

    Within a replica the compiler shards arrays over `fsdp` and `tensor`; there is no communication
    between replicas.

    Args:
      function: Function whose results, and arguments after the first `whole`, are sharded along
        the first axis of each array.
      whole: Number of leading arguments that are replicated.
    """
    if self.one_replica:
      return function
    return self._manual(self.mesh, function, ('data',), (PartitionSpec(),) * whole)

  def by_rows(self, function: Callable[..., Any], kept: Any) -> Callable[..., Any]:
    """Maps `function` over the rows of each device, within `by_replica`.

    Args:
      function: Function whose first argument is replicated; its other arguments and results have
        rows along the first axis of each array.
      kept: Shardings of the first argument. It is all-gathered once before the function, and its
        gradient is reduce-scattered once after it.
    """
    if not self.cut_by_fsdp:
      return function
    # With several replicas, `by_replica` has mapped `data` and sets the mesh.
    mesh, axes = (self.mesh, ROWS) if self.one_replica else (None, ('fsdp',))
    specs = jax.tree.map(lambda sharding: _along(sharding.spec, axes), kept)

    def gathering(part: Any, *args: Any) -> Any:
      return function(jax.tree.map(_gathered, part, specs), *args)

    return self._manual(mesh, gathering, axes, (specs,))

  def _manual(
    self,
    mesh: Mesh | None,
    function: Callable[..., Any],
    axes: tuple[str, ...],
    first: tuple[Any, ...],
  ) -> Callable[..., Any]:
    """Wraps `function` in a `shard_map` over `axes`; the compiler handles the other axes.

    `first` holds the specs of the first arguments; the others have rows. With `mesh` None, the
    mesh of the enclosing `shard_map` is used.
    """
    if self.mesh is None:
      return function
    cut = PartitionSpec(axes)

    def mapped(*args: Any) -> Any:
      return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(*first, *[cut] * (len(args) - len(first))),
        out_specs=cut,
        axis_names=frozenset(axes),
        # Unchecked, gradients of replicated arguments are summed over devices once, at the end.
        check_vma=False,
      )(*args)

    return mapped


ONE_DEVICE = Placement()


def make_placement(shape: Mapping[str, int], actors: int = 0) -> Placement:
  """Returns a placement on the first devices; an axis of -1 takes the remaining ones.

  Args:
    shape: Size of each axis.
    actors: Devices of each process left out, its last ones, see `own_devices`.

  Raises:
    ValueError: There are too few devices, or -1 does not divide evenly.
  """
  devices, own = jax.devices(), jax.local_device_count()
  where = devices[0].platform
  if actors:
    if actors >= own:
      raise ValueError(
        f'mesh.actors={actors} must leave each process a device that learns, of {own} ({where}). '
        f'Set mesh.actors={own - 1}.'
      )
    devices = by_process(devices)[:, :-actors].flatten().tolist()
    where = f'{where}, beside mesh.actors={actors}'
  sizes = _sizes(shape, len(devices), where)
  total = math.prod(sizes)
  if jax.process_count() > 1 and total < len(devices):
    raise ValueError(
      f'{_told(shape)}: {total} devices, but the {jax.process_count()} processes have '
      f'{len(devices)}, all of which take part. Set one axis to -1 for what is left.'
    )
  if total == 1:
    return ONE_DEVICE
  return Placement(Mesh(np.asarray(devices[:total]).reshape(sizes), AXES))


def by_process(devices: Iterable[jax.Device]) -> np.ndarray:
  """Returns devices by process, `[processes, devices of each]`; those of one keep their order."""
  ordered = sorted(devices, key=lambda device: device.process_index)
  return np.asarray(ordered).reshape(len({device.process_index for device in ordered}), -1)


def on_this_machine(shape: Mapping[str, int]) -> dict[str, int]:
  """Returns the shape of a run's mesh, or FSDP over all devices if it does not fit.

  Used to run a trained team on another machine: its messages do not depend on the mesh.
  """
  try:
    _sizes(shape, jax.device_count(), '')
  except ValueError:
    return {axis: -1 if axis == 'fsdp' else 1 for axis in AXES}
  return dict(shape)


def own_devices(placement: Placement, actors: int = 0) -> Placement:
  """Returns the placement of sampling on this process's own devices, or on its last `actors`.

  It keeps as much of `tensor` and `fsdp` as fits (actors: both or neither, see
  `models.partition.own_copy`), and shards rows over the remaining devices.
  """
  if actors:
    own = jax.local_devices()[-actors:]
  elif placement.mesh is not None and placement.spans_processes:
    own = placement.mesh.local_devices
  else:
    return placement
  tensor = math.gcd(placement.size('tensor'), len(own))
  fsdp = math.gcd(placement.size('fsdp'), len(own) // tensor)
  if actors and (tensor, fsdp) != (placement.size('tensor'), placement.size('fsdp')):
    tensor = fsdp = 1
  turn = threading.Lock() if actors else contextlib.nullcontext()
  return Placement(Mesh(np.asarray(own).reshape(-1, fsdp, tensor), AXES), turn)


def _along(spec: PartitionSpec, axes: tuple[str, ...]) -> PartitionSpec:
  """Returns a spec with other mesh axes than `axes` removed."""
  return PartitionSpec(*(axis if axis in axes else None for axis in spec))


def _gathered(part: jax.Array, spec: PartitionSpec) -> jax.Array:
  """Gathers an array along the mesh axes of `spec` (all-gather)."""
  for i, axis in enumerate(spec):
    if axis is not None:
      # The sharded axis comes first, and parts are stacked before it: the reduce-scatter of
      # gradients then splits no TPU tile, and rows are not padded to 128 lanes. Without the layout
      # (also of the gradient) the compiler may transpose, and so pad, the whole gradient.
      part = jnp.moveaxis(part, i, 0)
      part = layout.with_layout_constraint(part, layout.Layout(tuple(range(part.ndim))))
      parts = jax.lax.all_gather(part, axis)  # [devices, size of a part, ...]
      part = jnp.moveaxis(jax.lax.collapse(parts, 0, 2), 0, i)
  return part


def _sizes(shape: Mapping[str, int], found: int, platform: str) -> list[int]:
  sizes, told = [shape[axis] for axis in AXES], _told(shape)
  fixed = math.prod(size for size in sizes if size != -1)
  if fixed > found:
    raise ValueError(
      f'{told}: {fixed} devices, but there are {found} ({platform}). Their product can be {found} '
      'at most.'
    )
  if -1 in sizes and found % fixed:
    raise ValueError(
      f'{told}: there are {found} devices ({platform}), which {fixed} does not divide. Use sizes '
      'whose product does.'
    )
  return [found // fixed if size == -1 else size for size in sizes]


def _told(shape: Mapping[str, int]) -> str:
  return ', '.join(f'mesh.{axis}={shape[axis]}' for axis in AXES)
