"""What compiling for TPUs without one needs; import it before jax is first used."""

from __future__ import annotations

import importlib.util
import os

os.environ |= {
  'JAX_PLATFORMS': 'cpu',  # what runs here; programs are compiled for the topology
  'TPU_SKIP_MDS_QUERY': '1',  # there is no TPU to ask
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}

HOSTS = {'v5e': 'v5e:2x4', 'v5p': 'v5p:2x2x1', 'v6e': 'v6e:2x4'}
"""A topology of one host for each chip."""


def require() -> None:
  """Ends the command where libtpu is missing."""
  if importlib.util.find_spec('libtpu') is None:
    raise SystemExit('libtpu is not installed, and it holds the compiler: pip install ".[tpu]"')
