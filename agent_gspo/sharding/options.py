"""Defines the `mesh` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class MeshOptions(Section, name='mesh'):
  """Mesh of devices with three axes; one of them may be -1, for the remaining devices.

  Attributes:
    data: Data parallelism: shards rows of the sampler and of micro-batches, replicates parameters.
    fsdp: FSDP: shards rows and parameters.
    tensor: Tensor parallelism: shards heads, MLP width and vocabulary.
    actors: Devices of each process, the last ones, that only sample (`rollout.ahead`). The axes
      are sizes over the others, which learn; actors use `fsdp` and `tensor` if these divide them.
  """

  data: int = option(1, least=-1, most=2**16)
  fsdp: int = option(1, least=-1, most=2**16)
  tensor: int = option(1, least=-1, most=2**16)
  actors: int = option(0, least=0, most=2**16)

  def __post_init__(self):
    super().__post_init__()
    left = 0
    for name, size in self.to_dict().items():
      if size == 0 and name != 'actors':
        raise ValueError(f'mesh.{name}=0: an axis has one device or more, or -1 for what is left.')
      left += size == -1
    if left > 1:
      raise ValueError(
        f'mesh={self.to_dict()}: one axis alone can have what is left (-1); give the others a size.'
      )
