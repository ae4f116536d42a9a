"""Finds or downloads official data files, and checks their hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import urllib.request
from collections.abc import Callable
from typing import Any

from agent_gspo import cache

DATA_DIR_VARIABLE = 'AGENT_GSPO_DATA_DIR'
BASE_URL = 'https://raw.githubusercontent.com'
# Task options that locate files on a machine; results do not depend on them (hashes are checked).
OF_MACHINE = ('data_dir', 'cache_dir', 'base_url')
_TIMEOUT_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Source:
  """One official file.

  Attributes:
    path: Path in a data directory, e.g. 'svamp/SVAMP.json'.
    repository: GitHub 'owner/name'.
    commit: Commit of the file.
    sha256: Hash of the content, hexadecimal.
    remote_path: Path in the repository; '' for `path` without its first folder.
    rewrite: Conversion of the repository's file to the official one; None if they are the same.
  """

  path: str
  repository: str
  commit: str
  sha256: str
  remote_path: str = ''
  rewrite: Callable[[bytes], bytes] | None = None

  def urls(self, base_url: str) -> tuple[str, ...]:
    """Returns the addresses of the file: at its commit, then at HEAD (the hash decides)."""
    base, path = base_url.rstrip('/'), self.remote_path or self.path.partition('/')[2]
    return tuple(f'{base}/{self.repository}/{ref}/{path}' for ref in (self.commit, 'HEAD'))


def parse_lines(text: str) -> list[dict[str, Any]]:
  """Parses the records of a JSON-lines file."""
  # Not splitlines(): a text may contain a Unicode line separator.
  return [json.loads(line) for line in text.rstrip('\n').split('\n')]


def data_folder(data_dir: str | os.PathLike | None = None) -> pathlib.Path | None:
  """Returns `data_dir`, else $AGENT_GSPO_DATA_DIR, else None.

  Raises:
    FileNotFoundError: if the given folder does not exist.
  """
  given = data_dir or os.environ.get(DATA_DIR_VARIABLE)
  if not given:
    return None
  folder = pathlib.Path(os.path.expanduser(given))  # does not change '~' of unknown users
  if not folder.is_dir():
    origin = 'data_dir' if data_dir else f'${DATA_DIR_VARIABLE}'
    raise FileNotFoundError(
      f'{origin}={str(given)!r} is not a folder; name the folder that holds the benchmark '
      'files, or leave it unset to download them'
    )
  return folder


def fetch(
  source: Source,
  *,
  data_dir: str | os.PathLike | None = None,
  cache_dir: str | os.PathLike | None = None,
  base_url: str = BASE_URL,
) -> pathlib.Path:
  """Returns the local path of an official file, downloaded if necessary.

  Looks in the data folder, then among earlier downloads, then at the file's own address.

  Raises:
    FileNotFoundError: if the file is not available; names the locations searched.
    ValueError: if the data folder or the address has a file with other content.
  """
  folder = data_folder(data_dir)
  if folder is not None and (folder / source.path).is_file():
    local = folder / source.path
    _check(local.read_bytes(), source, f'file {local}')
    return local
  cached = cache.folder(cache_dir) / 'downloads' / source.path
  if cached.is_file() and _sha256(cached.read_bytes()) == source.sha256:
    return cached
  reasons = []
  for url in source.urls(base_url):
    try:
      with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as reply:
        content = reply.read()
      if source.rewrite is not None:
        content = source.rewrite(content)
    except Exception as error:  # of the network, or from a file in another layout
      reasons.append(f'{url}: {error}')
      continue
    _check(content, source, f'download {url}')
    cached.parent.mkdir(parents=True, exist_ok=True)
    part = cached.with_name(f'{cached.name}.{os.getpid()}.part')
    part.write_bytes(content)
    os.replace(part, cached)
    return cached
  looked = f'{folder} has no {source.path}' if folder else f'${DATA_DIR_VARIABLE} is not set'
  raise FileNotFoundError(
    f'cannot get {source.path}: {looked}; download failed ({"; ".join(reasons)}). '
    f'Remedy: put the file at <folder>/{source.path} and pass data_dir=<folder> or set '
    f'${DATA_DIR_VARIABLE}=<folder>, or try again with a network connection'
  )


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


def _check(content: bytes, source: Source, what: str) -> None:
  found = _sha256(content)
  if found != source.sha256:
    raise ValueError(
      f'{what} has sha256 {found}, but the official file ({source.repository} at '
      f'{source.commit}) has {source.sha256}; replace it by the official file, or remove it '
      'to have it downloaded'
    )
