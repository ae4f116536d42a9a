"""Defines the `sampler` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class SamplerOptions(Section, name='sampler'):
  """Batch shapes of prefill and decode; samples do not depend on them.

  Attributes:
    prefill_length: Columns of a prefill row.
    prefill_rows: Rows prefilled at a time per device.
    decode_rows: Messages decoded at a time per device: fewer take less memory and more time.
    cache_length: Prompt columns of the KV cache. Longer prompts get a longer cache, which is
      compiled: if that takes long, set it to the longest prompt expected.
    gather_weights: When weights sharded by `mesh.fsdp` are gathered for decode. once: before the
      first token of a batch; each_token: a layer at a time, much slower, but never all in memory;
      auto: once if that fits.
  """

  prefill_length: int = option(384, least=16, most=2**20)
  prefill_rows: int = option(2, least=1, most=2**16)
  decode_rows: int = option(96, least=1, most=2**16)
  cache_length: int = option(32, least=1, most=2**20)
  gather_weights: str = option('auto', choices=('auto', 'once', 'each_token'))
