"""Where arrays live: parameters on every device, rows of a batch shared out among them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Placement:
  """A mesh with one axis, `data`; gradients are summed over it by the compiler.

  Attributes:
    mesh: of the devices; None leaves everything on the default device.
  """

  mesh: Mesh | None = None

  @property
  def devices(self) -> int:
    """Number of devices."""
    return 1 if self.mesh is None else self.mesh.size

  @property
  def replicated(self) -> NamedSharding | None:
    """Of arrays that each device has; None where the default is meant."""
    return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

  @property
  def batch_sharded(self) -> NamedSharding | None:
    """Of arrays cut along their first axis, which the devices divide evenly."""
    return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec('data'))

  def replicate(self, tree: Any) -> Any:
    """The arrays of a tree, whole on each device; numpy's are put there."""
    return jax.device_put(tree, self.replicated)

  def shard_batch(self, tree: Any) -> Any:
    """The arrays of a tree, cut along their first axis."""
    return tree if self.mesh is None else jax.device_put(tree, self.batch_sharded)


ONE_DEVICE = Placement()


def make_placement(devices: int) -> Placement:
  """A placement on the first so many devices of this host.

  Raises:
    ValueError: there are fewer.
  """
  if devices == 1:
    return ONE_DEVICE
  found = jax.devices()
  if devices > len(found):
    raise ValueError(
      f'mesh.data={devices}, but there are {len(found)} devices ({found[0].platform}). Set it to '
      f'{len(found)} at most.'
    )
  return Placement(Mesh(np.asarray(found[:devices]), ('data',)))
