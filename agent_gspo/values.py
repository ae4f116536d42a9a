"""Checks values written by users and formats them for messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

_FLOAT32 = np.finfo(np.float32)


def is_text(value: Any) -> TypeGuard[str]:
  """Returns whether a value is text that UTF-8 can encode (no lone surrogates)."""
  if not isinstance(value, str):
    return False
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def is_json(value: Any) -> bool:
  """Returns whether a value is plain JSON: text, finite number, bool, None, lists, objects."""
  if isinstance(value, Mapping):
    return all(is_text(name) and is_json(inner) for name, inner in value.items())
  if isinstance(value, list | tuple):
    return all(map(is_json, value))
  if isinstance(value, float):
    return math.isfinite(value)
  return value is None or isinstance(value, int) or is_text(value)


def is_whole(value: Any) -> bool:
  """Returns whether a value is an integer; bools are not."""
  return isinstance(value, int) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
  """Returns whether a value is a number, infinities and NaN included; bools are not."""
  return isinstance(value, int | float) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
  """Returns whether a value is a number within the normal range of float32, or 0."""
  if not is_real(value):
    return False
  return value == 0 or float(_FLOAT32.tiny) <= abs(value) <= float(_FLOAT32.max)


def finite(value: Any) -> float | None:
  """Returns `value` as a float, or None if it is absent, not a number, NaN or infinite."""
  if isinstance(value, str | bytes):
    return None
  try:
    result = float(value)
  except (TypeError, ValueError, OverflowError):
    return None
  return result if math.isfinite(result) else None


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested mappings to `{'a.b': leaf}`; empty mappings are dropped."""
  flat: dict[str, Any] = {}
  for key, value in tree.items():
    path = f'{prefix}{key}'
    if isinstance(value, Mapping):
      flat |= flatten(value, f'{path}.')
    else:
      flat[path] = value
  return flat


def shown(value: Any) -> str:
  """Formats a value for a message, truncated to 80 characters."""
  try:
    text = repr(value)
  except ValueError:  # an integer with more digits than Python converts
    text = 'a very long number'
  except Exception:  # from `__repr__` of a user's class
    text = f'a {type(value).__name__} that cannot be written'
  return text if len(text) <= 80 else f'{text[:77]}...'
