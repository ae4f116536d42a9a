"""Exports one adapter as a folder that `peft` loads."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import tensor_names
from agent_gspo.models.io.fields import write_object


def export_peft(
  config: ModelConfig,
  params: Mapping[str, Any],
  path: str | os.PathLike[str],
  base: str,
  revision: str | None = None,
) -> None:
  """Writes adapter_config.json and adapter_model.safetensors; float32, exact.

  `lora_A` `[rank, in]` and `lora_B` `[out, rank]` are stored under the Hugging Face name of
  their projection.

  Args:
    config: Architecture of the adapted model.
    params: Nested dict of float32 arrays with one adapter (see `lora.one_adapter`).
    path: Output folder; both files in it are replaced.
    base: Folder or hub id of the base model.
    revision: Hub revision of the base model.

  Raises:
    ValueError: There is no adapter, or more than one.
  """
  folder, flat, tensors, targets = pathlib.Path(path), tensor_names.flatten(params), {}, set()
  for row in tensor_names.table(config):
    prefix = row.ours.removesuffix('kernel')
    if not row.transposed or f'{prefix}lora_a' not in flat:
      continue
    a, b = (np.asarray(flat[f'{prefix}lora_{x}'], np.float32) for x in 'ab')
    if a.ndim != 2:
      raise ValueError(f'{prefix}lora_a holds {len(a)} adapters: choose one for the export.')
    module = row.hf.removesuffix('.weight')
    targets.add(module.rpartition('.')[2])
    tensors[f'base_model.model.{module}.lora_A.weight'] = np.ascontiguousarray(a.T)
    tensors[f'base_model.model.{module}.lora_B.weight'] = np.ascontiguousarray(b.T)
  if not tensors:
    raise ValueError('there is no adapter to write: this policy is the model itself (--format=hf).')
  folder.mkdir(parents=True, exist_ok=True)
  safetensors.numpy.save_file(
    tensors, folder / 'adapter_model.safetensors', metadata={'format': 'pt'}
  )
  content = {
    'peft_type': 'LORA',
    'task_type': 'CAUSAL_LM',
    'base_model_name_or_path': base,
    'revision': revision,
    'r': config.lora_rank,
    'lora_alpha': config.lora_alpha,
    'lora_dropout': 0.0,
    'bias': 'none',
    'fan_in_fan_out': False,
    'inference_mode': True,
    'target_modules': sorted(targets),
  }
  write_object(folder / 'adapter_config.json', content)
