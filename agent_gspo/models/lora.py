"""Selects and merges LoRA adapters (Hu et al. 2021, arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agent_gspo.models.config import ModelConfig

_ADAPTER = ('lora_a', 'lora_b')


def is_adapter(name: str) -> bool:
  """Returns whether a parameter with this last part of its path belongs to an adapter."""
  return name in _ADAPTER


def one_adapter(params: Mapping[str, Any], index: int) -> dict[str, Any]:
  """Returns parameters with adapter `index` alone; with -1 without adapters.

  Args:
    params: Nested dict; `lora_a` `[N, in, rank]` and `lora_b` `[N, rank, out]`; without the axis
      `N` if there is one adapter, whose index is 0.
    index: Adapter, -1 to `N - 1`.
  """
  chosen = {}
  for name, value in params.items():
    if isinstance(value, Mapping):
      chosen[name] = one_adapter(value, index)
    elif not is_adapter(name):
      chosen[name] = value
    elif index >= 0:
      chosen[name] = value[index] if value.ndim == 3 else value
  return chosen


def merge_adapters(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns equivalent parameters without adapters: `kernel + alpha / rank * a @ b`.

  Args:
    config: Architecture of the adapted model, with alpha and rank.
    params: Nested dict of float32 arrays with one adapter at most (see `one_adapter`);
      `lora_a` `[in, rank]` and `lora_b` `[rank, out]` are siblings of the `kernel` `[in, out]`.

  Returns:
    Parameters for `config.without_adapters()`. Kernels without an adapter, or with one that adds
    0, are bit-identical.
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
