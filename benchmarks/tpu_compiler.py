"""What compiling for TPUs without one needs."""

from __future__ import annotations

import importlib.util
import os

import jax

HOSTS = {'v5e': 'v5e:2x4', 'v5p': 'v5p:2x2x1', 'v6e': 'v6e:2x4'}
"""A topology of one host for each chip."""


def prepare() -> None:
  """Ends the command where libtpu is missing; call it before a device is asked for."""
  if importlib.util.find_spec('libtpu') is None:
    raise SystemExit('libtpu is not installed, and it holds the compiler: pip install ".[tpu]"')
  jax.config.update('jax_platforms', 'cpu')  # what runs here; programs are for the topology
  # Read as libtpu is loaded: there is no TPU to ask, and several commands may run at once.
  os.environ |= {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}
