"""Imports and exports Hugging Face checkpoints (safetensors)."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import huggingface_hub
import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy, for safetensors)
import numpy as np
import safetensors
import safetensors.numpy

from agent_gspo.models import lora
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import tensor_names
from agent_gspo.models.io.fields import Fields, read_object, write_object
from agent_gspo.models.io.hf_config import config_from_hf, config_to_hf
from agent_gspo.models.io.stored import StoredArray
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.values import shown

_SINGLE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_HEAD = 'lm_head.weight'
_BARE = 'embed_tokens.weight'  # the embedding, in a model saved without its head
_BUFFER = '.rotary_emb.inv_freq'  # old checkpoints store it; it follows from the config
_READ = ('*.json', '*.safetensors', '*.jinja')  # files of a folder that may be read
_UNREAD = ('consolidated*', 'original/*', 'onnx/*')  # the same weights in other formats
_HUB_ID = re.compile(r'[\w.-]+/[\w.-]+')


def resolve(reference: str, also: Sequence[str] = ()) -> tuple[pathlib.Path, str]:
  """Resolves a reference to a local folder, downloading from the hub if needed.

  Args:
    reference: Folder or hub id, with `@<revision>` for another than the newest revision.
      Downloads are cached by huggingface_hub.
    also: Files to download besides those of a model.

  Returns:
    The folder, and `reference`; for a hub id `<id>@<commit>`.

  Raises:
    FileNotFoundError: There is no such folder, and no such model on the hub or no network.
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
  from huggingface_hub import errors  # here, as importing it takes a quarter of a second

  try:
    found = huggingface_hub.snapshot_download(
      hub_id,
      revision=revision or None,
      allow_patterns=[*_READ, *also],
      ignore_patterns=list(_UNREAD),
    )
  except (errors.HfHubHTTPError, OSError, ValueError) as error:
    raise FileNotFoundError(
      f'{reference}: no such folder here, and the hub did not deliver it ({error}). Check the '
      'spelling and the network, or give a folder.'
    ) from error
  return pathlib.Path(found), f'{hub_id}@{pathlib.Path(found).name}'


