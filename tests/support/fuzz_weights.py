"""Defines malformed weights and tokenizers: GGUF files, Hugging Face folders, chat templates."""

from __future__ import annotations

import copy
import functools
import json
import math
import pathlib
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import fuzz_configs
import micro_run
import numpy as np
import raw_gguf
from fuzzing import Case

from agent_gspo.models import load
from agent_gspo.models.io import hf

_TEXT = 'ab\n 12 <|end|> é'


def _read(model: load.Model) -> None:
  """Uses a tokenizer as the start of a run does; checks that guarded text has no special token."""
  tokenizer = model.tokenizer
  tokenizer.decode(tokenizer.encode(_TEXT))
  _ = tokenizer.fingerprint
  added = tokenizer.backend.get_added_tokens_decoder()
  ids = tokenizer.encode(f'{_TEXT}{tokenizer.guarded(_TEXT)}')[len(tokenizer.encode(_TEXT)) :]
  if any(added[i].special for i in ids if i in added):
    raise AssertionError(f'{ids} holds a special token')


def _model(
  name: str, write: Callable[[pathlib.Path], str], invalid: bool, mentions: tuple[str, ...]
) -> Case:
  """Returns a case whose model `write` writes; `write` returns the source."""

  def command(folder: pathlib.Path) -> list[str]:
    source = write(folder)
    micro = f'--config={micro_run.CONFIG}'
    return ['train', micro, f'--workdir={folder}/new', f'--config.model.source={source}']

  return Case(
    name, lambda folder: _read(load.load_model(write(folder))), invalid, mentions, command
  )


# GGUF

_NEEDED = (
  *('general.architecture', 'llama.block_count', 'llama.context_length', 'llama.embedding_length'),
  *('llama.feed_forward_length', 'llama.attention.head_count', 'llama.attention.head_count_kv'),
  *('llama.attention.layer_norm_rms_epsilon', 'tokenizer.ggml.model', 'tokenizer.ggml.pre'),
  *('tokenizer.ggml.tokens', 'tokenizer.ggml.token_type', 'tokenizer.ggml.merges'),
  'tokenizer.ggml.eos_token_id',
)
_VALUES = (
  (raw_gguf.STRING, ''),
  (raw_gguf.STRING, 'zzz'),
  (raw_gguf.STRING, struct.pack('<Q', 3) + b'\xff\xfe\xfd'),
  (raw_gguf.INT32, -1),
  (raw_gguf.INT32, -(2**31)),
  (raw_gguf.UINT32, 2**32 - 1),
  (raw_gguf.UINT64, 2**64 - 1),
  (raw_gguf.FLOAT32, math.nan),
  (raw_gguf.FLOAT32, math.inf),
  (raw_gguf.FLOAT32, -1.0),
  (raw_gguf.FLOAT64, 1e300),
  (raw_gguf.BOOL, True),
  (raw_gguf.ARRAY, (raw_gguf.INT32, [1, 2])),
  (raw_gguf.ARRAY, (raw_gguf.STRING, ['a'])),
  (raw_gguf.ARRAY, (raw_gguf.FLOAT32, [math.nan] * 260)),
  (raw_gguf.ARRAY, (raw_gguf.INT32, [])),
  (raw_gguf.ARRAY, struct.pack('<IQ', raw_gguf.ARRAY, 2**62)),
  (raw_gguf.ARRAY, struct.pack('<IQ', raw_gguf.STRING, 2**62)),
  (99, b''),
)


def _gguf(name: str, damage: Callable[[raw_gguf.File], None], invalid: bool, *mentions) -> Case:
  def data():
    file = raw_gguf.valid()
    damage(file)
    return file.data()

  return _gguf_bytes(name, data, invalid, *mentions)


def _gguf_bytes(name: str, data: Callable[[], bytes], invalid: bool, *mentions) -> Case:
  def write(folder: pathlib.Path) -> str:
    (folder / 'm.gguf').write_bytes(data())
    return f'gguf:{folder}/m.gguf'

  return _model(name, write, invalid, mentions)


