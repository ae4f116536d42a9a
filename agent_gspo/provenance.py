"""Identifies the code, the packages and the machine of a process."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import pathlib
import platform
import shlex
import socket
import subprocess
import sys
from typing import Any

_PACKAGES = ('agent_gspo', 'jax', 'jaxlib', 'numpy', 'flax', 'optax', 'orbax-checkpoint')
_FOLDER = pathlib.Path(__file__).resolve().parent


@functools.cache
def code() -> str:
  """Returns the SHA-256 (hex) of the package's sources."""
  sources = sorted(_FOLDER.rglob('*.py'))
  return hashlib.sha256(b'\0'.join(path.read_bytes() for path in sources)).hexdigest()


def software() -> dict[str, str]:
  """Returns the versions that results may depend on; '' for packages that are not installed."""
  return {
    'python': platform.python_version(),
    **{name: _version(name) for name in _PACKAGES},
    'code': code(),
  }


def start() -> dict[str, Any]:
  """Returns `software()` with command, commit, host and devices; initializes JAX's devices."""
  import jax  # heavy, and `software` does without

  devices = jax.devices()
  return {
    **software(),
    'command': shlex.join(sys.orig_argv),
    'commit': _commit(),
    'host': socket.gethostname(),
    'system': platform.platform(),
    'processes': jax.process_count(),
    'devices': len(devices),
    'device': devices[0].device_kind,
  }


def _version(name: str) -> str:
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return ''


def _commit() -> str:
  """Returns the checked-out commit, with '+' appended if files have changed."""
  if not (_FOLDER.parent / '.git').exists():
    return ''
  try:
    told = subprocess.run(
      ['git', '-C', str(_FOLDER.parent), 'describe', '--always', '--abbrev=40', '--dirty=+'],
      capture_output=True,
      text=True,
      timeout=10,
      check=False,
    )
  except (OSError, subprocess.TimeoutExpired):
    return ''
  return told.stdout.strip()
