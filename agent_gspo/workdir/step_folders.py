"""Manages checkpoint folders on disk: integrity and retention.

A checkpoint is the folder `<step>`, complete from the moment it has that name. Its file
`SHA256SUMS` lists all its other files in the format of `sha256sum`, so `sha256sum -c SHA256SUMS`
checks it by hand. Orbax itself stores no checksums.
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
UNFINISHED = 'unfinished'  # prefix of the folder of an unfinished save
_REMOVED = 'removed'


def steps(directory: pathlib.Path) -> list[int]:
  """Returns the steps that have a folder, damaged or not, in rising order."""
  names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
  return sorted(int(name) for name in names if re.fullmatch(r'0|[1-9][0-9]{0,17}', name))


def newest_intact(directory: pathlib.Path) -> tuple[int | None, dict[int, str]]:
  """Finds the newest intact checkpoint; warns about each damaged one that is skipped.

  Returns:
    Its step, None if there is no checkpoint at all; and the damage of each newer step.

  Raises:
    ValueError: There are checkpoints, but none is intact.
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
      'remove that folder and start again.'
    )
  return None, {}


def problem(folder: pathlib.Path) -> str | None:
  """Returns the first damage of a checkpoint's files, None if all match their checksums."""
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


@contextlib.contextmanager
def adding(
  folder: pathlib.Path, step: int, kept: Callable[[list[int]], Collection[int]]
) -> Iterator[pathlib.Path]:
  """Yields `folder` for writing a checkpoint; after the block renames it to `step`.

  If the block fails, earlier checkpoints are intact. Old ones are removed only after the new one
  is on disk.

  Args:
    folder: Folder whose name begins with `UNFINISHED`; another for each attempt, as writers of a
      failed attempt may still be running.
    step: Step of the new checkpoint, which must not exist.
    kept: Function from all steps, in rising order and with the new one, to those to keep.
  """
  directory = folder.parent
  clean(directory)
  try:
    yield folder
    _seal(folder)
  except BaseException:
    clean(directory)  # frees space on a full disk
    raise
  folder.rename(directory / str(step))
  _sync(directory)
  there = steps(directory)
  for old in sorted(set(there).difference(kept(there))):
    # Renamed first: a folder with a step's name is never incomplete.
    (directory / str(old)).rename(directory / _REMOVED)
    clean(directory)


def set_aside(directory: pathlib.Path, step: int) -> pathlib.Path:
  """Renames a damaged checkpoint, so that its step can be saved again; returns the new path."""
  aside = directory / f'{step}.damaged'
  shutil.rmtree(aside, ignore_errors=True)
  return (directory / str(step)).rename(aside)


def clean(directory: pathlib.Path) -> None:
  """Removes unfinished and half-removed checkpoints of killed processes."""
  for name in (UNFINISHED, _REMOVED):
    for path in directory.glob(f'{name}*'):
      for _ in range(20):  # writers that are still running may add files
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
          break
        time.sleep(0.05)


def _seal(folder: pathlib.Path) -> None:
  """Writes the checksums, and waits until all files are on disk."""
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
  """Returns a checkpoint's files except checksums and hidden files (of file systems, desktops)."""
  found = (path.relative_to(folder) for path in folder.rglob('*') if path.is_file())
  hidden = lambda path: any(part.startswith('.') for part in path.parts)
  return sorted(str(path) for path in found if str(path) != SUMS and not hidden(path))


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
