"""Writes to a disk that may be full; errors name file and reason in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
from collections.abc import Iterator


class WriteError(OSError):
  """A write failed; the message names the file and the reason."""


def folder(path: str | os.PathLike[str], name: str = '') -> pathlib.Path:
  """Returns the path of a folder, with `~` as the home folder.

  Raises:
    ValueError: The path is an address, such as gs://bucket/run; the message has `name`, if any.
  """
  text = os.fspath(path)
  if re.match(r'(?!hf:)\w+:/', text):  # pathlib makes gs:/ of gs://
    raise ValueError(
      f'{name and f"{name}={text}: "}must be a folder of this machine; mount the bucket, for '
      'example with gcsfuse.'
    )
  return pathlib.Path(text).expanduser()


@contextlib.contextmanager
def writing(what: object, folder: object = None) -> Iterator[None]:
  """Converts disk errors within the block into `WriteError`s; other errors are unchanged."""
  try:
    yield
  except WriteError:
    raise
  except Exception as error:
    reason = _reason(error)
    if reason is None:
      raise
    where = f' to {folder}' if folder else ''
    raise WriteError(f'{what} could not be written{where}: {reason}') from error


def own(path: str, flags: int) -> int:
  """Opens a file of this run (an opener of `open`), which must not be a symbolic link.

  Raises:
    ValueError: It is a symbolic link.
  """
  try:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
  except OSError as error:
    if error.errno != errno.ELOOP:
      raise
    raise ValueError(
      f'{path} is a symbolic link; must be a file, since it is written to. Remove it, or take '
      'another folder.'
    ) from None


class Appender:
  """Unbuffered append-only file; data is in the kernel when `append` returns.

  With a buffer, errors of a full disk would come later.
  """

  def __init__(self, path: pathlib.Path):
    """Opens the file, which need not exist."""
    self._path = path
    with writing(path):
      self._file = open(path, 'ab', buffering=0, opener=own)

  def append(self, data: bytes) -> None:
    """Writes all of `data`, or raises `WriteError`."""
    left = memoryview(data)
    with writing(self._path):
      while left:
        left = left[self._file.write(left) :]

  def close(self) -> None:
    self._file.close()


def _reason(error: Exception) -> str | None:
  if isinstance(error, OSError):
    return error.strerror
  # TensorStore and safetensors put the errno in their messages.
  number = re.search(r"os(?: error |_error_code=')(\d+)", str(error))
  return os.strerror(int(number[1])) if number else None
