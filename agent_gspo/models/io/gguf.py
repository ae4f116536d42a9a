"""Reads weights, dequantized to float32, and metadata of GGUF files (llama.cpp's format).

Runs that read other formats need not import this module, nor the `gguf` package.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util
import gguf
import numpy as np

from agent_gspo.models import rope
from agent_gspo.models.config import MAX_LAYERS, ModelConfig, RopeScaling, SlidingWindow
from agent_gspo.models.families import FAMILIES, Family
from agent_gspo.models.io import tensor_names
from agent_gspo.models.io.fields import Fields, named
from agent_gspo.models.io.stored import StoredArray, split_files
from agent_gspo.values import shown

_ROPE_FACTORS = 'rope_freqs.weight'
_ROPE_FACTOR = 'rope.scaling.factor'
_ROPE_OF_GEMMA = ('rope.freq_base_swa', _ROPE_FACTOR)
# RoPE keys -> values without effect in llama.cpp.
_ROPE_NEUTRAL = {
  'rope.scaling.type': ('none', 'linear'),  # linear, the default, has no effect without a factor
  _ROPE_FACTOR: (0, 1),
  'rope.scale_linear': (0, 1),
  'rope.scaling.attn_factor': (1,),
  'rope.scaling.finetuned': (False,),
}


@dataclasses.dataclass(frozen=True)
class GGUFModel:
  """Architecture, metadata and parameters of one file."""

  config: ModelConfig
  metadata: dict[str, Any]  # keys of the tokenizer begin with `tokenizer.`
  params: dict[str, Any]  # nested dict of `StoredArray`s


class _Reader(gguf.GGUFReader):
  """Reader that reads an array of the metadata at once.

  The package makes one NumPy view per element: 2 s for a vocabulary of 49,152 tokens.
  """

  def _get_field_parts(self, orig_offs, raw_type):
    if raw_type != gguf.GGUFValueType.ARRAY:
      return super()._get_field_parts(orig_offs, raw_type)
    if self.byte_order != 'I':
      raise ValueError('big-endian files are not read')
    raw = self.data.data
    kind, count = struct.unpack_from('<IQ', raw, orig_offs)
    types, at = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)], orig_offs + 12
    if kind in self.gguf_scalar_to_np:
      numbers = self._get(at, self.gguf_scalar_to_np[kind], count)
      if len(numbers) < count:
        raise ValueError('the file ends within an array')
      return at + numbers.nbytes - orig_offs, [numbers], [0], types
    if kind != gguf.GGUFValueType.STRING:
      raise ValueError('arrays of arrays are not read')
    texts = []
    for _ in range(count):
      (size,) = struct.unpack_from('<Q', raw, at)
      texts.append(raw[at + 8 : at + 8 + size])
      at += 8 + size
    return at - orig_offs, texts, range(count), types


def open_gguf(file: str | os.PathLike[str]) -> GGUFModel:
  """Reads the header of a file of one of the `FAMILIES`.

  Raises:
    FileNotFoundError: The file, or a part of a split one, is missing.
    ValueError: The file is not GGUF, damaged or of another architecture, or its tensors do not fit
      the metadata; when parameters are read, also: weights are not finite.
  """
  paths = split_files(pathlib.Path(file))
  path, (metadata, tensors) = paths[0], _opened(paths[0])
  if (count := metadata.get('split.count') or 1) != len(paths):
    raise ValueError(
      f'{path}: is one of {shown(count)} parts, yet its name tells of {len(paths)}. Parts must lie '
      'side by side, named as `llama-gguf-split` does (NAME-00001-of-00003.gguf).'
    )
  for i, other in enumerate(paths[1:], 1):
    own, more = _opened(other)
    if own.get('split.no') != i or tensors.keys() & more.keys():
      raise ValueError(f'{other}: is not part {i + 1} of {path}; fetch the files again.')
    tensors |= more
  factors = tensors.pop(_ROPE_FACTORS, None)
  config = config_from_gguf(metadata, tied='output.weight' not in tensors, where=str(path))
  if factors is not None:
    config = _scaled(config, _dequantized(factors, str(path)), str(path))
  rows = tensor_names.table(config)
  names = _names(config, rows)
  tensor_names.check_names(set(names), set(tensors), str(path))
  params = {
    row.ours: _stored(config, row, path, tensors[name])
    for row, name in zip(rows, names, strict=True)
  }
  return GGUFModel(config, metadata, flax.traverse_util.unflatten_dict(params, sep='/'))


def _opened(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, gguf.ReaderTensor]]:
  """Returns the metadata and the tensors of one file."""
  if not path.is_file():
    raise FileNotFoundError(f'{path}: no such GGUF file. Give the path of a .gguf file.')
  try:
    reader = _Reader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    _check_layout(reader)
  except Exception as error:  # the package checks little: a damaged file may raise anything
    raise ValueError(
      f'{path}: not a GGUF file, or damaged ({error}); fetch the file again.'
    ) from error
  return metadata, {tensor.name: tensor for tensor in reader.tensors}


def _check_layout(reader: _Reader) -> None:
  """Raises ValueError unless tensors follow one another and fill the file."""
  alignment, at = int(reader.alignment), reader.data_offset
  for tensor in reader.tensors:
    if tensor.data_offset != at:
      raise ValueError(f'tensor {tensor.name!r} does not begin where the one before it ends')
    at += -(-tensor.n_bytes // alignment) * alignment
  if len(reader.data) > at:
    raise ValueError(f'{len(reader.data) - at} bytes follow the last tensor')


def _names(config: ModelConfig, rows: Sequence[tensor_names.Name]) -> list[str]:
  """Returns the names of parameters in GGUF files, by the package's own table."""
  family = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == config.spec.gguf)
  names = gguf.get_tensor_name_map(family, config.num_layers)
  return [names.get_name(row.hf, try_suffixes=('.weight', '.bias')) or row.hf for row in rows]


