"""Folders of checkpoints on the disk: which are whole, which are kept.

A checkpoint is the folder `<step>`, complete from the moment it has that name. Its file
`SHA256SUMS` lists all its other files as `sha256sum` does, so that `sha256sum -c SHA256SUMS`
checks it by hand. Orbax itself keeps no checksum of what it writes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator

SUMS = 'SHA256SUMS'
_UNFINISHED = 'unfinished'
_REMOVED = 'removed'


def steps(directory: pathlib.Path) -> list[int]:
  """Returns the steps that have a folder, damaged or not, in rising order."""
  names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
  return sorted(int(name) for name in names if re.fullmatch(r'0|[1-9][0-9]{0,17}', name))


def newest_intact(directory: pathlib.Path) -> tuple[int | None, dict[int, str]]:
  """Finds the newest checkpoint whose files are as they were written.

  Each damaged one that is passed over is warned about.

  Returns:
    Its step, None if there is no checkpoint at all; and of each newer, damaged step what is
    wrong with it.

  Raises:
    ValueError: there are checkpoints, but none is intact.
  """
  damaged: dict[int, str] = {}
  for step in reversed(steps(directory)):
    reason = problem(directory / str(step))
    if reason is None:
      for bad, why in damaged.items():
        warnings.warn(f'{directory / str(bad)} is damaged ({why}): skipped', stacklevel=2)
      return step, damaged
    damaged[step] = reason
  if damaged:
    told = '; '.join(f'{step}: {why}' for step, why in damaged.items())
    raise ValueError(
      f'no checkpoint in {directory} is intact ({told}). Put the files back from a copy; or '
      'remove that folder and begin anew.'
    )
  return None, {}


def problem(folder: pathlib.Path) -> str | None:
  """Says what is wrong with a checkpoint's files; None if all are as they were written."""
  try:
    lines = (folder / SUMS).read_text(encoding='utf-8').splitlines()
    told = {name: digest for digest, _, name in (line.partition('  ') for line in lines)}
    if '' in told:
      return f'{SUMS!r} is damaged'
    names = _names(folder)
    for missing in sorted(told.keys() - set(names)):
      return f'{missing!r} is missing'
    for more in sorted(set(names) - told.keys()):
      return f'{more!r} is not listed in {SUMS}'
    for name, digest in zip(names, _digests(folder, names), strict=True):
      if told[name] != digest:
        return f'{name!r} has changed since it was written'
  except FileNotFoundError as error:
    return f'{pathlib.Path(error.filename).name!r} is missing'
  except UnicodeDecodeError:
    return f'{SUMS!r} is damaged'
  except OSError as error:
    return f'{pathlib.Path(error.filename or folder).name!r} cannot be read: {error.strerror}'
  return None


def staging(directory: pathlib.Path) -> pathlib.Path:
  """Where a checkpoint is written, before it has its step's name."""
  return directory / _UNFINISHED


@contextlib.contextmanager
def adding(
  directory: pathlib.Path, step: int, kept: Callable[[list[int]], Collection[int]]
) -> Iterator[pathlib.Path]:
  """Gives a folder to write a checkpoint to; in the end it becomes that of `step`.

  Whatever stops the block, the checkpoints there were are still there. Those that are
  not to be kept go only when the new one is on the disk.

  Args:
    directory: of the checkpoints.
    step: of the new one, which must not be there.
    kept: of the steps that there are, the new one included and in rising order, those to keep.
  """
  clean(directory)
  folder = staging(directory)
  try:
    yield folder
    _seal(folder)
  except BaseException:
    clean(directory)  # a full disk has room again
    raise
  folder.rename(directory / str(step))
  _sync(directory)
  there = steps(directory)
  for old in sorted(set(there).difference(kept(there))):
    # Renamed first: a folder with a step's name is never half of a checkpoint.
    (directory / str(old)).rename(directory / _REMOVED)
    clean(directory)


def set_aside(directory: pathlib.Path, step: int) -> pathlib.Path:
  """Renames a damaged checkpoint, so that its step can be saved again; returns the new path."""
  aside = directory / f'{step}.damaged'
  shutil.rmtree(aside, ignore_errors=True)
  return (directory / str(step)).rename(aside)


def clean(directory: pathlib.Path) -> None:
  """Removes what a process that was killed left of a checkpoint."""
  for name in (_UNFINISHED, _REMOVED):
    for path in directory.glob(f'{name}*'):
      for _ in range(20):  # writers that a full disk did not stop may still add to it
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
          break
        time.sleep(0.05)


def _seal(folder: pathlib.Path) -> None:
  """Writes the checksums, and waits until all files are on the disk."""
  names = _names(folder)
  digests = _digests(folder, names, sync=True)
  lines = [f'{d}  {name}\n' for d, name in zip(digests, names, strict=True)]
  with (folder / SUMS).open('w', encoding='utf-8') as file:
    file.writelines(lines)
    file.flush()
    os.fsync(file.fileno())
  for path in (folder, *(p for p in folder.rglob('*') if p.is_dir())):
    _sync(path)


def _names(folder: pathlib.Path) -> list[str]:
  """Files of a checkpoint but its checksums; hidden ones are of some file system or desktop."""
  found = (path for path in folder.rglob('*') if path.is_file() and path.name[0] != '.')
  return sorted(str(p.relative_to(folder)) for p in found if p != folder / SUMS)


def _digests(folder: pathlib.Path, names: list[str], sync: bool = False) -> list[str]:
  def digest(name: str) -> str:
    with (folder / name).open('rb') as file:
      if sync:
        os.fsync(file.fileno())
      return hashlib.file_digest(file, 'sha256').hexdigest()

  with concurrent.futures.ThreadPoolExecutor() as pool:
    return list(pool.map(digest, names))


def _sync(folder: pathlib.Path) -> None:
  descriptor = os.open(folder, os.O_RDONLY)
  with contextlib.suppress(OSError):  # some network file systems cannot, and need not
    os.fsync(descriptor)
  os.close(descriptor)
