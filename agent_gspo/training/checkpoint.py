"""Saves and restores everything that changes, with the config it belongs to."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.traverse_util
import jax
import orbax.checkpoint as ocp

from agent_gspo.models.transformer import Params
from agent_gspo.training.state import TrainState

# Fields that may differ between the run that saved and the one that resumes: they
# change neither the parameters nor what is sampled in the steps to come (another mesh: but
# for rounding).
_FREE = ('steps', 'mesh', 'evaluation', 'checkpoint', 'logging')
# Fields that say what parameters are. A model from scratch has the words of its task and
# prompts as its vocabulary.
_MODEL = ('model.source', 'model.lora_rank', 'model.lora_alpha', 'policy.sharing', 'policy.frozen')
_MODEL_FROM_SCRATCH = (*_MODEL, 'task.name', 'task.options', 'team.agents', 'team.roles')

_ITEMS = ('params', 'state', 'config')


class Checkpoints:
  """The checkpoints of one run."""

  def __init__(self, directory: pathlib.Path, config: Mapping[str, Any], keep: int = 1):
    """Opens the directory, which need not exist.

    Args:
      directory: of the checkpoints.
      config: resolved config of this run, a nested dict of plain values.
      keep: newest checkpoints to keep.

    Raises:
      ValueError: the checkpoint there was made with another config.
    """
    self._config = _as_json(config)
    self._manager = _open(directory, keep)
    if self.latest_step is not None:
      free = _FREE
      # The learning rate, or what is kept of the samples, depends on the end.
      if config['learner']['schedule'] != 'constant' or config['advantage']['name'] == 'd3s':
        free = tuple(field for field in _FREE if field != 'steps')
      _check_config(self._manager, self._config, lambda field: not _under(field, free))

  @property
  def latest_step(self) -> int | None:
    """Step of the newest checkpoint, None if there is none."""
    return self._manager.latest_step()

  def save(self, state: TrainState) -> None:
    """Writes the state; does nothing if its step is saved already."""
    step = int(state.step)
    if step == self.latest_step:
      return
    params, rest = _split(state)
    self._manager.save(
      step,
      args=ocp.args.Composite(
        params=ocp.args.StandardSave(params),
        state=ocp.args.StandardSave(rest),
        config=ocp.args.JsonSave(self._config),
      ),
    )
    self._manager.wait_until_finished()

  def restore(self, like: TrainState) -> TrainState:
    """The newest checkpoint, as a state with the shapes and placement of `like`."""
    params, rest = _split(like)
    restored = self._manager.restore(
      self.latest_step,
      args=ocp.args.Composite(
        params=ocp.args.StandardRestore(_abstract(params)),
        state=ocp.args.StandardRestore(_abstract(rest)),
      ),
    )
    without = like.replace(trainable={}, frozen={})
    state = jax.tree.unflatten(jax.tree.structure(without), jax.tree.leaves(restored.state))
    return state.replace(
      trainable={path: restored.params['/'.join(path)] for path in like.trainable},
      frozen={path: restored.params['/'.join(path)] for path in like.frozen},
    )

  def close(self) -> None:
    self._manager.close()


def saved_config(directory: pathlib.Path) -> dict[str, Any]:
  """The config that the newest checkpoint of a directory was made with.

  Raises:
    FileNotFoundError: there is no checkpoint.
  """
  manager = _open_existing(directory)
  config = _restore_config(manager)
  manager.close()
  return config


def check_params(directory: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Whether `restore_params` can succeed, before a model is loaded for it.

  Raises:
    FileNotFoundError: there is no checkpoint.
    ValueError: it is of another model than the config describes.
  """
  manager = _open_existing(directory)
  scratch = config['model']['source'].startswith('random:')
  fields = _MODEL_FROM_SCRATCH if scratch else _MODEL
  if config['policy']['sharing'] != 'shared':  # whose adapter is whose
    fields = (*fields, 'team.agents')
  _check_config(manager, _as_json(config), lambda field: _under(field, fields))
  manager.close()


def restore_params(
  directory: pathlib.Path, config: Mapping[str, Any], like: Params
) -> tuple[Params, int]:
  """Parameters of the newest checkpoint, and its step; for another use than going on.

  Args:
    directory: of the checkpoints.
    config: must describe the same model; all else may differ.
    like: nested parameters of that model, for shapes and placement.

  Raises:
    FileNotFoundError: there is no checkpoint.
    ValueError: it is of another model.
  """
  check_params(directory, config)
  manager = _open_existing(directory)
  step = manager.latest_step()
  flat = flax.traverse_util.flatten_dict(like, sep='/')
  restored = manager.restore(
    step, args=ocp.args.Composite(params=ocp.args.StandardRestore(_abstract(flat)))
  )
  manager.close()
  return flax.traverse_util.unflatten_dict(restored.params, sep='/'), step


def _open(directory: pathlib.Path, keep: int = 1) -> ocp.CheckpointManager:
  # Saving waits for the disk: the update donates its buffers, and on CPU a background
  # writer would still be reading them.
  return ocp.CheckpointManager(
    directory.absolute(),
    item_names=_ITEMS,
    options=ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False),
  )


def _open_existing(directory: pathlib.Path) -> ocp.CheckpointManager:
  manager = _open(directory) if directory.is_dir() else None
  if manager is None or manager.latest_step() is None:
    raise FileNotFoundError(f'{directory} holds no checkpoint; give the --workdir of a run.')
  return manager


def _split(state: TrainState) -> tuple[dict[str, Any], dict[str, Any]]:
  """Parameters and the rest, under names that do not depend on classes of libraries."""
  params = {'/'.join(path): leaf for path, leaf in {**state.trainable, **state.frozen}.items()}
  leaves = jax.tree_util.tree_flatten_with_path(state.replace(trainable={}, frozen={}))[0]
  rest = {f'{i:05d}{jax.tree_util.keystr(path)}': leaf for i, (path, leaf) in enumerate(leaves)}
  return params, rest


def _abstract(tree: Any) -> Any:
  return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
  """A config as it comes back from the disk (tuples are lists there)."""
  return json.loads(json.dumps(config))


def _restore_config(manager: ocp.CheckpointManager) -> dict[str, Any]:
  args = ocp.args.Composite(config=ocp.args.JsonRestore())
  return manager.restore(manager.latest_step(), args=args).config


def _check_config(
  manager: ocp.CheckpointManager, config: Mapping[str, Any], matters: Callable[[str], bool]
) -> None:
  theirs, ours = _leaves(_restore_config(manager)), _leaves(config)
  differing = [
    f'{key}: {theirs.get(key)!r} in the checkpoint, {ours.get(key)!r} now'
    for key in sorted(theirs.keys() | ours.keys())
    if theirs.get(key) != ours.get(key) and matters(key)
  ]
  if differing:
    raise ValueError(
      f'the checkpoint at step {manager.latest_step()} was made with another config ('
      + '; '.join(differing)
      + '). Use its config, or another --workdir.'
    )


def _under(field: str, sections: tuple[str, ...]) -> bool:
  return any(f'{field}.'.startswith(f'{section}.') for section in sections)


def _leaves(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  out: dict[str, Any] = {}
  for key, value in config.items():
    if isinstance(value, Mapping):
      out.update(_leaves(value, f'{prefix}{key}.'))
    else:
      out[f'{prefix}{key}'] = value
  return out
