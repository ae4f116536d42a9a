"""Calls a function in another process, with plain data as arguments and results.

The text of this file runs inside the sandbox, once beside the solution (`serve`) and once
beside its tests (`examine`); it imports nothing but the standard library. The tests never
share a process with the solution, which can neither see nor change them. Results are rebuilt
from plain types, so that an object whose `__eq__` is always true cannot pass.
"""

import io
import itertools
import os
import pickle
import struct
import sys
import types

_MAX_BYTES = 1 << 24
_MAX_ITEMS = 1_000_000
_ATOMS: dict = {int: int.__int__, float: float.__float__, str: str.__str__, bytes: bytes.__bytes__}


class _PlainUnpickler(pickle.Unpickler):
  """Unpickler of numbers, texts, lists, tuples, sets and dicts only."""

  def find_class(self, module, name):
    raise pickle.UnpicklingError(f'{module}.{name} is not plain data')


def plain(value):
  """Returns the value in exact built-in types; a Counter becomes a dict.

  Raises:
    TypeError: if it, or something in it, is of another type.
  """
  if value is None or isinstance(value, bool):
    return value
  for kind, convert in _ATOMS.items():
    if isinstance(value, kind):
      return convert(value)
  if isinstance(value, dict):
    return {plain(key): plain(item) for key, item in value.items()}
  for kind in (list, tuple, set, frozenset):
    if isinstance(value, kind):
      return kind(plain(item) for item in value)
  raise TypeError(f'a result of type {type(value).__name__} is not plain data')


def send(descriptor, value):
  body = pickle.dumps(value)
  rest = memoryview(struct.pack('>I', len(body)) + body)
  while rest:
    rest = rest[os.write(descriptor, rest) :]


def receive(descriptor):
  """Receives the next value from the other side.

  Raises:
    EOFError: if the other side has ended.
    pickle.UnpicklingError, ValueError: if the value is not plain data.
  """
  (size,) = struct.unpack('>I', _exactly(descriptor, 4))
  if size > _MAX_BYTES:
    raise ValueError(f'a result of {size} bytes is too large')
  return _PlainUnpickler(io.BytesIO(_exactly(descriptor, size))).load()


def _exactly(descriptor, size):
  parts = []
  while size:
    part = os.read(descriptor, size)
    if not part:
      raise EOFError('the solution ended before it answered all calls')
    parts.append(part)
    size -= len(part)
  return b''.join(parts)


def serve(source, name, peer):
  """Runs a solution and answers calls of its function `name` until the other side ends."""
  module = types.ModuleType('solution')
  sys.modules['solution'] = module  # Some decorators look their module up.
  exec(compile(source, '<solution>', 'exec'), module.__dict__)
  function = module.__dict__[name]
  while True:
    try:
      arguments, named = receive(peer[0])
    except EOFError:
      return
    try:
      reply = _result(function(*arguments, **named))
    except Exception as error:
      reply = ('error', f'{type(error).__name__}: {error}'[:1000])
    send(peer[1], reply)


def _result(value):
  # Tests may call list() on a generator's result, so it does not become a list here.
  if hasattr(value, '__iter__') and not isinstance(
    value, (str, bytes, list, tuple, set, frozenset, dict)
  ):
    return ('iterable', plain(list(itertools.islice(value, _MAX_ITEMS))))
  return ('value', plain(value))


def examine(setup, tests, name, peer):
  """Runs `setup`, then `tests`, where `name` is the solution's function; raises if they fail."""

  def remote(*arguments, **named):
    send(peer[1], (arguments, named))
    kind, value = receive(peer[0])
    if kind == 'error':
      raise RuntimeError(value)
    return iter(value) if kind == 'iterable' else value

  namespace: dict = {'__name__': 'tests'}
  exec(compile(setup, '<setup>', 'exec'), namespace)
  namespace[name] = remote
  exec(compile(tests, '<tests>', 'exec'), namespace)
