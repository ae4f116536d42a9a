"""The `sampler` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class SamplerOptions(Section, name='sampler'):
  """How much a device reads and writes at a time; what is sampled does not depend on it."""

  prefill_length: int = option(384, least=16, most=2**20)  # columns of a prefill row
  prefill_rows: int = option(2, least=1, most=2**16)  # rows that a device prefills at a time
  # Messages that it writes at a time: fewer take less memory and more time.
  decode_rows: int = option(96, least=1, most=2**16)
  # Columns of a decode cache without those of messages. Longer prompts get a longer one, which is
  # compiled: where that takes long, set it to the longest prompt that is to be expected.
  cache_length: int = option(32, least=1, most=2**20)
  # When a device that decodes gets the weights that mesh.fsdp has cut. once: before the first token
  # of a batch; each_token: a layer at a time, much slower, but it never has all of them; auto: once
  # if that fits.
  gather_weights: str = option('auto', choices=('auto', 'once', 'each_token'))
