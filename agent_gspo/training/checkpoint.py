"""Saves and restores everything that changes, with the config it belongs to."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from agent_gspo.training.state import TrainState

# Fields that may differ between the run that saved and the one that resumes: they
# change neither the parameters nor what is sampled in the steps to come.
_FREE = ('steps', 'evaluation', 'checkpoint', 'logging')


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
    self._config = dict(config)
    # Saving waits for the disk: the update donates its buffers, and on CPU a background
    # writer would still be reading them.
    self._manager = ocp.CheckpointManager(
      directory.absolute(),
      item_names=('state', 'config'),
      options=ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False),
    )
    if self.latest_step is not None:
      self._check_config()

  @property
  def latest_step(self) -> int | None:
    """Step of the newest checkpoint, None if there is none."""
    return self._manager.latest_step()

  def save(self, state: TrainState) -> None:
    """Writes the state; does nothing if its step is saved already."""
    step = int(state.step)
    if step == self.latest_step:
      return
    self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(_to_tree(state)), config=ocp.args.JsonSave(self._config)
      ),
    )
    self._manager.wait_until_finished()

  def restore(self, like: TrainState) -> TrainState:
    """The newest checkpoint, as a state with the shapes and placement of `like`."""
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, _to_tree(like))
    restored = self._manager.restore(
      self.latest_step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
    )
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(restored.state))

  def close(self) -> None:
    self._manager.close()

  def _check_config(self) -> None:
    saved = self._manager.restore(
      self.latest_step, args=ocp.args.Composite(config=ocp.args.JsonRestore())
    ).config
    theirs, ours = _leaves(saved), _leaves(self._config)
    differing = [
      f'{key}: {theirs.get(key)!r} in the checkpoint, {ours.get(key)!r} now'
      for key in sorted(theirs.keys() | ours.keys())
      if theirs.get(key) != ours.get(key) and key.split('.')[0] not in _FREE
    ]
    if differing:
      raise ValueError(
        f'the checkpoint at step {self.latest_step} was made with another config ('
        + '; '.join(differing)
        + '). Use its config, or another --workdir.'
      )


def _to_tree(state: TrainState) -> dict[str, Any]:
  """The leaves under stable names: what is saved does not depend on classes of libraries."""
  leaves = jax.tree_util.tree_flatten_with_path(state)[0]
  return {f'{i:05d}{jax.tree_util.keystr(path)}': leaf for i, (path, leaf) in enumerate(leaves)}


def _leaves(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  out: dict[str, Any] = {}
  for key, value in config.items():
    if isinstance(value, Mapping):
      out.update(_leaves(value, f'{prefix}{key}.'))
    else:
      out[f'{prefix}{key}'] = list(value) if isinstance(value, tuple) else value
  return out
