"""Import and export of Hugging Face checkpoints (safetensors)."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy, and so safetensors, bfloat16)
import numpy as np
import safetensors
import safetensors.numpy

from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import tensor_names
from agent_gspo.models.io.fields import Fields, read_object
from agent_gspo.models.io.hf_config import config_from_hf, config_to_hf
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.values import shown

_SINGLE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_BUFFER = '.rotary_emb.inv_freq'  # old checkpoints store it; it follows from the config
_HUB_ID = re.compile(r'[\w.-]+/[\w.-]+')


def resolve(reference: str) -> tuple[pathlib.Path, str]:
  """Folder of a model, and the reference with what pins it down.

  Args:
    reference: a folder, or the id of a model on the hub, with `@<revision>` if not the
      newest is wanted. What the hub sends is cached by huggingface_hub.

  Returns:
    The folder, and `reference`; for a hub id `<id>@<commit>`.

  Raises:
    FileNotFoundError: no such folder, and no such model on the hub or no network.
  """
  folder = pathlib.Path(os.path.expanduser(reference))
  if folder.is_dir():
    return folder, reference
  hub_id, _, revision = reference.partition('@')
  if not _HUB_ID.fullmatch(hub_id):
    raise FileNotFoundError(
      f'{reference}: no such folder, and not a hub id (<owner>/<name>). Give a folder with '
      f'config.json, {_SINGLE} and tokenizer.json.'
    )
  import huggingface_hub
  from huggingface_hub import errors

  try:
    found = huggingface_hub.snapshot_download(
      hub_id, revision=revision or None, allow_patterns=['*.json', '*.safetensors', '*.jinja']
    )
  except (errors.HfHubHTTPError, OSError, ValueError) as error:
    raise FileNotFoundError(
      f'{reference}: no such folder here, and the hub did not deliver it ({error}). Check the '
      'spelling and the network, or give a folder.'
    ) from error
  return pathlib.Path(found), f'{hub_id}@{pathlib.Path(found).name}'


def read_config(path: str | os.PathLike[str]) -> ModelConfig:
  """Reads the config.json of a folder.

  Raises:
    FileNotFoundError: there is none.
    ValueError: it is damaged, or the architecture is not supported.
  """
  file = pathlib.Path(path) / 'config.json'
  if not file.is_file():
    raise FileNotFoundError(f'{file}: no such file. Give the folder of a Hugging Face model.')
  return config_from_hf(read_object(file), str(file))


def load_hf(path: str | os.PathLike[str]) -> tuple[ModelConfig, dict[str, Any]]:
  """Reads a folder with config.json and one or several safetensors files.

  Returns:
    The architecture and a nested dict of float32 numpy arrays (float16 and bfloat16
    widened, which is exact).

  Raises:
    FileNotFoundError: the folder or a file in it is missing.
    ValueError: as `read_config`; or a file is damaged, or tensors do not fit the architecture or
      are not finite.
  """
  folder = pathlib.Path(path)
  config = read_config(folder)
  rows = {row.hf: row for row in tensor_names.table(config)}
  params: dict[str, np.ndarray] = {}
  found, head = set(), None
  for shard, name, tensor in _tensors(folder):
    if name in found:
      raise ValueError(f'{shard}: tensor {name!r} is in another file of the folder, too.')
    if name == 'lm_head.weight' and config.tie_embeddings:
      head = tensor
      continue
    found.add(name)
    if name in rows:
      where = f'{shard}: tensor {name!r}'
      params[rows[name].ours] = tensor_names.to_ours(rows[name], tensor, where)
  tensor_names.check_names(set(rows), found, str(folder))
  if head is not None and not np.array_equal(head, params['embed/embedding']):
    raise ValueError(
      f'{folder}: tie_word_embeddings is true, yet lm_head.weight differs from the embedding. '
      'Set tie_word_embeddings to false in config.json.'
    )
  return config, tensor_names.unflatten(params)


def _tensors(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, str, np.ndarray]]:
  """File, name and content of each tensor."""
  for shard in _shard_files(folder):
    if not shard.is_file():
      raise FileNotFoundError(
        f'{shard}: no such file. Only safetensors are read: save other formats again '
        'with `model.save_pretrained(folder)` of transformers.'
      )
    try:
      with safetensors.safe_open(shard, framework='np') as file:
        for name in file.keys():
          if not name.endswith(_BUFFER):
            yield shard, name, _tensor(shard, name, file)
    except safetensors.SafetensorError as error:
      raise ValueError(f'{shard}: damaged ({error}); fetch it again.') from error


def _tensor(shard: pathlib.Path, name: str, file: Any) -> np.ndarray:
  try:
    return file.get_tensor(name)
  except AttributeError:  # numpy has no such type, and the library asks it for one
    kind = file.get_slice(name).get_dtype()
    raise ValueError(
      f'{shard}: tensor {name!r} holds numbers of type {kind}, which are not read. Quantised '
      'weights must be saved as float32, float16 or bfloat16 first.'
    ) from None


def _shard_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """The safetensors files of a folder, those of its index if it has one."""
  index = folder / _INDEX
  if not index.is_file():
    return [folder / _SINGLE]
  fields = Fields(read_object(index), str(index))
  shards = fields.section('weight_map').values.values()
  for shard in shards:
    if not isinstance(shard, str) or pathlib.PurePath(shard).name != shard:
      raise ValueError(
        f'{index}: weight_map names {shown(shard)}, which is no name of a file in the folder.'
      )
  if not shards:
    raise fields.wrong('weight_map', 'tensor names with their files')
  return [folder / shard for shard in sorted(set(shards))]


def export_hf(
  config: ModelConfig,
  params: Mapping[str, Any],
  path: str | os.PathLike[str],
  tokenizer: Tokenizer | None = None,
  max_shard_bytes: int = 4_000_000_000,
) -> None:
  """Writes a folder that `load_hf` and transformers' Auto classes read; float32, exact.

  Args:
    config: architecture.
    params: nested dict of float32 arrays, adapters merged.
    path: the folder; model files in it are replaced.
    tokenizer: written beside the weights, its ids into generation_config.json.
    max_shard_bytes: size above which the weights are split into several files.

  Raises:
    ValueError: the parameters are not those of the architecture.
  """
  folder = pathlib.Path(path)
  flat = tensor_names.flatten(params)
  rows = tensor_names.table(config)
  if any(leaf.rpartition('/')[2].startswith('lora_') for leaf in flat):
    raise ValueError('the parameters hold LoRA adapters: merge them before the export.')
  tensor_names.check_names({row.ours for row in rows}, set(flat), 'export')
  folder.mkdir(parents=True, exist_ok=True)
  for old in (*folder.glob('model*.safetensors'), folder / _INDEX):
    old.unlink(missing_ok=True)
  shards = list(_shards(rows, max_shard_bytes))
  weight_map: dict[str, str] = {}
  for i, shard in enumerate(shards):
    file = _SINGLE if len(shards) == 1 else f'model-{i + 1:05}-of-{len(shards):05}.safetensors'
    tensors = {row.hf: _to_hf(row, flat[row.ours]) for row in shard}
    safetensors.numpy.save_file(tensors, folder / file, metadata={'format': 'pt'})
    weight_map |= dict.fromkeys(tensors, file)
  if len(shards) > 1:
    total = sum(_bytes(row) for row in rows)
    _write(folder / _INDEX, {'metadata': {'total_size': total}, 'weight_map': weight_map})
  hf = config_to_hf(config)
  if tokenizer is not None:
    tokenizer.save(folder)
    ids = {
      'bos_token_id': tokenizer.bos_id,
      'eos_token_id': tokenizer.eos_id,
      'pad_token_id': tokenizer.pad_id,
    }
    ids = {key: value for key, value in ids.items() if value is not None}
    _write(folder / 'generation_config.json', ids)
    hf |= ids
  _write(folder / 'config.json', hf)


def _to_hf(row: tensor_names.Name, array: Any) -> np.ndarray:
  array = np.asarray(array)
  if array.shape != row.shape or array.dtype != np.float32:
    raise ValueError(
      f'export: {row.ours} is {array.dtype}{list(array.shape)}, expected float32{list(row.shape)}.'
    )
  return np.ascontiguousarray(array.T if row.transposed else array)


def _bytes(row: tensor_names.Name) -> int:
  return 4 * int(np.prod(row.shape))


def _shards(rows: Iterable[tensor_names.Name], limit: int) -> Iterator[list[tensor_names.Name]]:
  shard: list[tensor_names.Name] = []
  size = 0
  for row in rows:
    if shard and size + _bytes(row) > limit:
      yield shard
      shard, size = [], 0
    shard.append(row)
    size += _bytes(row)
  yield shard


def _write(file: pathlib.Path, content: Mapping[str, Any]) -> None:
  file.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')