def _stored(
  config: ModelConfig, row: tensor_names.Name, path: pathlib.Path, tensor: gguf.ReaderTensor
) -> StoredArray:
  where = f'{path}: tensor {tensor.name!r}'
  tensor_names.check_shape(row, _shape(tensor), where)

  def part(index: tuple[slice, ...]) -> np.ndarray:
    array = _dequantized(tensor, where)
    if config.spec.gguf_pairs and row.ours.endswith(('/q/kernel', '/k/kernel')):
      heads = config.num_heads if '/q/' in row.ours else config.num_kv_heads
      array = _unpermute(array, heads)
    if row.ours.endswith('/scale'):  # llama.cpp stores the factor itself
      array = array - np.float32(config.spec.norm_offset)
    return tensor_names.to_ours(row, array[row.stored_index(index)], where)

  return StoredArray(row.shape, part)


def _shape(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
  """Returns the shape, outermost axis first (the file lists it innermost first)."""
  return tuple(tensor.shape[::-1].tolist())


def _dequantized(tensor: gguf.ReaderTensor, where: str) -> np.ndarray:
  """Reads a tensor as float32 of its `_shape`."""
  shape = _shape(tensor)
  # gguf works through 16 rows at a time: joined rows mean fewer, larger numpy calls.
  rows = math.prod(shape[:-1])
  rows = rows // 8 if rows % 8 == 0 else rows
  data = np.array(tensor.data)  # a copy: `tensor.data` is a view of the mapped file
  try:
    array = gguf.quants.dequantize(data.reshape(rows, -1), tensor.tensor_type)
  except NotImplementedError as error:
    raise ValueError(
      f'{where}: tensors of type {tensor.tensor_type.name} are not supported.'
    ) from error
  return array.reshape(shape)


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
  """Reorders interleaved rotary pairs (llama.cpp's layout) to halves, in rows `[heads * hd, D]`."""
  rows, width = weight.shape
  pairs = weight.reshape(heads, rows // heads // 2, 2, width)
  return pairs.swapaxes(1, 2).reshape(rows, width)


def _scaled(config: ModelConfig, factors: np.ndarray, where: str) -> ModelConfig:
  """Returns the config whose Llama 3 scaling divides the frequencies by `factors` `[hd / 2]`.

  Raises:
    ValueError: The factors are not Llama 3's (bands 1 and 4 of 8,192 positions).
  """
  if factors.shape == (config.head_dim // 2,) and 1 <= factors.min() <= factors.max() < np.inf:
    scaled = config.replace(rope_scaling=RopeScaling(float(factors.max()), 1.0, 4.0, 8192))
    if np.allclose(rope.frequencies(config) / factors, rope.frequencies(scaled), rtol=1e-4):
      return scaled
  raise ValueError(
    f'{where}: the tensor {_ROPE_FACTORS} is not a Llama 3 scaling; use hf:<folder>.'
  )


def config_from_gguf(metadata: dict[str, Any], tied: bool, where: str) -> ModelConfig:
  """Returns the architecture in a file's metadata; `tied`: there is no tensor `output.weight`.

  Raises:
    ValueError: The architecture or its RoPE scaling is unknown, or a key is missing or invalid.
  """
  architecture = metadata.get('general.architecture')
  families = {spec.gguf: family for family, spec in FAMILIES.items() if spec.gguf}
  if architecture not in families:
    raise ValueError(
      f'{where}: general.architecture={shown(architecture)} is not supported, only '
      f'{", ".join(families)}. Load the same model as hf:<folder>.'
    )
  family, prefix = families[architecture], f'{architecture}.'
  own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
  fields = Fields(own, f'{where}: the metadata', prefix)
  gemma = FAMILIES[family].windows == 'some'
  for key, value in own.items():
    read = ('rope.freq_base', 'rope.dimension_count', *_ROPE_OF_GEMMA * gemma)
    if key.startswith('rope.') and key not in read and value not in _ROPE_NEUTRAL.get(key, ()):
      raise fields.wrong(key, 'absent or without effect: this scaling is not read; use hf:<folder>')
  if fields.get('attention.causal', True) is not True:
    raise fields.wrong('attention.causal', 'absent or true; only causal models are supported')
  if fields.whole('expert_count', 0, low=0):
    raise ValueError(f'{where}: mixtures of experts are not supported.')
  tokens = metadata.get('tokenizer.ggml.tokens')
  if not isinstance(tokens, list) or not tokens:
    raise ValueError(f'{where}: the metadata lacks tokenizer.ggml.tokens, hence the vocabulary.')
  width, heads = fields.whole('embedding_length'), fields.whole('attention.head_count')
  head_dim = fields.whole('attention.key_length', max(width // heads, 1))
  if fields.whole('rope.dimension_count', head_dim) != head_dim:
    raise ValueError(f'{where}: partial rotary embeddings are not supported.')
  eps = np.float32(fields.number('attention.layer_norm_rms_epsilon', high=1.0))
  shape: dict[str, Any] = {
    'vocab_size': len(tokens),
    'num_layers': fields.whole('block_count', high=MAX_LAYERS),
    'embed_dim': width,
    'num_heads': heads,
    'num_kv_heads': fields.whole('attention.head_count_kv', heads),
    'head_dim': head_dim,
    'mlp_dim': fields.whole('feed_forward_length'),
    'rope_theta': fields.number('rope.freq_base', 10_000.0, low=1.0),
    'norm_eps': float(str(eps)),  # through text: 1e-05, not float32's 9.999999747378752e-06
    'max_positions': fields.whole('context_length'),
  }
  if gemma:
    shape |= _gemma(fields, FAMILIES[family], shape)
  return named(where, lambda: ModelConfig(family, tie_embeddings=tied, **shape))


def _gemma(fields: Fields, spec: Family, shape: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the `ModelConfig` fields of Gemma alone, most of which files do not store."""
  layers, every = shape['num_layers'], spec.defaults['sliding_window_pattern']
  near = tuple((i + 1) % every > 0 for i in range(layers))
  theta = fields.number('rope.freq_base_swa', spec.defaults['rope_local_base_freq'])
  if fields.whole('attention.sliding_window_pattern', every) != every:
    raise fields.wrong('attention.sliding_window_pattern', f'{every}; use hf:<folder>')
  width, factor = fields.whole('attention.sliding_window'), fields.number(_ROPE_FACTOR, 1.0)
  # llama.cpp's rule: the largest model, of 62 layers, scales by the width instead.
  scalar = shape['embed_dim'] // shape['num_heads'] if layers == 62 else shape['head_dim']
  return {
    'sliding': SlidingWindow(width, near, theta),
    'rope_scaling': None if factor == 1 else RopeScaling(factor),
    'query_scalar': scalar,
    'logit_cap': fields.optional('final_logit_softcapping'),
  }
