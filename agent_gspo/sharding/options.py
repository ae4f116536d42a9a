"""The `mesh` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class MeshOptions(Section, name='mesh'):
  """The devices of a run."""

  data: int = option(1, least=1, most=2**16)  # share the rows of the sampler and a micro-batch
