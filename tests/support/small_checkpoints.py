"""Builds checkpoints of a small state, and damages their files."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Collection

import jax
import jax.numpy as jnp
import micro_run
import numpy as np

from agent_gspo.config import Config
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.workdir import checkpoints


def params(value: float) -> dict[str, dict[str, jnp.ndarray]]:
  """Returns nested parameters that do not compress well."""
  noise = np.random.default_rng(0).normal(value, 1, (2, 500)).astype(np.float32)
  return {'a': {'lora_a': jnp.asarray(noise)}, 'b': {'kernel': jnp.asarray(noise[0])}}


def state(value: float, step: int = 0) -> state_lib.TrainState:
  """Returns a state of few arrays, of which one is frozen."""
  optimizer = state_lib.make_optimizer(LearnerOptions(learning_rate=1.0), updates=1)
  made = state_lib.init(params(value), optimizer, lambda_tok=value, lora=True)
  # As after some steps: none of the optimizer's moments is 0.
  moments = jax.tree.map(
    lambda x: x + params(value)['a']['lora_a'] if x.ndim else x, made.opt_state
  )
  made = made.replace(opt_state=moments)
  return made.replace(step=jnp.int32(step))


def open_(
  folder: pathlib.Path,
  keep: int = 1,
  allow_changes: Collection[str] = (),
  keep_best: int = 0,
  **sections,
) -> checkpoints.Checkpoints:
  """Opens a folder as checkpoints of the micro run; `sections` change its config."""
  config = micro_run.get_config().to_dict()
  for section, fields in sections.items():
    config[section] = {**config[section], **fields} if isinstance(fields, dict) else fields
  return checkpoints.Checkpoints(folder, Config.from_dict(config), keep, allow_changes, keep_best)


def _largest(folder: pathlib.Path) -> pathlib.Path:
  return max((p for p in folder.rglob('*') if p.is_file()), key=lambda p: p.stat().st_size)


def _cut(file: pathlib.Path, size: int) -> None:
  file.write_bytes(file.read_bytes()[:size])


def _flip(file: pathlib.Path) -> None:
  data = bytearray(file.read_bytes())
  data[len(data) // 2] ^= 1
  file.write_bytes(data)


def _empty(folder: pathlib.Path) -> None:
  shutil.rmtree(folder)
  folder.mkdir()


def _file_instead(folder: pathlib.Path) -> None:
  shutil.rmtree(folder)
  folder.write_text('')


# Name -> what is done to the folder of a checkpoint.
DAMAGES = {
  'arrays cut off': lambda f: _cut(_largest(f / 'params' / 'ocdbt.process_0'), 40),
  'arrays deleted': lambda f: _largest(f / 'state' / 'ocdbt.process_0').unlink(),
  'arrays flipped': lambda f: _flip(_largest(f / 'params' / 'ocdbt.process_0')),
  'state flipped': lambda f: _flip(_largest(f / 'state' / 'ocdbt.process_0')),
  'manifest cut off': lambda f: _cut(f / 'params' / 'manifest.ocdbt', 20),
  'manifest deleted': lambda f: (f / 'state' / 'manifest.ocdbt').unlink(),
  'metadata empty': lambda f: _cut(f / 'state' / '_METADATA', 0),
  'metadata deleted': lambda f: (f / 'params' / '_METADATA').unlink(),
  'metadata garbage': lambda f: (f / 'params' / '_METADATA').write_bytes(b'\xff\x00garbage'),
  'step metadata garbage': lambda f: (f / '_CHECKPOINT_METADATA').write_text('{"item'),
  'config garbage': lambda f: (f / 'config' / 'metadata').write_text('[]'),
  'config deleted': lambda f: (f / 'config' / 'metadata').unlink(),
  'item deleted': lambda f: shutil.rmtree(f / 'state'),
  'item empty': lambda f: _empty(f / 'params'),
  'all deleted': _empty,
  'a file instead': _file_instead,
  'checksums deleted': lambda f: (f / 'SHA256SUMS').unlink(),
  'checksums cut off': lambda f: _cut(f / 'SHA256SUMS', 100),
  'checksums garbage': lambda f: (f / 'SHA256SUMS').write_bytes(b'\xff\xfe\n'),
}
