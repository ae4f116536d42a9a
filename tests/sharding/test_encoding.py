"""Checks that values sent between processes are exact, and decoding runs no code."""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from agent_gspo.sharding import encoding
from agent_gspo.types import Message, Question, Terms

_BITS = np.asarray([0x7FF8000000000123, 0xFFF0000000000000, 0x8000000000000000], np.uint64)
_MESSAGE = Message(
  0,
  1,
  2,
  0,
  np.arange(5, dtype=np.int32),
  np.arange(0, dtype=np.int32),
  np.asarray([-0.0, np.nan], np.float32),
  True,
  'half of a pair: \ud800, \u2028',
  read_from=((0, 1),),
  addressees=frozenset({1, 2}),
  inserted=np.asarray([True, False]),
)


def _same(a, b) -> bool:
  """Returns whether values are equal in type and every bit."""
  if type(a) is not type(b):
    return False
  if isinstance(a, np.ndarray | np.generic):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
  if dataclasses.is_dataclass(a):
    return all(_same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
  if isinstance(a, dict):
    return [*a] == [*b] and all(_same(a[k], b[k]) for k in a)
  if isinstance(a, list | tuple):
    return len(a) == len(b) and all(map(_same, a, b))
  return repr(a) == repr(b)


@pytest.mark.parametrize(
  'value',
  [
    None,
    [True, 10**400, -0.0, float('inf'), float('nan'), 0.1 + 0.2],
    ('a', ['b', ()], {'c': {3: None, (1, 2): {'dict': 1}}}),
    [{1, 2}, frozenset(), b'\0\xff', ''],
    [_BITS.view(np.float64), np.float32(0.1), np.zeros((2, 0, 3)), np.zeros(())],
    [np.asarray([[1, 2], [3, 4]], '>i4').T, np.asarray(['ab', 'c']), np.bool_(True)],
    np.asarray([1.5, -0.0], ml_dtypes.bfloat16),
    (_MESSAGE, Question('q', 'How many?', '4', ('n', ''), (True, False), terms=Terms('p', 1, 'w'))),
  ],
)
def test_values_come_back_bit_for_bit(value):
  assert _same(encoding.decode(encoding.encode(value)), value)


def test_arrays_come_back_as_numpy_and_may_be_written_to():
  found = encoding.decode(encoding.encode({'x': jnp.arange(3)}))
  found['x'][0] = 7
  assert found['x'].tolist() == [7, 1, 2]


@pytest.mark.parametrize('value', [print, functools.partial(print), object(), np.asarray([print])])
def test_what_is_no_data_is_not_told(value):
  with pytest.raises(TypeError, match='cannot be told to other processes; must be'):
    encoding.encode([value])


def _written(told) -> bytes:
  text = json.dumps(told).encode()
  return len(text).to_bytes(8, 'big') + text


@pytest.mark.parametrize(
  'data',
  [
    pickle.dumps('x'),
    _written({'record': ['subprocess', 'Popen', [['args', 'true']]]}),
    _written({'record': ['os', 'system', []]}),
    _written({'record': ['no.such.module', 'X', []]}),
    _written({'array': ['|O', [1]]}),
    _written({'array': ['<f8', [3]]}),
    _written({'print': 1}),
    b'',
  ],
)
def test_what_is_no_value_is_refused(data):
  with pytest.raises(ValueError):  # noqa: PT011 - by JSON, NumPy or the module itself
    encoding.decode(data)
