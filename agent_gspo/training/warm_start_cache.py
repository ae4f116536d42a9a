"""Keeps warm starts, so that the runs of a sweep that begin alike warm-start once a seed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors.numpy

from agent_gspo import cache
from agent_gspo.models.transformer import Params

# What the parameters after a warm start depend on, beside the program itself.
_SECTIONS = ('seed', 'model', 'task', 'team', 'policy', 'warm_start')
_LEARNER = ('row_tokens', 'rows')


def load(config: Mapping[str, Any], like: Params) -> Params | None:
  """The parameters that this warm start gave before, None if it has not been made.

  Args:
    config: resolved, of the run.
    like: parameters of the same model.
  """
  file = _file(config)
  if not file.exists():
    return None
  flat = safetensors.numpy.load_file(file)
  if set(flat) != set(flax.traverse_util.flatten_dict(like, sep='/')):
    return None
  return flax.traverse_util.unflatten_dict(flat, sep='/')


def save(config: Mapping[str, Any], params: Params) -> None:
  """Keeps the parameters that a warm start gave."""
  file = _file(config)
  file.parent.mkdir(parents=True, exist_ok=True)
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  part = file.with_suffix(f'.{os.getpid()}')  # runs of a sweep may finish the same one together
  safetensors.numpy.save_file({k: np.asarray(v) for k, v in flat.items()}, part)
  part.replace(file)


def _file(config: Mapping[str, Any]) -> pathlib.Path:
  told = {k: config[k] for k in _SECTIONS} | {k: config['learner'][k] for k in _LEARNER}
  text = json.dumps([told, jax.__version__, _program()], sort_keys=True)
  name = hashlib.sha256(text.encode()).hexdigest()[:32]
  return cache.folder() / 'warm_starts' / f'{name}.safetensors'


@functools.cache
def _program() -> str:
  """Fingerprint of the package's sources: another program may learn something else."""
  sources = sorted(pathlib.Path(__file__).resolve().parents[1].rglob('*.py'))
  return hashlib.sha256(b'\0'.join(path.read_bytes() for path in sources)).hexdigest()