def files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the model files of a folder: weights, config, tokenizer, template."""
  found = (file for pattern in _READ for file in folder.glob(pattern))
  return sorted(file for file in found if file.is_file())


def read_config(path: str | os.PathLike[str]) -> ModelConfig:
  """Reads the config.json of a folder.

  Raises:
    FileNotFoundError: The file is missing.
    ValueError: The file is damaged, the architecture is not supported, or the folder holds an
      adapter.
  """
  _refuse_adapter(pathlib.Path(path))
  file = pathlib.Path(path) / 'config.json'
  if not file.is_file():
    raise FileNotFoundError(f'{file}: no such file. Give the folder of a Hugging Face model.')
  return config_from_hf(read_object(file), str(file))


def _refuse_adapter(folder: pathlib.Path) -> None:
  """Raises ValueError for a folder with an adapter, which has no base weights."""
  file = folder / 'adapter_config.json'
  found = [file, *sorted(folder.glob('adapter_model.*'))]
  found = [file for file in found if file.is_file()]
  if not found:
    return
  base = read_object(file).get('base_model_name_or_path') if file in found else None
  of = f'the model {shown(base)}' if base else 'a model that it does not name'
  raise ValueError(
    f'{found[0]}: the folder holds an adapter of {of}; must be a whole model. '
    'Merge the two with `merge_and_unload()` of peft, save the result, and give its folder.'
  )


def open_hf(path: str | os.PathLike[str]) -> tuple[ModelConfig, dict[str, Any]]:
  """Opens a folder with config.json and one or several safetensors files.

  Names may lack `model.`, as those of a model that transformers saved without its head.

  Returns:
    The architecture and a nested dict of `StoredArray`s (float16 and bfloat16 are widened, which is
    exact).

  Raises:
    FileNotFoundError: The folder or a file in it is missing.
    ValueError: See `read_config`; or a file is damaged, or tensors do not fit the architecture;
      when arrays are read, also: numbers are not floats or not finite.
  """
  folder = pathlib.Path(path)
  config = read_config(folder)
  found = {tensor.name: tensor for tensor in _tensors(folder)}
  if _BARE in found:
    found = {name if name == _HEAD else f'model.{name}': x for name, x in found.items()}
  head = found.pop(_HEAD, None) if config.tie_embeddings else None
  rows = tensor_names.table(config)
  tensor_names.check_names({x.hf for row in rows for x in row.parts}, set(found), str(folder))
  params = {row.ours: _parameter(row, found) for row in rows}
  if head is not None:
    row = rows[0]
    params[row.ours] = _tied(params[row.ours], _stored(row, head), folder)
  return config, flax.traverse_util.unflatten_dict(params, sep='/')


class _Tensor(NamedTuple):
  """Tensor of a file, under its name there."""

  file: pathlib.Path
  name: str
  shape: tuple[int, ...]


def _tensors(folder: pathlib.Path) -> Iterator[_Tensor]:
  """Yields each tensor; of a sharded model only those that the index lists."""
  for shard, listed in _shard_files(folder).items():
    if not shard.is_file():
      raise FileNotFoundError(
        f'{shard}: no such file. Only safetensors are read: save other formats again '
        'with `model.save_pretrained(folder)` of transformers.'
      )
    with _opened(shard) as file:
      held = set(file.keys())
      if listed is not None and (missing := sorted(listed - held)):
        raise ValueError(
          f'{shard}: lacks the tensor {missing[0]!r}, which must be in this file by {_INDEX}. '
          'Fetch the folder again.'
        )
      for name in sorted(held if listed is None else listed):
        if not name.endswith(_BUFFER):
          yield _Tensor(shard, name, tuple(file.get_slice(name).get_shape()))


@contextlib.contextmanager
def _opened(shard: pathlib.Path) -> Iterator[Any]:
  try:
    with safetensors.safe_open(shard, framework='np') as file:
      yield file
  except safetensors.SafetensorError as error:
    raise ValueError(f'{shard}: damaged ({error}); fetch it again.') from error


def _parameter(row: tensor_names.Name, found: Mapping[str, _Tensor]) -> StoredArray:
  """Returns a parameter, or a stack of experts, from tensors by Hugging Face's names."""
  experts = [_stored(part, found[part.hf]) for part in row.parts]
  if row.parts == (row,):
    return experts[0]

  def part(index: tuple[slice, ...]) -> np.ndarray:
    chosen = experts[index[0]]
    shape = [len(range(*s.indices(n))) for s, n in zip(index, row.shape, strict=True)]
    stack = np.empty(shape, np.float32)
    for i, expert in enumerate(chosen):  # one at a time, without a second copy of the stack
      stack[i] = expert.part(index[1:])
    return stack

  return StoredArray(row.shape, part)


def _stored(row: tensor_names.Name, stored: _Tensor) -> StoredArray:
  where = f'{stored.file}: tensor {stored.name!r}'
  tensor_names.check_shape(row, stored.shape, where)

  def part(index: tuple[slice, ...]) -> np.ndarray:
    asked = [len(range(*s.indices(n))) for s, n in zip(index, row.shape, strict=True)]
    if 0 in asked:  # safetensors refuses empty slices at the end of an axis
      return np.zeros(asked, np.float32)
    with _opened(stored.file) as file:
      tensor = file.get_slice(stored.name)
      try:
        array = tensor[row.stored_index(index)]
      except AttributeError:  # the library looks up a dtype that NumPy does not have
        raise ValueError(
          f'{where} holds numbers of type {tensor.get_dtype()}, which are not read. Quantised '
          'weights must be saved as float32, float16 or bfloat16 first.'
        ) from None
    return tensor_names.to_ours(row, array, where)

  return StoredArray(row.shape, part)


def _tied(embedding: StoredArray, head: StoredArray, folder: pathlib.Path) -> StoredArray:
  """Returns the embedding; reading it raises ValueError where the stored head differs."""

  def part(index: tuple[slice, ...]) -> np.ndarray:
    found = embedding.part(index)
    if not np.array_equal(head.part(index), found):
      raise ValueError(
        f'{folder}: tie_word_embeddings is true, yet {_HEAD} differs from the embedding. '
        'Set tie_word_embeddings to false in config.json.'
      )
    return found

  return StoredArray(embedding.shape, part)


