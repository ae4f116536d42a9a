"""LoRA adapters (Hu et al. 2021, arXiv 2106.09685): one of several, folded into its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agent_gspo.models.config import ModelConfig

_ADAPTER = ('lora_a', 'lora_b')


def one_adapter(params: Mapping[str, Any], index: int) -> dict[str, Any]:
  """Parameters with adapter `index` of the stacked ones alone; with -1 without any.

  Args:
    params: nested dict; `lora_a` `[N, in, rank]` and `lora_b` `[N, rank, out]`, or without
      `N` where there is one adapter, whose index is 0.
    index: -1 to `N - 1`.
  """
  chosen = {}
  for name, value in params.items():
    if isinstance(value, Mapping):
      chosen[name] = one_adapter(value, index)
    elif name not in _ADAPTER:
      chosen[name] = value
    elif index >= 0:
      chosen[name] = value[index] if value.ndim == 3 else value
  return chosen


def merge_adapters(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
  """Parameters without adapters that compute the same: `kernel + alpha / rank * a @ b`.

  Args:
    config: of the adapted model; gives alpha and rank.
    params: nested dict of float32 arrays with one adapter at most (see `one_adapter`);
      `lora_a` `[in, rank]` and `lora_b` `[rank, out]` stand beside the `kernel` `[in, out]` they
      adapt.

  Returns:
    Parameters for `config.without_adapters()`. What has no adapter, or one that adds 0,
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
