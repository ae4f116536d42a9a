"""Fields of files that others wrote: of the right type and in their range, or a clear error."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from agent_gspo.values import is_real, is_whole, shown

_LARGEST = 2**31 - 1  # what an array's side can be


@dataclasses.dataclass(frozen=True)
class Fields:
  """Reads the fields of one mapping; one that is null counts as absent.

  Each method raises a ValueError, which names file, field and value, where the field is absent
  without a default or is something else than it must be.

  Attributes:
    values: field -> value.
    where: the file, for messages.
    prefix: what stands before a field's name in messages.
  """

  values: Mapping[str, Any]
  where: str
  prefix: str = ''

  def get(self, field: str, default: Any = None) -> Any:
    """Returns the value as it is."""
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

  def flag(self, field: str, default: bool) -> bool:
    """Returns True or False."""
    value = self.get(field, default)
    if not isinstance(value, bool):
      raise self.wrong(field, 'true or false')
    return value

  def section(self, field: str) -> Fields:
    """Returns the fields of an object in a field; none if it is absent."""
    value = self.get(field, {})
    if not isinstance(value, Mapping):
      raise self.wrong(field, 'an object')
    return Fields(value, self.where, f'{self.prefix}{field}.')

  def absent(self, field: str, why: str) -> None:
    """Refuses a field that is neither absent nor null."""
    if self.values.get(field) is not None:
      raise self.wrong(field, f'absent: {why}')

  def wrong(self, field: str, expected: str) -> ValueError:
    """Returns the error of a field that is not what it must be."""
    value = shown(self.values.get(field))
    return ValueError(f'{self.where}: {self.prefix}{field}={value} must be {expected}.')


def read_object(file: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file.

  Raises:
    OSError: it cannot be read.
    ValueError: it holds something else, or is no JSON.
  """
  try:
    content = json.loads(file.read_text(encoding='utf-8'))
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{file}: not valid JSON ({error}); fetch the file again.') from error
  if not isinstance(content, dict):
    raise ValueError(f'{file}: must hold a JSON object, not {shown(content)}.')
  return content
