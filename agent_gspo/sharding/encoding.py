"""Encodes plain data to bytes and back, bit for bit, for messages between processes.

The bytes contain JSON, then the arrays. Decoding runs no code outside of this module: it creates
the types below, and records (dataclasses) of modules that are imported already.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import jax
import numpy as np

_HEAD = 8  # bytes of the length prefix of the JSON
_SEQUENCES = {'tuple': tuple, 'set': set, 'frozenset': frozenset}


def encode(value: Any) -> bytes:
  """Encodes a value of numbers, text, arrays, records and their collections as bytes.

  Raises:
    TypeError: A part has another type; names it.
  """
  parts: list[bytes] = []
  text = json.dumps(_plain(value, parts)).encode()
  return b''.join([len(text).to_bytes(_HEAD, 'big'), text, *parts])


def decode(data: bytes) -> Any:
  """Inverts `encode`; JAX arrays come back as NumPy arrays.

  Raises:
    ValueError: The bytes are invalid.
  """
  view = memoryview(data)
  end = _HEAD + int.from_bytes(view[:_HEAD], 'big')
  return _Reader(view[end:]).value(json.loads(bytes(view[_HEAD:end])))


def _plain(value: Any, parts: list[bytes]) -> Any:
  kind = type(value)
  if value is None or kind in (bool, int, float, str):
    return value
  if kind is list:
    return [_plain(x, parts) for x in value]
  if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
    return {kind.__name__: [_plain(x, parts) for x in value]}
  if kind is dict:
    return {'dict': [[_plain(k, parts), _plain(v, parts)] for k, v in value.items()]}
  if kind is bytes:
    parts.append(value)
    return {'bytes': len(value)}
  if isinstance(value, np.ndarray | np.generic | jax.Array):
    array = np.asarray(value)
    if not array.dtype.hasobject and array.dtype.names is None:
      parts.append(array.tobytes())
      # Types outside of NumPy, such as bfloat16, are identified by name alone.
      name = array.dtype.str if array.dtype.kind != 'V' else array.dtype.name
      return {'scalar' if isinstance(value, np.generic) else 'array': [name, list(array.shape)]}
  if dataclasses.is_dataclass(value) and _record(kind.__module__, kind.__qualname__) is kind:
    fields = [field.name for field in dataclasses.fields(value)]
    content = [[name, _plain(getattr(value, name), parts)] for name in fields]
    return {'record': [kind.__module__, kind.__qualname__, content]}
  raise TypeError(
    f'{kind.__module__}.{kind.__qualname__} cannot be told to other processes; must be a number, '
    'text, an array or a dataclass of a module, or a list, tuple, set or dict of these.'
  )


def _record(module: str, name: str) -> type | None:
  """Returns a dataclass of an imported module, None if there is none."""
  found: Any = sys.modules.get(module)
  for part in name.split('.'):
    found = getattr(found, part, None)
  return found if isinstance(found, type) and dataclasses.is_dataclass(found) else None


class _Reader:
  """Reassembles values; arrays follow in the order of the JSON."""

  def __init__(self, data: memoryview):
    self._data, self._at = data, 0

  def value(self, told: Any) -> Any:
    if isinstance(told, list):
      return [self.value(x) for x in told]
    if not isinstance(told, dict):
      return told
    ((tag, content),) = told.items()
    if tag in _SEQUENCES:
      return _SEQUENCES[tag](self.value(x) for x in content)
    if tag == 'dict':
      return {self.value(k): self.value(v) for k, v in content}
    if tag == 'bytes':
      return bytes(self._take(content))
    if tag in ('array', 'scalar'):
      kind, shape = np.dtype(content[0]), content[1]
      size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
      array = np.frombuffer(self._take(size), kind).reshape(shape).copy()
      return array if tag == 'array' else array[()]
    if tag == 'record':
      module, name, fields = content
      found = _record(module, name)
      if found is not None:
        made: Any = object.__new__(found)  # its constructor ran in the sending process
        for field, inner in fields:
          object.__setattr__(made, field, self.value(inner))
        return made
    raise ValueError(f'{str(told)[:100]} cannot be read; all processes must run the same code')

  def _take(self, size: int) -> memoryview:
    found = self._data[self._at : self._at + size]
    if len(found) < size:
      raise ValueError(f'{len(found)} bytes are left of {size}')
    self._at += size
    return found
