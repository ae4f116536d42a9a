"""Reads arrays, or slices of them, lazily from files."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import flax.traverse_util
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class StoredArray:
  """Float32 array in a file. Each access reads the file again; nothing is cached.

  Attributes:
    shape: Shape of the whole array.
    part: Function from one slice per axis to the array's values there; raises ValueError if the
      file is damaged or holds numbers that are not finite.
  """

  shape: tuple[int, ...]
  part: Callable[[tuple[slice, ...]], np.ndarray]

  @property
  def dtype(self) -> np.dtype:
    return np.dtype(np.float32)

  @property
  def ndim(self) -> int:
    return len(self.shape)

  def __getitem__(self, i: int) -> np.ndarray:
    """Reads entry `i` of the first axis."""
    return self.part((slice(i, i + 1), *[slice(None)] * (self.ndim - 1)))[0]

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    if copy is False:
      raise ValueError('copy=False is not possible for an array in a file')
    whole = self.part((slice(None),) * self.ndim)
    return whole if dtype is None else whole.astype(dtype, copy=False)


def split_files(file: pathlib.Path) -> list[pathlib.Path]:
  """Returns all parts of a GGUF file if it is named as one, `NAME-00001-of-00003.gguf`."""
  named = re.fullmatch(r'(.*-)\d{5}(-of-(\d{5})\.gguf)', file.name)
  if named is None or not int(named[3]):
    return [file]
  return [file.with_name(f'{named[1]}{i + 1:05}{named[2]}') for i in range(int(named[3]))]


def read(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Reads all arrays of a nested dict into memory."""
  flat = flax.traverse_util.flatten_dict(tree, sep='/')
  # Conversions release the GIL, and dequantization takes nearly all of the time.
  with futures.ThreadPoolExecutor() as pool:
    arrays = pool.map(np.asarray, flat.values())
    return flax.traverse_util.unflatten_dict(dict(zip(flat, arrays, strict=True)), sep='/')
