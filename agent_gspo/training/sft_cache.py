"""Caches SFT results, so that runs of a sweep with the same SFT run it once per seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from agent_gspo import cache, plugins, provenance
from agent_gspo.algorithms import terms
from agent_gspo.config import Config
from agent_gspo.models import load as models
from agent_gspo.models.transformer import Params

# Sections that the parameters after SFT depend on, beside the code itself.
_SECTIONS = ('model', 'task', 'team', 'policy', 'sft')
_LEARNER = ('pack_length', 'micro_batch_size', 'b1_dtype')
_DIGEST = 'sha256'  # metadata key: digest of names and values


def file_of(config: Config, source: str, vocabulary: str) -> pathlib.Path:
  """Returns the cache file of an SFT result, named by a fingerprint of all it depends on.

  Call it before SFT starts: weight files may be overwritten meanwhile.

  Args:
    config: Resolved run configuration.
    source: Source of the model, see `Model.source`.
    vocabulary: Fingerprint of the tokenizer; it sets the embeddings of a model from scratch.
  """
  told: dict[str, Any] = {'vocabulary': vocabulary}
  told |= {name: getattr(config, name).to_dict() for name in _SECTIONS}
  told |= {name: getattr(config.learner, name) for name in _LEARNER}
  told['model'] |= {'source': _version(source)}
  told['sft'] |= {'seed': config.sft.seed_of(config.seed)}
  if source.startswith('random:') or config.model.lora_rank:
    told['seed'] = config.seed  # parameters are drawn
  if sheet := terms.make(config.budget):
    told['terms'] = dataclasses.asdict(sheet)
  files = [pathlib.Path(x) for x in config.task.options.values() if isinstance(x, str) and x]
  told['files'] = [_stamp(file) for file in files if file.is_file()]  # of questions
  own = plugins.digest(told)
  text = json.dumps([told, jax.__version__, provenance.code(), own], sort_keys=True)
  name = hashlib.sha256(text.encode()).hexdigest()[:32]
  return cache.folder() / 'sft' / f'{name}.safetensors'


def _version(source: str) -> Any:
  """Returns path, size and modification time of each local file of a source, else the source."""
  return [_stamp(file) for file in models.local_files(source)] or source


def _stamp(file: pathlib.Path) -> tuple[str, int, int]:
  stat = file.stat()
  return str(file.resolve()), stat.st_size, stat.st_mtime_ns


def load(file: pathlib.Path, like: Params) -> Params | None:
  """Returns cached parameters after SFT, None without a cache entry.

  Warns about a damaged file and ignores it.

  Args:
    file: Cache file, see `file_of`.
    like: Parameters of the same model, for names, shapes and dtypes.
  """
  if not file.exists():
    return None
  try:
    with safetensors.safe_open(file, framework='numpy') as opened:
      flat = {name: opened.get_tensor(name) for name in opened.keys()}
      told = (opened.metadata() or {}).get(_DIGEST)
    wrong = _problem(flat, flax.traverse_util.flatten_dict(like, sep='/'))
    if not wrong and told != _digest(flat):
      wrong = 'its contents have changed'
  except (OSError, ValueError, safetensors.SafetensorError) as error:
    wrong = str(error)
  if wrong:
    warnings.warn(f'{file} is damaged ({wrong}): SFT runs anew', stacklevel=2)
    return None
  return flax.traverse_util.unflatten_dict(flat, sep='/')


def save(file: pathlib.Path, params: Params) -> None:
  """Caches the parameters after SFT; warns if they cannot be written.

  Args:
    file: Cache file, see `file_of`.
    params: Nested parameters.

  Raises:
    FloatingPointError: The parameters are not all finite.
  """
  flat = {k: np.asarray(v) for k, v in flax.traverse_util.flatten_dict(params, sep='/').items()}
  wrong = _problem(flat, flat)
  if wrong:
    raise FloatingPointError(f'after SFT {wrong}. Lower sft.learning_rate.')
  part = file.with_suffix(f'.{os.getpid()}')  # runs of a sweep may finish the same one together
  try:
    file.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(flat, part, metadata={_DIGEST: _digest(flat)})
    part.replace(file)
  except (OSError, safetensors.SafetensorError) as error:
    part.unlink(missing_ok=True)
    warnings.warn(f'the result of SFT is not kept for other runs, {file}: {error}', stacklevel=2)


def _problem(flat: Mapping[str, np.ndarray], like: Mapping[str, Any]) -> str | None:
  """Describes the first array that differs from `like` or is not finite; None without one."""
  for name in sorted(flat.keys() ^ like.keys()):
    return f'{name} is {"more" if name in flat else "less"} than the model has'
  for name, x in flat.items():
    wanted = like[name]
    if x.shape != wanted.shape or x.dtype != wanted.dtype:
      return f'{name} is {x.dtype}{list(x.shape)}, not {wanted.dtype}{list(wanted.shape)}'
    if not np.isfinite(x).all():
      return f'{name} is not finite'
  return None


def _digest(flat: Mapping[str, np.ndarray]) -> str:
  total = hashlib.sha256()
  for name in sorted(flat):
    total.update(name.encode())
    total.update(flat[name].tobytes())
  return total.hexdigest()
