"""LoRA adapters (Hu et al. 2021, arXiv 2106.09685) folded into the weights they adapt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agent_gspo.models.config import ModelConfig

_ADAPTER = ('lora_a', 'lora_b')


def merge_adapters(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
  """Parameters without adapters that compute the same: `kernel + alpha / rank * a @ b`.

  Args:
    config: of the adapted model; gives alpha and rank.
    params: nested dict of float32 arrays; `lora_a` `[in, rank]` and `lora_b` `[rank, out]`
      stand beside the `kernel` `[in, out]` they adapt.

  Returns:
    Parameters for `config.replace(lora_rank=0)`. What has no adapter, or one that adds 0,
    stays bit for bit.
  """
  merged = {
    name: merge_adapters(config, value) if isinstance(value, Mapping) else value
    for name, value in params.items()
    if name not in _ADAPTER
  }
  if 'lora_a' in params:
    a, b, kernel = (np.asarray(params[name]) for name in (*_ADAPTER, 'kernel'))
    change = np.float32(config.lora_alpha / config.lora_rank) * (a @ b)
    merged['kernel'] = np.where(change == 0, kernel, kernel + change)  # -0.0 + 0.0 is not -0.0
  return merged
