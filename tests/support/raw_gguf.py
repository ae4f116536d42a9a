"""Writes GGUF files byte by byte, also invalid ones that the gguf package refuses to write."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import gguf
import numpy as np

from agent_gspo.models import presets
from agent_gspo.models.io import tensor_names

# ggml's numbers of types: of metadata values, and of tensors.
UINT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
UINT64, FLOAT64 = 10, 12
F32, F16, Q8_0, I32 = 0, 1, 8, 26
_SCALARS = {
  UINT16: 'H',
  UINT32: 'I',
  INT32: 'i',
  FLOAT32: 'f',
  BOOL: '?',
  UINT64: 'Q',
  FLOAT64: 'd',
}

CONFIG = presets.PRESETS['micro'].replace(
  vocab_size=260, num_layers=1, embed_dim=16, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=24
)


@dataclasses.dataclass
class Tensor:
  """Header fields of a tensor, and its bytes."""

  dims: list[int]  # innermost first, as in the file
  kind: int
  data: bytes
  offset: int | None = None  # None: where the one before it ends


@dataclasses.dataclass
class File:
  """Contents of a file; `data()` encodes them, valid or not."""

  metadata: dict[str, tuple[int, Any]]  # (type, value); of arrays (ARRAY, (type, values))
  tensors: dict[str, Tensor]
  version: int = 3
  num_keys: int | None = None
  num_tensors: int | None = None

  def data(self) -> bytes:
    keys = b''.join(_string(k) + _value(kind, v) for k, (kind, v) in self.metadata.items())
    infos, body = b'', b''
    for name, tensor in self.tensors.items():
      body += b'\0' * (-len(body) % 32)
      offset = len(body) if tensor.offset is None else tensor.offset
      infos += _string(name) + struct.pack('<I', len(tensor.dims))
      infos += b''.join(struct.pack('<Q', dim) for dim in tensor.dims)
      infos += struct.pack('<IQ', tensor.kind, offset)
      body += tensor.data
    counts = (
      len(self.tensors) if self.num_tensors is None else self.num_tensors,
      len(self.metadata) if self.num_keys is None else self.num_keys,
    )
    header = b'GGUF' + struct.pack('<IQQ', self.version, *counts) + keys + infos
    return header + b'\0' * (-len(header) % 32) + body


def _string(text: str | bytes) -> bytes:
  raw = text if isinstance(text, bytes) else text.encode()
  return struct.pack('<Q', len(raw)) + raw


def _value(kind: int, value: Any) -> bytes:
  """Encodes type and value; `bytes` are copied."""
  return struct.pack('<I', kind) + (value if isinstance(value, bytes) else _plain(kind, value))


def _plain(kind: int, value: Any) -> bytes:
  if kind == STRING:
    return _string(value)
  if kind == ARRAY:
    inner, values = value
    items = b''.join(_plain(inner, item) for item in values)
    return struct.pack('<IQ', inner, len(values)) + items
  return struct.pack(f'<{_SCALARS[kind]}', value)


def byte_symbols() -> list[str]:
  """Returns GPT-2's printable substitute for each byte, in the order of the bytes."""
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = iter(range(256, 512))
  return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def valid(seed: int = 0) -> File:
  """Returns a valid one-layer llama: bytes, a merge, two control tokens, a chat template."""
  c = CONFIG
  tokens = [*byte_symbols(), 'ab', '<|start|>', '<|end|>', '<unused>']
  types = [1] * 257 + [3, 3, 5]
  text = lambda value: (STRING, value)
  count = lambda value: (UINT32, value)
  metadata = {
    'general.architecture': text('llama'),
    'general.alignment': count(32),
    'llama.block_count': count(c.num_layers),
    'llama.context_length': count(c.max_positions),
    'llama.embedding_length': count(c.embed_dim),
    'llama.feed_forward_length': count(c.mlp_dim),
    'llama.attention.head_count': count(c.num_heads),
    'llama.attention.head_count_kv': count(c.num_kv_heads),
    'llama.attention.key_length': count(c.head_dim),
    'llama.rope.dimension_count': count(c.head_dim),
    'llama.rope.freq_base': (FLOAT32, 10_000.0),
    'llama.attention.layer_norm_rms_epsilon': (FLOAT32, 1e-5),
    'tokenizer.ggml.model': text('gpt2'),
    'tokenizer.ggml.pre': text('smollm'),
    'tokenizer.ggml.tokens': (ARRAY, (STRING, tokens)),
    'tokenizer.ggml.token_type': (ARRAY, (INT32, types)),
    'tokenizer.ggml.merges': (ARRAY, (STRING, ['a b'])),
    'tokenizer.ggml.bos_token_id': count(257),
    'tokenizer.ggml.eos_token_id': count(258),
    'tokenizer.ggml.padding_token_id': count(258),
    'tokenizer.chat_template': text(CHAT),
  }
  rng = np.random.default_rng(seed)
  names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.num_layers)
  tensors = {
    names.get_name(row.hf, try_suffixes=('.weight', '.bias')): Tensor(
      dims=list(row.stored_shape[::-1]),
      kind=F32,
      data=(0.1 * rng.normal(size=row.shape)).astype(np.float32).tobytes(),
    )
    for row in tensor_names.table(c)
  }
  return File(metadata, tensors)


CHAT = (
  "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
  '{% if add_generation_prompt %}<|start|>assistant\n{% endif %}'
)
