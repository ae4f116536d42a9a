"""Prepares JAX to compile for TPUs without one."""

from __future__ import annotations

import importlib.util
import os

import jax

HOSTS = {'v5e': 'v5e:2x4', 'v5p': 'v5p:2x2x1', 'v6e': 'v6e:2x4'}
"""Chip -> a topology of one host."""


def prepare() -> None:
  """Exits if libtpu is missing, else configures JAX; call it before JAX looks for devices."""
  if importlib.util.find_spec('libtpu') is None:
    raise SystemExit('libtpu is not installed, and it holds the compiler: pip install ".[tpu]"')
  jax.config.update('jax_platforms', 'cpu')  # Python runs here; programs are for the topology
  # libtpu reads these when loaded: there is no TPU to query, and several commands may run at once.
  os.environ |= {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}
