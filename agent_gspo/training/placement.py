"""Where arrays live: parameters on every device, rows of a micro-batch shared out among them."""

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

  def everywhere(self, tree: Any) -> Any:
    """The arrays of a tree, whole on each device."""
    return self._put(tree, PartitionSpec())

  def by_rows(self, tree: Any) -> Any:
    """The arrays of a tree, cut along their first axis, which the devices divide evenly."""
    return self._put(tree, PartitionSpec('data'))

  def _put(self, tree: Any, spec: PartitionSpec) -> Any:
    return tree if self.mesh is None else jax.device_put(tree, NamedSharding(self.mesh, spec))


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
