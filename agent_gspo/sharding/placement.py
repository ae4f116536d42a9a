"""The mesh of devices, and how rows and whole arrays lie on it.

Three axes: rows of a batch are cut over `data` and `fsdp`, parameters over `fsdp` and `tensor` (by
the table in `models.partition`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = ('data', 'fsdp', 'tensor')
ROWS = ('data', 'fsdp')
"""Axes that share the rows of a batch."""


@dataclasses.dataclass(frozen=True)
class Placement:
  """A mesh with the axes `AXES`; sums over devices are the compiler's.

  Attributes:
    mesh: of the devices; None leaves everything on the default device.
  """

  mesh: Mesh | None = None

  def size(self, axis: str) -> int:
    """Of an axis of `AXES`; 1 without a mesh."""
    return 1 if self.mesh is None else self.mesh.shape[axis]

  @property
  def devices(self) -> int:
    """Number of devices."""
    return math.prod(self.size(axis) for axis in AXES)

  @property
  def row_shards(self) -> int:
    """Number of devices, or groups of them, that have rows of their own."""
    return math.prod(self.size(axis) for axis in ROWS)

  def sharding(self, *spec: Any) -> NamedSharding | None:
    """Of arrays cut so; None where there is no mesh."""
    return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec(*spec))

  @property
  def spans_processes(self) -> bool:
    """Whether some of the devices are another process's."""
    return self.mesh is not None and self.mesh.is_multi_process

  @property
  def replicated(self) -> NamedSharding | None:
    """Of arrays that each device has."""
    return self.sharding()

  @property
  def rows(self) -> NamedSharding | None:
    """Of arrays whose first axis is one of rows, which `row_shards` divides."""
    return self.sharding(ROWS)

  def put(self, tree: Any, shardings: Any) -> Any:
    """Returns the arrays of a tree, placed; numpy's travel a device's share at a time."""
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
    """Returns an array; a process reads the smallest box that its devices' parts lie in."""
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
    """The arrays of a tree, cut along their first axis."""
    return tree if self.mesh is None else self.put(tree, self.rows)

  def constrain(self, tree: Any, shardings: Any) -> Any:
    """The arrays that a compiled function computes, placed there; `shardings` as of `put`."""
    return tree if self.mesh is None else jax.lax.with_sharding_constraint(tree, shardings)

  @property
  def cut_by_fsdp(self) -> bool:
    """Whether no device has all of the parameters, `tensor` aside."""
    return self.size('fsdp') > 1

  @property
  def replicas(self) -> int:
    """Number of copies of the parameters that are trained apart, see `by_replica`."""
    return 1 if self.one_replica else self.size('data')

  @property
  def one_replica(self) -> bool:
    """Whether all devices share one copy of the parameters, `tensor` aside."""
    # On all three axes at once TPU's compiler aborts on replicas that are apart (libtpu 0.0.52).
    return self.cut_by_fsdp and (self.size('data') == 1 or self.size('tensor') > 1)

  @property
  def replica_rows(self) -> NamedSharding | PartitionSpec | None:
    """Within `by_replica`, of arrays whose first axis is one of rows."""
    if self.mesh is None or self.one_replica:
      return self.rows
    return PartitionSpec('fsdp') if self.cut_by_fsdp else PartitionSpec()

  def by_replica(self, function: Callable[..., Any], whole: int) -> Callable[..., Any]:
    """`function`, run by each replica of the parameters on its own part of the other arguments.

    Between replicas the compiler exchanges nothing; within one it cuts arrays over `fsdp` and
    `tensor`.

    Args:
      function: what it returns, and its arguments but the first few, are cut along the first axis
        of each array.
      whole: arguments that each replica has.
    """
    if self.one_replica:
      return function
    return self._manual(self.mesh, function, ('data',), (PartitionSpec(),) * whole)

  def by_rows(self, function: Callable[..., Any], kept: Any) -> Callable[..., Any]:
    """Within `by_replica`: `function`, run by each device on its own rows.

    Args:
      function: its first argument is whole on each device, the others have rows along the first
        axis of each array, and so has what it returns.
      kept: shardings of the first argument. It is gathered once, before the function, and its
        gradient summed once, after it, each device getting its part.
    """
    if not self.cut_by_fsdp:
      return function
    # Of several replicas each knows its own rows alone, and the mesh from where it runs.
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
    """`function` of the part that devices have along some axes, the others left to the compiler.

    `first` are the specs of its first arguments; the others have rows. Without a mesh it is that
    of the function that this one runs in.
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
        # Unchecked, the gradient of what is whole is summed over devices once, at the end.
        check_vma=False,
      )(*args)

    return mapped


ONE_DEVICE = Placement()


def make_placement(shape: Mapping[str, int]) -> Placement:
  """Returns a placement on the first devices there are; -1 stands for what is left.

  Raises:
    ValueError: there are fewer devices, or they cannot be shared out so.
  """
  devices = jax.devices()
  sizes = _sizes(shape, len(devices), devices[0].platform)
  total = math.prod(sizes)
  if jax.process_count() > 1 and total < len(devices):
    raise ValueError(
      f'{_told(shape)}: {total} devices, but the {jax.process_count()} processes have '
      f'{len(devices)}, all of which take part. Set one axis to -1 for what is left.'
    )
  if total == 1:
    return ONE_DEVICE
  return Placement(Mesh(np.asarray(devices[:total]).reshape(sizes), AXES))


def on_this_machine(shape: Mapping[str, int]) -> dict[str, int]:
  """Returns the shape of a run's mesh, or one over all devices where it does not fit.

  For a trained team that is used elsewhere: what it says does not depend on the mesh.
  """
  try:
    _sizes(shape, jax.device_count(), '')
  except ValueError:
    return {axis: -1 if axis == 'fsdp' else 1 for axis in AXES}
  return dict(shape)


def own_devices(placement: Placement) -> Placement:
  """The part of a placement in which this process samples, without the others.

  It has as much of `tensor` and `fsdp` as fits the process, rows over what is left.
  """
  if not placement.spans_processes:
    return placement
  assert placement.mesh is not None
  own = jax.local_devices()
  tensor = math.gcd(placement.mesh.shape['tensor'], len(own))
  fsdp = math.gcd(placement.mesh.shape['fsdp'], len(own) // tensor)
  return Placement(Mesh(np.asarray(own).reshape(-1, fsdp, tensor), AXES))


def _along(spec: PartitionSpec, axes: tuple[str, ...]) -> PartitionSpec:
  """The part of a spec that is of some axes of the mesh."""
  return PartitionSpec(*(axis if axis in axes else None for axis in spec))


def _gathered(part: jax.Array, spec: PartitionSpec) -> jax.Array:
  """The whole of an array, of which each device has a part."""
  for i, axis in enumerate(spec):
    if axis is not None:
      # Stacked in front, so that gradients are scattered along an axis that no tile of a TPU cuts.
      parts = jnp.moveaxis(jax.lax.all_gather(part, axis), 0, i)
      part = parts.reshape(*part.shape[:i], -1, *part.shape[i + 1 :])
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
