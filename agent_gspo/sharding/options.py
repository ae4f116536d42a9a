"""The `mesh` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class MeshOptions(Section, name='mesh'):
  """The devices of a run, in a mesh of three axes; one of them may be -1, for what is left."""

  # Share the rows of the sampler and of a micro-batch; each has its parameters whole.
  data: int = option(1, least=-1, most=2**16)
  fsdp: int = option(1, least=-1, most=2**16)  # share rows as well, and cut the parameters up
  # Share heads, the MLP's width and the vocabulary: the work of one row.
  tensor: int = option(1, least=-1, most=2**16)

  def __post_init__(self):
    super().__post_init__()
    left = 0
    for name, size in self.shape.items():
      if size == 0:
        raise ValueError(f'mesh.{name}=0: an axis has one device or more, or -1 for what is left.')
      left += size == -1
    if left > 1:
      raise ValueError(
        f'mesh={self.shape}: one axis alone can have what is left (-1); give the others a size.'
      )

  @property
  def shape(self) -> dict[str, int]:
    """Size by axis, in the order of the mesh."""
    return dataclasses.asdict(self)
