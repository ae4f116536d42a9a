"""Validates fields of external files: type and range, or a clear error."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from agent_gspo.values import is_real, is_whole, shown

_T = TypeVar('_T')

_LARGEST = 2**31 - 1  # largest size of an array axis


@dataclasses.dataclass(frozen=True)
class Fields:
  """Reads the fields of one mapping; null counts as absent.

  Each method raises a ValueError, which names file, field and value, if the field is invalid, or
  absent without a default.

  Attributes:
    values: Value by field.
    where: File name, for messages.
    prefix: Prefix of field names in messages.
  """

  values: Mapping[str, Any]
  where: str
  prefix: str = ''

  def get(self, field: str, default: Any = None) -> Any:
    """Returns the value unchecked."""
    value = self.values.get(field)
    value = default if value is None else value
    if value is None:
      raise ValueError(f'{self.where} lacks {self.prefix}{field}.')
    return value

  def whole(
    self, field: str, default: int | None = None, *, low: int = 1, high: int = _LARGEST
  ) -> int:
    """Returns a whole number from `low` to `high`."""
    value = self.get(field, default)
    if not is_whole(value) or not low <= value <= high:
      raise self.wrong(field, f'a whole number from {low} to {high}')
    return value

  def number(
    self, field: str, default: float | None = None, *, low: float = 0.0, high: float = math.inf
  ) -> float:
    """Returns a number above `low` and below `high` that float32 can hold."""
    value = self.get(field, default)
    # Compared before it is converted: whole numbers can be longer than any float.
    fits = is_real(value) and value < min(high, float(np.finfo(np.float32).max))
    if not fits or not low < np.float32(value):
      between = f'above {low:g}' + (f' and below {high:g}' if math.isfinite(high) else '')
      raise self.wrong(field, f'a finite number {between}')
    return float(value)

  def optional(self, field: str) -> float | None:
    """Returns a `number`, None if the field is absent."""
    return None if self.values.get(field) is None else self.number(field)

  def flag(self, field: str) -> bool:
    """Returns True or False."""
    value = self.get(field)
    if not isinstance(value, bool):
      raise self.wrong(field, 'true or false')
    return value

  def section(self, field: str) -> Fields:
    """Returns the fields of a nested object; an absent one has none."""
    value = self.get(field, {})
    if not isinstance(value, Mapping):
      raise self.wrong(field, 'an object')
    return Fields(value, self.where, f'{self.prefix}{field}.')

  def absent(self, field: str, why: str) -> None:
    """Raises unless the field is absent or null."""
    if self.values.get(field) is not None:
      raise self.wrong(field, f'absent: {why}')

  def wrong(self, field: str, expected: str) -> ValueError:
    """Returns the error for an invalid field."""
    value = shown(self.values.get(field))
    return ValueError(f'{self.where}: {self.prefix}{field}={value} must be {expected}.')


def named(where: object, make: Callable[[], _T]) -> _T:
  """Returns `make()`; prepends `where` to the messages of its ValueErrors."""
  try:
    return make()
  except ValueError as error:
    raise ValueError(f'{where}: {error}') from error


def read_object(file: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file.

  Raises:
    OSError: The file cannot be read.
    ValueError: The file is not valid JSON, or not an object.
  """
  try:
    content = json.loads(file.read_text(encoding='utf-8'))
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{file}: not valid JSON ({error}); fetch the file again.') from error
  if not isinstance(content, dict):
    raise ValueError(f'{file}: must hold a JSON object, not {shown(content)}.')
  return content


def write_object(file: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes an object as a JSON file."""
  file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
