"""Formats numbers as short text, with "-" for unknown ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agent_gspo.values import finite

MISSING = '-'


def number(value: Any, digits: int = 3) -> str:
  """Returns `value` with `digits` significant digits; thousands are written in full."""
  x = finite(value)
  if x is None:
    return MISSING
  if x == 0:
    return format(0.0, f'.{digits - 1}f')
  exponent = math.floor(math.log10(abs(x)))
  if exponent < -4:
    return format(x, f'.{max(digits - 2, 0)}e')
  return format(x, f'.{max(digits - 1 - exponent, 0)}f')


def fixed(value: Any, decimals: int, scale: float = 1, signed: bool = False) -> str:
  """Returns `scale * value` with a fixed number of decimals."""
  x = finite(value)
  return MISSING if x is None else format(scale * x, f'{"+" if signed else ""}.{decimals}f')


def interval(
  record: Mapping[str, Any],
  key: str,
  decimals: int,
  scale: float = 1,
  *,
  unit: str = '',
  signed: bool = False,
) -> str:
  """Returns a value of a record, followed by its `[low, high]` if the record has them."""
  ends = (key, f'{key}_low', f'{key}_high')
  value, low, high = (fixed(record.get(k), decimals, scale, signed) for k in ends)
  value += unit * (value != MISSING)
  return value if MISSING in (low, high) else f'{value} [{low}, {high}]'


def percent(value: Any) -> str:
  """Returns a fraction in `[0, 1]` as a percentage."""
  return interval({'x': value}, 'x', 1, 100, unit=' %')


def duration(seconds: Any) -> str:
  """Returns a span of time: `0.42 s`, `12.3 s`, `4m 05s`, `3h 07m` or `2d 04h`.

  Whole seconds given as an int are written without a fraction.
  """
  x = finite(seconds)
  if x is None:
    return MISSING
  if x < 60 and isinstance(seconds, int):
    return f'{seconds} s'
  if x < 60:
    return f'{x:.2f} s' if x < 1 else f'{x:.1f} s'
  minutes = int(x) // 60
  if minutes < 60:
    return f'{minutes}m {int(x) % 60:02d}s'
  if minutes < 48 * 60:
    return f'{minutes // 60}h {minutes % 60:02d}m'
  return f'{minutes // 1440}d {minutes % 1440 // 60:02d}h'
