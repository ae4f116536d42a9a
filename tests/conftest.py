"""Configures pytest and JAX for all tests."""

from __future__ import annotations

import importlib.util
import os
import tempfile

import jax
import micro_run
import pytest

_SETTINGS = {
  # `[N] + [N, 1]` is usually a mistake: an error in all tests.
  'jax_numpy_rank_promotion': 'raise',
  # GPUs and TPUs multiply float32 with fewer bits unless told otherwise.
  'jax_default_matmul_precision': 'highest',
}


def pytest_configure(config):
  """Sets a folder of the session and XLA's flags, which xdist's workers inherit."""
  if micro_run.SESSION not in os.environ:
    if importlib.util.find_spec('libtpu') is None:  # libtpu ends the process at a CPU flag
      # Compiles in half the time; jaxlib 0.7 to 0.12 know the flag.
      os.environ['XLA_FLAGS'] = micro_run.xla_flags('--xla_cpu_use_fusion_emitters=false')
    holder = tempfile.TemporaryDirectory()
    os.environ[micro_run.SESSION] = holder.name
    config.add_cleanup(lambda: os.environ.pop(micro_run.SESSION))
    config.add_cleanup(holder.cleanup)


@pytest.fixture(scope='session', autouse=True)
def _jax_settings():
  """Sets strict shapes, full precision and a compilation cache that the session shares.

  Tolerances are then the same on every device. A cache folder that is already set stays.
  """
  settings = dict(_SETTINGS)
  if not jax.config.jax_compilation_cache_dir:
    settings |= {name.lower(): value for name, value in micro_run.programs().items()}
  for name, value in settings.items():
    jax.config.update(name, value)