def _gguf_metadata() -> Iterator[Case]:
  valid = raw_gguf.valid()
  for key in valid.metadata:
    mentions = (key.removeprefix('llama.'), 'vocabulary')
    missing = lambda file, key=key: file.metadata.pop(key)
    if key == 'llama.attention.head_count_kv':  # then there are as many as heads
      mentions = ('attn_k', 'attn_v')
    yield _gguf(f'{key} deleted', missing, key in _NEEDED, *mentions)
    for kind, value in _VALUES:
      if key == 'tokenizer.chat_template' and kind == raw_gguf.STRING and isinstance(value, str):
        continue  # another template; only agents that chat would read it

      def change(file, key=key, kind=kind, value=value):
        file.metadata[key] = kind, value

      # A large whole number is a base as good as any.
      fine = key == 'llama.rope.freq_base' and kind in (raw_gguf.UINT32, raw_gguf.UINT64)
      # A damage may show elsewhere: another width is told by the tensors that have it.
      yield _gguf(f'{key}: {kind}, {value!r:.40}', change, not fine, 'm.gguf')
  for field in ('num_keys', 'num_tensors', 'version'):
    for value in (0, 1, 5, 14, 25, 2**31, 2**32 - 1):
      right = field == 'version' and value in (2, 3)

      def count(file, field=field, value=value):
        setattr(file, field, value)

      yield _gguf(f'{field}={value}', count, not right, 'm.gguf')


