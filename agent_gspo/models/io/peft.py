"""Exports one adapter as a folder that `peft` loads, and reads it back."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np
import safetensors.numpy

from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import tensor_names
from agent_gspo.models.io.fields import write_object

_WEIGHTS = 'adapter_model.safetensors'


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
  folder, tensors, targets = pathlib.Path(path), {}, set()
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  for row in tensor_names.table(config):
    prefix = row.ours.removesuffix('kernel')
    if not row.transposed or f'{prefix}lora_a' not in flat:
      continue
    a, b = (np.asarray(flat[f'{prefix}lora_{x}'], np.float32) for x in 'ab')
    if row.rows > row.shape[-1]:
      raise ValueError(
        f'{row.hf} stores several projections with an adapter each; PEFT knows one adapter of a '
        'tensor. Export the merged model (--format=hf).'
      )
    if a.ndim != 2:
      raise ValueError(f'{prefix}lora_a holds {len(a)} adapters: choose one for the export.')
    targets.add(row.hf.removesuffix('.weight').rpartition('.')[2])
    for name, array in zip(_names(row), (a, b), strict=True):
      tensors[name] = np.ascontiguousarray(array.T)
  if not tensors:
    raise ValueError('there is no adapter to write: this policy is the model itself (--format=hf).')
  folder.mkdir(parents=True, exist_ok=True)
  safetensors.numpy.save_file(tensors, folder / _WEIGHTS, metadata={'format': 'pt'})
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


def read_peft(config: ModelConfig, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Returns what `export_peft` wrote by path, `lora_a` `[in, rank]` and `lora_b` `[rank, out]`.

  Raises:
    FileNotFoundError, ValueError: The adapter is missing or damaged.
  """
  file, found = pathlib.Path(path) / _WEIGHTS, {}
  try:
    tensors = safetensors.numpy.load_file(file)
  except safetensors.SafetensorError as error:
    raise ValueError(f'{file}: damaged ({error}); export the team again.') from error
  for row in tensor_names.table(config):
    for ours, name in zip(('lora_a', 'lora_b'), _names(row), strict=True):
      if name in tensors:
        found[row.ours.removesuffix('kernel') + ours] = tensors[name].T
  return found


def _names(row: tensor_names.Name) -> tuple[str, str]:
  """Returns the names of both matrices of an adapted projection."""
  module = f'base_model.model.{row.hf.removesuffix(".weight")}'
  return f'{module}.lora_A.weight', f'{module}.lora_B.weight'