def _shard_files(folder: pathlib.Path) -> Mapping[pathlib.Path, set[str] | None]:
  """Returns the safetensors files of a folder, with the tensors that its index lists for each.

  A single file is read completely (None), also beside an index that an earlier save has left.

  Raises:
    ValueError: The index is damaged, or names a file outside the folder.
  """
  index = folder / _INDEX
  if (folder / _SINGLE).is_file() or not index.is_file():
    return {folder / _SINGLE: None}
  fields = Fields(read_object(index), str(index))
  shards: dict[pathlib.Path, set[str]] = {}
  for name, shard in fields.section('weight_map').values.items():
    if not isinstance(shard, str) or pathlib.PurePath(shard).name != shard:
      raise ValueError(
        f'{index}: weight_map names {shown(shard)}, which is no name of a file in the folder.'
      )
    shards.setdefault(folder / shard, set()).add(name)
  if not shards:
    raise fields.wrong('weight_map', 'tensor names with their files')
  return shards


def export_hf(
  config: ModelConfig,
  params: Mapping[str, Any],
  path: str | os.PathLike[str],
  tokenizer: Tokenizer | None = None,
  max_shard_bytes: int = 4_000_000_000,
) -> None:
  """Writes a folder that `open_hf` and transformers' Auto classes read; float32, exact.

  Args:
    config: Architecture.
    params: Nested dict of float32 arrays, adapters merged.
    path: Output folder; model files in it are replaced.
    tokenizer: Tokenizer to write beside the weights, with its ids in generation_config.json.
    max_shard_bytes: Size above which the weights are split into several files.

  Raises:
    ValueError: The parameters do not fit the architecture.
  """
  folder = pathlib.Path(path)
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  rows = tensor_names.table(config)
  if any(lora.is_adapter(leaf.rpartition('/')[2]) for leaf in flat):
    raise ValueError('the parameters hold LoRA adapters: merge them before the export.')
  tensor_names.check_names({row.ours for row in rows}, set(flat), 'export')
  folder.mkdir(parents=True, exist_ok=True)
  for old in (*folder.glob('model*.safetensors'), folder / _INDEX):
    old.unlink(missing_ok=True)
  joint: dict[str, list[tensor_names.Name]] = {}  # parameters of each tensor
  for part in (part for row in rows for part in row.parts):
    joint.setdefault(part.hf, []).append(part)
  shards = huggingface_hub.split_state_dict_into_shards_factory(
    joint,
    get_storage_size=lambda parts: sum(4 * math.prod(part.shape) for part in parts),
    filename_pattern='model{suffix}.safetensors',
    max_shard_size=max_shard_bytes,
  )
  for file, names in shards.filename_to_tensors.items():
    tensors = {name: _joined([_to_hf(x, flat[x.ours]) for x in joint[name]]) for name in names}
    safetensors.numpy.save_file(tensors, folder / file, metadata={'format': 'pt'})
  if shards.is_sharded:
    index = {'metadata': shards.metadata, 'weight_map': shards.tensor_to_filename}
    write_object(folder / _INDEX, index)
  hf = config_to_hf(config)
  if tokenizer is not None:
    tokenizer.save(folder)
    ends = tokenizer.end_ids
    ids = {
      'bos_token_id': tokenizer.bos_id,
      'eos_token_id': ends if len(ends) > 1 else ends[0],
      'pad_token_id': tokenizer.pad_id,
    }
    ids = {key: value for key, value in ids.items() if value is not None}
    write_object(folder / 'generation_config.json', ids)
    hf |= ids
  write_object(folder / 'config.json', hf)


def _to_hf(row: tensor_names.Name, array: Any) -> np.ndarray:
  array = np.asarray(array if row.expert is None else array[row.expert])
  if array.shape != row.shape or array.dtype != np.float32:
    raise ValueError(
      f'export: {row.ours} is {array.dtype}{list(array.shape)}, expected float32{list(row.shape)}.'
    )
  return np.ascontiguousarray(array.T if row.transposed else array)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
  return parts[0] if len(parts) == 1 else np.concatenate(parts)