def _gguf_tensors() -> Iterator[Case]:
  valid = raw_gguf.valid()
  bad_floats = (math.nan, math.inf, -math.inf)
  for name, tensor in valid.tensors.items():
    size = math.prod(tensor.dims)

    def case(what, invalid=True, name=name, **fields):
      def change(file):
        for field, value in fields.items():
          setattr(file.tensors[name], field, value)

      return _gguf(f'{name}: {what}', change, invalid, name, 'm.gguf')

    for dims in (
      *([], [0], [size], [*tensor.dims, 1], [*tensor.dims, 1, 1, 1], [1] * 9, [2**63, 2]),
      *([2**64 - 1], [2**32, 2**32], [2**40], [size + 1], [1, size], [7, *tensor.dims[1:]]),
    ):
      if dims != tensor.dims:
        yield case(f'dims={dims}', dims=dims)
    for kind in (1, 2, 3, 4, 5, 7, 8, 10, 14, 16, 24, 25, 26, 27, 28, 30, 31, 99, 2**32 - 1):
      yield case(f'kind={kind}', kind=kind)
    for offset in (1, 16, 2**20, 2**40, 2**64 - 32, 2**64 - 1):
      yield case(f'offset={offset}', offset=offset)
    for bad in bad_floats:
      data = bytearray(tensor.data)
      struct.pack_into('<f', data, 4 * (size // 2), bad)
      yield case(f'holds {bad}', data=bytes(data))
    yield case('no bytes', data=b'')
    yield _gguf(f'{name}: deleted', lambda file, name=name: file.tensors.pop(name), True, name)

    def rename(file, name=name):
      file.tensors[f'{name}.x'] = file.tensors.pop(name)

    yield _gguf(f'{name}: renamed', rename, True, name)


def _gguf_bytes_changed(rng: random.Random) -> Iterator[Case]:
  valid = raw_gguf.valid().data()
  header = len(valid) - sum(len(t.data) + 31 for t in raw_gguf.valid().tensors.values())
  places = [*range(64), *rng.sample(range(64, len(valid)), 60)]
  for end in places:
    yield _gguf_bytes(f'the first {end} bytes', lambda end=end: valid[:end], True, 'm.gguf')
  for i in range(150):
    at, bit = rng.randrange(header), rng.randrange(8)

    def flip(at=at, bit=bit):
      data = bytearray(valid)
      data[at] ^= 1 << bit
      return bytes(data)

    yield _gguf_bytes(f'flip {i}: bit {bit} of byte {at}', flip, False)
  for i in range(60):
    at, new = rng.randrange(header), rng.randbytes(rng.choice((1, 2, 4, 8, 64)))

    def paste(at=at, new=new):
      return valid[:at] + new + valid[at + len(new) :]

    yield _gguf_bytes(f'paste {i}: {len(new)} bytes at {at}', paste, False)
  for i in range(10):
    noise = rng.randbytes(rng.randrange(200))
    yield _gguf_bytes(f'noise {i}', lambda noise=noise: noise, True, 'm.gguf')
    yield _gguf_bytes(f'GGUF and noise {i}', lambda noise=noise: b'GGUF' + noise, True, 'm.gguf')


def gguf_cases(seed: int = 0) -> list[Case]:
  """Returns cases of GGUF files."""
  rng = random.Random(f'{seed}/gguf')
  untouched = _gguf('untouched', lambda file: None, False)
  return [untouched, *_gguf_metadata(), *_gguf_tensors(), *_gguf_bytes_changed(rng)]


# Hugging Face folders


@functools.cache
def _folder() -> dict[str, bytes]:
  """Returns the files of a small model with a byte-level tokenizer."""
  with tempfile.TemporaryDirectory() as scratch:
    file = pathlib.Path(scratch, 'm.gguf')
    file.write_bytes(raw_gguf.valid().data())
    model = load.load_model(f'gguf:{file}')
    out = pathlib.Path(scratch, 'out')
    hf.export_hf(model.config, model.params, out, model.tokenizer)
    return {path.name: path.read_bytes() for path in out.iterdir()}


def _hf(name: str, change: Callable[[dict[str, bytes]], None], invalid: bool, *mentions) -> Case:
  def write(folder: pathlib.Path) -> str:
    files = dict(_folder())
    change(files)
    for file, content in files.items():
      (folder / file).write_bytes(content)
    return f'hf:{folder}'

  return _model(name, write, invalid, mentions)


def _json_field(file: str, path: tuple, value: Any) -> Callable[[dict[str, bytes]], None]:
  def change(files):
    content = json.loads(files.get(file, b'{}'))
    *parents, last = path
    functools.reduce(lambda at, key: at[key], parents, content)[last] = value
    files[file] = json.dumps(content).encode()

  return change


def _content(file: str, content: bytes) -> Callable[[dict[str, bytes]], None]:
  return lambda files: files.update({file: content})


_NO_OBJECTS = (
  *(b'', b'{', b'[]', b'3', b'null', b'"x"', b'\xff\xfe', b'{"a": 1', b'{"a": 1}}', b'[' * 99999),
  *(b'\0' * 50, b'{"a": ' + b'9' * 5000 + b'}', b'{"a": ' * 5000),
)
_NUMBERS = ('x', True, [], {}, 1.5, 0, -1, 10**12, 10**30, math.nan, math.inf, '8', [8])
_WHOLE = (
  *('vocab_size', 'num_hidden_layers', 'hidden_size', 'num_attention_heads'),
  *('num_key_value_heads', 'head_dim', 'intermediate_size', 'max_position_embeddings'),
)
_FLOATS = ('x', True, [], {}, 0, -1.0, math.nan, math.inf, -math.inf, 1e39, 1e-60, 10**400)


def _hf_config() -> Iterator[Case]:
  file = 'config.json'
  for content in _NO_OBJECTS:
    yield _hf(f'{file}: {content[:20]!r}', _content(file, content), True, file)
  for field in _WHOLE:
    for value in _NUMBERS:
      case = f'{file}: {field}={value!r:.20}'
      yield _hf(case, _json_field(file, (field,), value), True, field)
    for value in (7, 9, 33):
      if field != 'max_position_embeddings':
        case = f'{file}: {field}={value}'
        yield _hf(case, _json_field(file, (field,), value), True)
  for field in ('rope_theta', 'rms_norm_eps'):
    for value in _FLOATS:
      value = 10**39 if value == 10**400 else value
      case = f'{file}: {field}={value!r:.20}'
      yield _hf(case, _json_field(file, (field,), value), True, field)
  llama3 = {
    'rope_type': 'llama3',
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 512,
  }
  for section in ('rope_scaling', 'rope_parameters'):
    for value in ([1], 'x', 3, {'rope_type': 'yarn'}, {'rope_type': ['llama3']}, {'type': 3}):
      yield _hf(f'{file}: {section}={value!r}', _json_field(file, (section,), value), True, section)
    for field in llama3:
      for value in ('x', None, [], True, 0, -1, math.nan, math.inf):
        if field == 'rope_type' and value is None:
          continue
        case = f'{file}: {section}.{field}={value!r}'
        change = _json_field(file, (section,), {**llama3, field: value})
        yield _hf(case, change, True, field)
  for field, values in {
    'model_type': (None, 3, [], {}, 'gpt2', 'LLAMA', ['llama']),
    'hidden_act': (3, 'gelu', ['silu'], {}),
    'tie_word_embeddings': ('no', 0, 1, []),
    'quantization_config': ({'bits': 4}, 'x', 1),
    'attention_bias': (True, 'x'),
    'mlp_bias': (True, 1),
    'layer_types': (3, 'x', {}, ['x'], [3], [[]], [{}]),
    'partial_rotary_factor': (0.5, 'x', []),
    'sliding_window': (4096, 'x'),
  }.items():
    for value in values:
      if field == 'tie_word_embeddings' and value == []:
        continue
      right = field == 'layer_types' and value == {}
      case = f'{file}: {field}={value!r}'
      yield _hf(case, _json_field(file, (field,), value), not right, field)


def _safetensors(files: dict[str, bytes]) -> tuple[dict[str, Any], bytes]:
  data = files['model.safetensors']
  (size,) = struct.unpack('<Q', data[:8])
  return json.loads(data[8 : 8 + size]), data[8 + size :]


def _with_header(files: dict[str, bytes], header: Any, body: bytes) -> None:
  text = json.dumps(header).encode()
  files['model.safetensors'] = struct.pack('<Q', len(text)) + text + body


def _hf_weights(rng: random.Random) -> Iterator[Case]:
  file = 'model.safetensors'
  whole = _folder()[file]
  header, body = _safetensors(_folder())
  tensors = [name for name in header if name != '__metadata__']
  for name in tensors:
    begin, end = header[name]['data_offsets']

    def case(what, invalid=True, name=name, **fields):
      def change(files):
        _with_header(files, {**header, name: {**header[name], **fields}}, body)

      return _hf(f'{name}: {what}', change, invalid, file, name)

    kinds = (
      'F64',
      'F16',
      'BF16',
      'I32',
      'U32',
      'I64',
      'BOOL',
      'F8_E4M3',
      'F8_E5M2',
      'C64',
      'zzz',
      3,
    )
    for kind in kinds:
      yield case(f'dtype={kind}', dtype=kind)
    for shape in (
      [],
      [0],
      [-1],
      [1],
      [2**62],
      [2**64],
      'x',
      None,
      [1.5],
      header[name]['shape'] + [1],
    ):
      yield case(f'shape={shape}', shape=shape)
    for offsets in ([end, begin], [begin], [begin, end + 4], [0, 2**63], [-1, 3], 'x', None):
      yield case(f'offsets={offsets}', data_offsets=offsets)
    for bad in (math.nan, math.inf, -math.inf):

      def poison(files, begin=begin, bad=bad):
        data = bytearray(body)
        struct.pack_into('<f', data, begin, bad)
        _with_header(files, header, bytes(data))

      yield _hf(f'{name}: holds {bad}', poison, True, name)
    # Numbers of other types, and as many bytes as they need.
    for kind, dtype in (('I32', np.int32), ('U32', np.uint32)):

      def retype(files, name=name, kind=kind, begin=begin, end=end, dtype=dtype):
        data = body[:begin] + np.ones((end - begin) // 4, dtype).tobytes() + body[end:]
        _with_header(files, {**header, name: {**header[name], 'dtype': kind}}, data)

      yield _hf(f'{name}: {kind} numbers', retype, True, name)

    def missing(files, name=name):
      _with_header(files, {k: v for k, v in header.items() if k != name}, body)

    yield _hf(f'{name}: deleted', missing, True, name, file)

    def rename(files, name=name):
      changed = {(k if k != name else f'{k}.x'): v for k, v in header.items()}
      _with_header(files, changed, body)

    yield _hf(f'{name}: renamed', rename, True, name)
  for end in (*range(20), *rng.sample(range(20, len(whole)), 40)):
    change = lambda files, end=end: files.update({file: whole[:end]})
    yield _hf(f'{file}: the first {end} bytes', change, True, file)
  for i in range(60):
    at, bit = rng.randrange(len(whole) - len(body)), rng.randrange(8)

    def flip(files, at=at, bit=bit):
      data = bytearray(whole)
      data[at] ^= 1 << bit
      files[file] = bytes(data)

    yield _hf(f'{file}: bit {bit} of byte {at} ({i})', flip, False)
  for i in range(5):
    noise = rng.randbytes(rng.randrange(200))
    yield _hf(f'{file}: noise {i}', _content(file, noise), True, file)
  for missing in ('config.json', file, 'tokenizer.json'):
    change = lambda files, missing=missing: files.pop(missing)
    yield _hf(f'{missing} deleted', change, True, missing)


def _hf_index() -> Iterator[Case]:
  file, shard = 'model.safetensors.index.json', 'model-00001-of-00001.safetensors'
  name = 'model.norm.weight'

  def damaged(case, change, *mentions):
    def sharded(files):  # an index beside a single file is not read
      files[shard] = files.pop('model.safetensors')
      change(files)

    return _hf(case, sharded, True, *mentions)

  for content in _NO_OBJECTS:
    yield damaged(f'{file}: {content[:20]!r}', _content(file, content), file)
  for value in (None, [], {}, 3, 'x', [name], {name: 3}, {name: None}, {name: []}, {name: {}}):
    yield damaged(f'weight_map={value!r}', _json_field(file, ('weight_map',), value), file)
  for other in ('', '.', '..', '/', '../x', '/etc/passwd', 'a/b', 'nowhere.safetensors', '\0'):
    value = {name: other}
    change = _json_field(file, ('weight_map',), value)
    yield damaged(f'shard {other!r}', change, 'folder', 'file')
  unheld = _json_field(file, ('weight_map',), {'a': shard, 'b': shard})
  yield damaged('names that no file holds', unheld, 'lacks the tensor')


def hf_cases(seed: int = 0) -> list[Case]:
  """Returns cases of Hugging Face folders: config, weights and their index."""
  rng = random.Random(f'{seed}/hf')
  return [
    _hf('untouched', lambda files: None, False),
    *_hf_config(),
    *_hf_weights(rng),
    *_hf_index(),
  ]


# Tokenizers

_POOL = (None, 3, -1, 10**20, 1.5, math.nan, '', 'x', 'a b', '\ud800', True, [], {}, [3], {'x': 1})


def _paths(value: Any, path: tuple = ()) -> Iterator[tuple]:
  """Yields the path of each place in a JSON value; of long lists and objects only some."""
  if path:
    yield path
  items = dict(enumerate(value)) if isinstance(value, list) else value
  for i, (key, inner) in enumerate(items.items() if isinstance(items, dict) else ()):
    if i < 6 or i > 255:
      yield from _paths(inner, (*path, key))


def _tokenizer_files() -> Iterator[Case]:
  for file in ('tokenizer.json', 'tokenizer_config.json'):
    for content in _NO_OBJECTS:
      yield _hf(f'{file}: {content[:20]!r}', _content(file, content), True, file)
  for name in ('eos_token', 'bos_token', 'pad_token'):
    for value in (3, True, [], ['x'], 1.5, {'content': 3}, {'content': []}, 'nowhere', '\ud800'):
      case = f'tokenizer_config.json: {name}={value!r}'
      change = _json_field('tokenizer_config.json', (name,), value)
      yield _hf(case, change, True, name)
  for value in (3, True, {}, [3], [[]], [None], [{'name': 'default', 'template': 3}]):
    change = _json_field('tokenizer_config.json', ('chat_template',), value)
    yield _hf(f'chat_template={value!r}', change, True, 'chat_template')
  yield _hf('chat_template.jinja', _content('chat_template.jinja', b'\xff'), True, '.jinja')
  model = ('tokenizer.json', ('model', 'merges'))
  for value in ('x', 3, {}, [3], [[]], ['a'], ['a b c'], [['a', 'b', 'c']], [['a']], ['zzz b']):
    yield _hf(f'merges={value!r}', _json_field(*model, value), True, 'tokenizer.json')
  for value in ('a c', ['a', 'c'], ['', ''], [' ', ' '], 'a  b', None, [None, 'a'], ['a', 3]):
    yield _hf(f'merges=[{value!r}]', _json_field(*model, [value]), True, 'tokenizer.json')
  for value in ('Mamba', 3, None, [], 'unigram', ''):
    change = _json_field('tokenizer.json', ('model', 'type'), value)
    yield _hf(f'model.type={value!r}', change, value is not None, 'tokenizer.json')


def _tokenizer_ids() -> Iterator[Case]:
  """Yields cases of empty tokens, and of special ones that are words or single characters."""
  content = json.loads(_folder()['tokenizer.json'])
  for i, _ in enumerate(content['added_tokens']):
    for flag in ('special', 'normalized', 'lstrip', 'rstrip', 'single_word'):
      for value in (True, False):
        path = ('added_tokens', i, flag)
        change = _json_field('tokenizer.json', path, value)
        yield _hf(f'untouched but for {flag}={value} of token {i}', change, False)
  for name in ('a', 'ab', '', ' ', '\n', '\ue000', '12', '#' * 5000):

    def more(files, name=name):
      changed = copy.deepcopy(content)
      token = {**changed['added_tokens'][0], 'id': 259, 'content': name}
      changed['added_tokens'].append(token)
      files['tokenizer.json'] = json.dumps(changed).encode()

    yield _hf(f'another special token {name[:9]!r}', more, False)


def _tokenizer_fields(rng: random.Random) -> Iterator[Case]:
  """Yields cases with any value anywhere in tokenizer.json; the library decides validity."""
  content = json.loads(_folder()['tokenizer.json'])
  paths = list(_paths(content))
  for i in range(250):
    path, value = rng.choice(paths), rng.choice(_POOL)
    case = f'{i}: {".".join(map(str, path))}={value!r}'
    yield _hf(case, _json_field('tokenizer.json', path, value), False)
  for i in range(50):
    path = rng.choice(paths)

    def delete(files, path=path):
      changed = copy.deepcopy(content)
      *parents, last = path
      del functools.reduce(lambda at, key: at[key], parents, changed)[last]
      files['tokenizer.json'] = json.dumps(changed).encode()

    yield _hf(f'{i}: {".".join(map(str, path))} deleted', delete, False)
  for field, values in {
    'normalizer': ({'type': 'Replace', 'pattern': {'Regex': '('}, 'content': ''}, {'type': 'zzz'}),
    'pre_tokenizer': (
      {'type': 'Split', 'pattern': {'Regex': '[' * 50}, 'behavior': 'Isolated', 'invert': False},
      {'type': 'Metaspace', 'replacement': 'xx'},
    ),
    'post_processor': (
      {'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'q', 'type_id': 0}}]},
    ),
    'decoder': ({'type': 'Fuse', 'x': 1}, {'type': 'Strip', 'content': 'ab', 'start': -1}),
  }.items():
    for value in values:
      yield _hf(f'{field}={value!r}', _json_field('tokenizer.json', (field,), value), False)


def tokenizer_cases(seed: int = 0) -> list[Case]:
  """Returns cases of tokenizers of Hugging Face folders."""
  rng = random.Random(f'{seed}/tokenizers')
  return [
    _hf('untouched', lambda files: None, False),
    *_tokenizer_files(),
    *_tokenizer_ids(),
    *_tokenizer_fields(rng),
  ]


# Chat templates

_BROKEN_TEMPLATES = (
  *('{% for m in messages %}', '{{', '{% if %}', '{{ messages', '{% zzz %}', '{{ m.content }}'),
  *(
    '',
    'Hello',
    '{{ messages }}',
    '{{ messages[0].content }}',
    '{{ messages | zzz }}',
    '{{ 1/0 }}',
  ),
  *('{{ messages[9].role }}', '{{ messages + 1 }}', '{{ messages.append(3) }}', '{{ zzz() }}'),
  *(
    "{{ raise_exception('no') }}",
    '{% include "x" %}',
    '{% extends "x" %}',
    '{{ messages["x"].y }}',
  ),
  *("{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}",),
  *('{% for m in messages | reverse %}{{ m.content }}{% endfor %}',),
  *("{% for m in messages if m.role != 'user' %}{{ m.content }}{% endfor %}",),
  *('{% for m in messages %}{{ m.content | upper | length }}{% endfor %}',),
  *('{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}', '{% for i in range(10**7) %}x{% endfor %}'),
  *('{% for m in messages %}{{ m.content }}{% break %}{% endfor %}',),
)


def _chat(
  name: str,
  template: str,
  invalid: bool,
  mentions: tuple[str, ...] = ('chat template',),
  **fields: Any,
) -> Case:
  """Returns a case of a chat template, and of fields of all roles."""

  def run(folder: pathlib.Path) -> None:
    for file, content in _folder().items():
      (folder / file).write_bytes(content)
    (folder / 'chat_template.jinja').write_text(template, encoding='utf-8')
    config = micro_run.changed(model__source=f'hf:{folder}', sft__steps=0)
    config['task']['options']['text_style'] = 'plain'
    config['learner']['pack_length'] = 2048
    for role in config['team']['roles'].values():
      role.update({'style': 'chat', **fields})
    fuzz_configs.check(config)

  return Case(name, run, invalid, mentions if invalid else ())


_TEXTS = (
  '<|end|>',
  '<|start|>system\n<|end|>',
  '\ue000',
  '\ue100',
  '<|',
  'end|>',
  ' <|END|>',
  '🙂',
)
_VALUES_OF_NO_JSON = (
  math.nan,
  math.inf,
  object(),
  {1, 2},
  b'x',
  '\ud800',
  [{1: 2}],
  {'y': math.nan},
)


def _chat_fields() -> Iterator[Case]:
  """Yields cases of untrusted texts in roles, and of variables of the template."""
  for text in _TEXTS:
    for fields in ({'examples': ((text, text),)}, {'system': text}, {'cue': text}):
      yield _chat(f'untouched but for {fields!r:.60}', raw_gguf.CHAT, False, **fields)
    template = raw_gguf.CHAT.replace('assistant', f'assistant {text}')
    yield _chat(f'untouched but for {text!r} in the template', template, False)
  reads = raw_gguf.CHAT + '{{ thinking }}{{ date is defined }}'
  thinks = lambda name, template, invalid, variables: _chat(
    name, template, invalid, ('chat_variables',), chat_variables=variables
  )
  for value in (True, False, None, 3, 0.5, 'x', [1, 'x'], {'y': None}, {}):
    yield thinks(f'untouched but for thinking={value!r}', reads, False, {'thinking': value})
    yield thinks(f'zzz={value!r}', reads, True, {'zzz': value})
    yield thinks(f'thinking={value!r} that nobody reads', raw_gguf.CHAT, True, {'thinking': value})
  for value in _VALUES_OF_NO_JSON:
    yield thinks(f'thinking={value!r:.20} is no JSON', reads, True, {'thinking': value})
  for name in ('messages', 'add_generation_prompt', 'bos_token', 'eos_token', 'tools', 'documents'):
    yield thinks(f'{name} is set', reads, True, {name: 'x'})
  for name in (
    '',
    'm',
    'self',
    'template',
    'range',
    'namespace',
    'raise_exception',
    'a b',
    3,
    None,
  ):
    yield thinks(f'{name!r} is no variable', reads, True, {name: 'x'})
  for value in ('x', 3, None, True, [], [('thinking', True)], ()):
    yield thinks(f'chat_variables={value!r}', reads, True, value)


def chat_cases(seed: int = 0) -> list[Case]:
  """Returns cases of chat templates."""
  rng = random.Random(f'{seed}/chat')
  found = [_chat('untouched', raw_gguf.CHAT, False)]
  found += [_chat(f'{t[:60]!r}', t, True) for t in _BROKEN_TEMPLATES]
  found += _chat_fields()
  for i in range(60):
    at, size = rng.randrange(len(raw_gguf.CHAT)), rng.randint(1, 6)
    text = raw_gguf.CHAT[:at] + raw_gguf.CHAT[at + size :]
    found.append(_chat(f'{i}: without {size} characters at {at}', text, False))
  return found
