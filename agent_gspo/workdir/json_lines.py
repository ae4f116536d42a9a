"""Reads and writes JSON lines, including files truncated by a kill."""

from __future__ import annotations

import json
import math
import mmap
import os
import pathlib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from agent_gspo.workdir import disk

PathLike = str | pathlib.Path


def iterate(path: PathLike) -> Iterator[dict[str, Any]]:
  """Yields the objects of a JSON-lines file; nothing if the file does not exist.

  A last line truncated by a killed process is skipped silently; other lines that are not JSON
  objects are skipped with a warning.
  """
  for number, record in numbered(path):
    if record is None:
      warnings.warn(f'{path}, line {number} is not a JSON object: skipped', stacklevel=2)
    else:
      yield record


def numbered(
  path: PathLike, lines: Collection[int] | None = None
) -> Iterator[tuple[int, dict[str, Any] | None]]:
  """Yields each line's number, from 1, and its object, or None if it is not an object.

  Empty lines and a truncated last line are skipped. Given `lines`, only these are parsed.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    return
  with path.open('rb') as file:
    for number, line in enumerate(file, start=1):
      if lines is not None and number not in lines:
        continue
      record = parse_line(line)
      if record is not None or (line.strip() and line.endswith(b'\n')):
        yield number, record


def parse_line(line: bytes) -> dict[str, Any] | None:
  """Returns the object of one line, or None if the line is not a complete one."""
  try:
    record = json.loads(line)
  except (ValueError, RecursionError):  # bad JSON and bad UTF-8 alike; thousands of brackets
    return None
  return record if isinstance(record, dict) else None


def to_plain(value: Any, marks: dict[str, str], key: str = '') -> Any:
  """Returns `value` as JSON data: arrays become lists, unknown objects their `str`.

  A number that is not finite becomes None, and `marks` gets an entry `key: 'nan' | 'inf' |
  '-inf'`; nested keys are joined by '/'.
  """
  if isinstance(value, Mapping):
    return {str(k): to_plain(v, marks, f'{key}/{k}' if key else str(k)) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [to_plain(v, marks, f'{key}/{i}' if key else str(i)) for i, v in enumerate(value)]
  if value is None or isinstance(value, bool | int | str):
    return value
  if hasattr(value, 'dtype'):  # numpy and jax arrays and scalars, bfloat16 included
    array = np.asarray(value)
    if array.ndim:
      return to_plain(array.tolist(), marks, key)
    value = array.item()
    if not isinstance(value, bool | int | float | str):
      value = float(array)
  if isinstance(value, float):
    if math.isfinite(value):
      return value
    marks[key] = 'nan' if math.isnan(value) else ('inf' if value > 0 else '-inf')
    return None
  return value if isinstance(value, bool | int | str) else str(value)


def replace(path: PathLike, lines: Iterable[bytes]) -> None:
  """Writes a file atomically: a kill leaves the old contents or the new ones."""
  path = pathlib.Path(path)
  new = path.with_name(path.name + '.new')
  try:
    with disk.writing(path), open(new, 'wb', opener=disk.own) as file:
      file.writelines(lines)
      file.flush()
      os.fsync(file.fileno())
  except disk.WriteError:
    new.unlink(missing_ok=True)
    raise
  os.replace(new, path)


def truncate_after(path: PathLike, step: int) -> str:
  """Drops the records whose `step` is later, and incomplete lines.

  Records without a step are kept. The file is replaced atomically.

  Returns:
    Message with the number of incomplete lines, '' if there were none.
  """
  spoiled = 0

  def kept(line: bytes) -> bool:
    nonlocal spoiled
    record = parse_line(line) if line.endswith(b'\n') else None
    spoiled += record is None and bool(line.strip())
    if record is None:
      return False
    written_at = record.get('step')
    return not isinstance(written_at, int | float) or written_at <= step

  _filter(path, kept)
  return f'{path}: dropped {spoiled} lines that held no whole record' if spoiled else ''


def drop(path: PathLike, step: int, labels: Collection[str]) -> None:
  """Drops the records of a step whose `label` is in `labels`; keeps all others."""

  def kept(line: bytes) -> bool:
    record = parse_line(line) or {}
    label = record.get('label')
    return record.get('step') != step or not isinstance(label, str) or label not in labels

  path = pathlib.Path(path)
  if path.exists() and not all(map(kept, path.read_bytes().splitlines(keepends=True))):
    _filter(path, kept)


def _filter(path: PathLike, kept: Callable[[bytes], bool]) -> None:
  """Replaces a file, if it exists, by its lines that are kept."""
  path = pathlib.Path(path)
  if path.exists():
    with path.open('rb') as file:
      replace(path, filter(kept, file))


def drop_half_line(path: PathLike) -> None:
  """Truncates an incomplete last line, so that the next record starts a line."""
  try:
    file = open(path, 'rb+', opener=disk.own)
  except FileNotFoundError:
    return
  with file:
    size = file.seek(0, os.SEEK_END)
    if size:  # an empty file cannot be mapped
      with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end = data.rfind(b'\n') + 1
      if end < size:
        file.truncate(end)
