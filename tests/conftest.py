"""What holds for every test of the suite."""

from __future__ import annotations

import jax
import pytest

_SETTINGS = {
  # `[N] + [N, 1]` is a mistake far more often than it is meant: an error in all tests.
  'jax_numpy_rank_promotion': 'raise',
  # GPUs and TPUs multiply float32 with fewer bits unless told otherwise.
  'jax_default_matmul_precision': 'highest',
}


@pytest.fixture(scope='session', autouse=True)
def _strict_jax():
  """Strict shapes and full precision, so that tolerances mean the same on every device."""
  before = {name: getattr(jax.config, name) for name in _SETTINGS}
  for name, value in _SETTINGS.items():
    jax.config.update(name, value)
  yield
  for name, value in before.items():
    jax.config.update(name, value)
