"""Locks a folder, so that one process at a time writes to it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import warnings
from collections.abc import Iterator

from agent_gspo.workdir import disk

FILE = 'lock'


class FolderInUseError(OSError):
  """Error: another process writes to this folder."""


@contextlib.contextmanager
def hold(folder: str | os.PathLike, flag: str = '--workdir') -> Iterator[None]:
  """Locks a folder for the duration of the block or the process.

  The kernel releases the lock of a killed process; the lock file stays, and names its last
  holder. `flag` names the folder in messages.

  Raises:
    FolderInUseError: Names the folder, and the process that locked it.
    ValueError: The path is a file, or below one; or the lock file is a symbolic link.
  """
  folder = pathlib.Path(folder)
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except (FileExistsError, NotADirectoryError):
    raise ValueError(
      f'{flag}={folder}: that is a file (or lies below one); name a folder.'
    ) from None
  file = disk.own(str(folder / FILE), os.O_RDWR | os.O_CREAT)
  try:
    _lock(file, folder)
    yield
  finally:
    os.close(file)


def _lock(file: int, folder: pathlib.Path) -> None:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    holder = os.pread(file, 1000, 0).decode(errors='replace') or 'another process'
    raise FolderInUseError(
      f'{folder} is in use by {holder}: wait for it to end, stop it, or take another folder.'
    ) from None
  except OSError as error:
    if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
      raise
    warnings.warn(f'{folder}: no locks on this file system; use it once at a time', stacklevel=2)
  os.ftruncate(file, 0)
  with contextlib.suppress(OSError):  # the lock works on a full disk, too
    os.write(file, f'process {os.getpid()} on {socket.gethostname()}'.encode())
