"""Makes malformed models in several files: indexed shards; adapters; rope sections."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import fuzz_weights
import raw_gguf
from fuzzing import Case

_INDEX = 'model.safetensors.index.json'
_ODD = (-1, 2, 3, 7, 2**16 - 1)


def _shards(files: dict[str, bytes]) -> None:
  """Adds an index and a second file; each tensor is in both, and read from one by turns."""
  files['b.safetensors'] = files['a.safetensors'] = files.pop('model.safetensors')
  names = [name for name in _header(files['a.safetensors']) if name != '__metadata__']
  weight_map = {name: f'{"ab"[i % 2]}.safetensors' for i, name in enumerate(names)}
  files[_INDEX] = json.dumps({'weight_map': weight_map}).encode()


def _header(data: bytes) -> dict[str, Any]:
  return json.loads(data[8 : 8 + int.from_bytes(data[:8], 'little')])


def _index_cases() -> Iterator[Case]:
  def case(name: str, change: Callable[[dict[str, bytes]], Any], invalid: bool, *mentions) -> Case:
    def both(files):
      _shards(files)
      change(files)

    return fuzz_weights._hf(f'index: {name}', both, invalid, *mentions)

  norm = 'model.norm.weight'
  put = lambda value, name=norm: fuzz_weights._json_field(_INDEX, ('weight_map', name), value)
  yield case('untouched, every tensor twice', lambda files: None, False)
  stale = lambda files: files.update({'model.safetensors': b'stale', 'c.safetensors': b''})
  yield case('untouched, other files beside', stale, False)
  for file in ('c.safetensors', '', '.', '..', '../a.safetensors', '/a', 'x/a.safetensors', '\0'):
    yield case(f'{norm} in {file!r}', put(file), True, 'weight_map', 'no such file', 'folder')
  for value in (None, 3, True, [], {}, ['a.safetensors']):
    yield case(f'{norm} in {value!r}', put(value), True, 'weight_map')
  for name in ('x', '', 'model.norm.bias', 'model.layers.7.input_layernorm.weight'):
    yield case(f'{name!r} that no file holds', put('a.safetensors', name), True, 'safetensors')
  for file in ('a.safetensors', 'b.safetensors'):
    yield case(f'{file} missing', lambda files, file=file: files.pop(file), True, file)
    for content in (b'', b'\0' * 40, b'x' * 99):
      change = lambda files, file=file, content=content: files.update({file: content})
      yield case(f'{file} is {content[:1]!r} {len(content)} times', change, True, file)
  for name in _header(fuzz_weights._folder()['model.safetensors']):
    if name == '__metadata__':
      continue

    def forget(files, name=name):
      index = json.loads(files[_INDEX])
      del index['weight_map'][name]
      files[_INDEX] = json.dumps(index).encode()

    def lose(files, name=name):
      file = json.loads(files[_INDEX])['weight_map'][name]
      header = _header(files[file])
      body = files[file][8 + int.from_bytes(files[file][:8], 'little') :]
      header[f'{name}.x'] = header.pop(name)
      text = json.dumps(header).encode()
      files[file] = len(text).to_bytes(8, 'little') + text + body

    yield case(f'{name} not listed', forget, True, name)
    yield case(f'{name} not in its file', lose, True, name)


def _adapter_cases() -> Iterator[Case]:
  file, weights = 'adapter_config.json', 'adapter_model.safetensors'
  for base in ('owner/base', None, 3, '', [], '\n', 'x' * 999):
    content = json.dumps({'peft_type': 'LORA', 'base_model_name_or_path': base}).encode()
    for beside in (True, False):

      def change(files, content=content, beside=beside):
        if not beside:
          files.clear()
        files.update({file: content, weights: b''})

      yield fuzz_weights._hf(f'adapter of {base!r:.20}, {beside}', change, True, 'an adapter of')
  for content in fuzz_weights._NO_OBJECTS:
    change = fuzz_weights._content(file, content)
    yield fuzz_weights._hf(f'{file}: {content[:20]!r}', change, True, file)
  for name in (weights, 'adapter_model.bin'):
    change = lambda files, name=name: (files.pop('config.json'), files.update({name: b''}))
    yield fuzz_weights._hf(f'{name} alone', change, True, 'an adapter of')


_FULL = {'rope_type': 'default', 'rope_theta': 5e5}
_VALUES = ('x', [], {}, -1.0, 0, math.nan, math.inf, True, [1e4], {'x': 1})


def _rope_sections() -> Iterator[tuple[Any, bool]]:
  """Yields sections, and whether each must be refused."""
  yield _FULL, False
  yield {'full_attention': _FULL}, False
  yield {'full_attention': _FULL, 'sliding_attention': _FULL}, False
  yield {'full_attention': _FULL, 'sliding_attention': {**_FULL, 'rope_theta': 1e4}}, True
  yield {'sliding_attention': _FULL}, True
  yield {'global': _FULL}, True
  for beside in (1e4, 'x', None, {}, []):
    yield {'full_attention': _FULL, 'rope_theta': beside}, beside is not None
  yield {'type': 'linear'}, True  # without a factor
  for kind in ('dynamic', 'yarn', 'longrope', 'proportional', 'axial', 'mrope', 'su', ''):
    for section in ({'rope_type': kind, 'factor': 2.0}, {'type': kind}):
      yield section, True
      yield {'full_attention': section}, True
  for key in (
    *(
      'factor',
      'attention_factor',
      'beta_fast',
      'beta_slow',
      'mscale',
      'truncate',
      'theta',
      'base',
    ),
    *('mrope_section', 'short_factor', 'long_factor', 'low_freq_factor', 'ROPE_THETA', ''),
  ):
    for value in (1, 2.0, False, [2, 2], 'x', {}):
      yield {**_FULL, key: value}, True
    yield {'full_attention': {**_FULL, key: 1}}, True
  for value in _VALUES:
    yield {'rope_theta': value}, True
    yield {'full_attention': value}, value != {}
    yield {'full_attention': {'rope_theta': value}}, True
    yield {'full_attention': _FULL, 'sliding_attention': value}, True
  yield {'type': 'default', 'rope_type': 'llama3'}, True
  yield {'full_attention': {'full_attention': _FULL}}, True


def _rope_cases() -> Iterator[Case]:
  for field in ('rope_parameters', 'rope_scaling'):
    for section, invalid in _rope_sections():
      change = fuzz_weights._json_field('config.json', (field,), section)
      yield fuzz_weights._hf(f'{field}={section!r}', change, invalid, field)
  for field in ('rope_interleaved', 'rope_local_base_freq', 'rope_type', 'rope_ratio'):
    for value in (True, 1e4, 'x', [1]):
      change = fuzz_weights._json_field('config.json', (field,), value)
      yield fuzz_weights._hf(f'{field}={value!r}', change, True, field)
  for key, values in {
    'rope.scaling.type': ('yarn', 'longrope', '', 'NONE'),
    'rope.scaling.factor': (2.0, 0.5, -1.0, math.nan, math.inf),
    'rope.scale_linear': (4.0, -1.0),
    'rope.scaling.attn_factor': (0.0, 2.0),
    'rope.scaling.yarn_beta_fast': (1.0,),
    'rope.freq_base_swa': (1e4,),
    'rope.zzz': (0.0, ''),
  }.items():
    for value in values:
      kind = raw_gguf.STRING if isinstance(value, str) else raw_gguf.FLOAT32

      def put(file, key=f'llama.{key}', kind=kind, value=value):
        file.metadata[key] = kind, value

      yield fuzz_weights._gguf(f'{key}={value!r}', put, True, key)


def cases(seed: int = 0) -> list[Case]:
  """Returns the cases of models in several files, of adapters and of rope sections."""
  return [*_index_cases(), *_adapter_cases(), *_rope_cases()]
