"""Saves and restores the state of a run together with its config.

A state is a dataclass of pytrees with a scalar `step` and the parameters `trainable` and `frozen`,
flat dicts by path.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import flax.traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp

from agent_gspo.config import Config, compatibility
from agent_gspo.models.transformer import Params
from agent_gspo.sharding import hosts
from agent_gspo.workdir import disk, records, step_folders

State = TypeVar('State')

# Timeout for other processes' parts of a checkpoint; a dead process ends the others much earlier.
_PATIENCE_SECONDS = 4 * 3600
_LARGEST_COPY = 1 << 28  # largest state on CPUs, bytes, that is copied and written in background


class Checkpoints:
  """Checkpoints of one run.

  Attributes:
    directory: Folder of the checkpoints.
    latest_step: Step of the newest intact checkpoint on disk, None if there is none.
    taken_step: Step of the newest save, which may be in flight; None if there is none.
    damaged: Damage of each newer checkpoint, by step.
    changes: Config changes mid-run, oldest first: `step` (finished steps), `field`, `old` and
      `new` value.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    config: Config,
    keep: int = 2,
    allow_changes: Collection[str] = (),
    keep_best: int = 0,
  ):
    """Opens the directory, which need not exist.

    Args:
      directory: Folder of the checkpoints; its parent holds the evaluations.
      config: Resolved config of this run.
      keep: Number of newest checkpoints to keep.
      allow_changes: Fields of `compatibility.CHANGEABLE` that may differ from the checkpoint's.
      keep_best: Number of best checkpoints to keep, whether among the newest or not, see
        `records.best_first`.

    Raises:
      ValueError: The newest intact checkpoint was made with another config, or none is intact;
        or a field is not in `compatibility.CHANGEABLE`; or the path has one of [, ] and \\.
    """
    compatibility.check_changeable(allow_changes)
    self.changes: list[dict[str, Any]] = []
    self._config, self.directory = compatibility.as_json(config), directory.absolute()
    if re.search(r'[\[\]\\]', str(self.directory)):  # Orbax would read the path as a pattern
      raise ValueError(
        f'{self.directory}: no checkpoint could be read from this folder. Take one whose path has '
        'none of [, ] and \\.'
      )
    self._keep, self._keep_best = keep, keep_best
    self.directory.mkdir(parents=True, exist_ok=True)
    self.latest_step, self.damaged = hosts.agreed(
      lambda: step_folders.newest_intact(self.directory)
    )
    if self.latest_step is not None:
      saved = _open(self.directory, self.latest_step)
      self.changes = saved.changes + compatibility.changes(
        saved.config, saved.step, config, allow_changes
      )
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'checkpoints')
    self._saving: concurrent.futures.Future[None] | None = None
    self.taken_step, self._attempts = self.latest_step, 0

  def save(
    self,
    state: Any,
    also_keep: Collection[int] = (),
    rollouts: Mapping[str, bytes] = MappingProxyType({}),
  ) -> None:
    """Copies the state, which the caller may then reuse, and writes it in the background.

    A state on CPUs above `_LARGEST_COPY` is not copied: it is written before the call returns.
    Waits for the previous save first. Does nothing if this step is saved or being saved.

    Args:
      state: State to save.
      also_keep: Steps whose checkpoints stay.
      rollouts: Encoded rollouts by name, b'' for none.

    Raises:
      WriteError: The previous save, or the part of this one before the call returns, could not be
        written; earlier checkpoints are intact.
    """
    step = int(state.step)
    if step == self.taken_step:
      return
    self.wait()
    further = {
      name: ocp.args.ArraySave(np.frombuffer(data, np.uint8))
      for name, data in rollouts.items()
      if data
    }
    copied = _bytes_on_cpus(state) <= _LARGEST_COPY
    params, rest = _split(_unshared(state) if copied else state)
    self._attempts += 1
    folder = self.directory / f'{step_folders.UNFINISHED}{self._attempts}'
    adding: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if hosts.is_first():
      kept = lambda steps: {*self._kept(steps), *also_keep}
      adding = step_folders.adding(folder, step, kept)
    meetings = hosts.ThreadMeetings(_PATIENCE_SECONDS)
    with contextlib.ExitStack() as work:
      work.enter_context(disk.writing(f'checkpoint {step}', self.directory))
      work.enter_context(adding)
      orbax = work.enter_context(_orbax(lambda: _async_checkpointer(meetings)))
      hosts.barrier()  # the first process cleans up before any other writes
      orbax.save(  # returns when arrays on accelerators are copied
        folder,
        args=ocp.args.Composite(
          params=ocp.args.StandardSave(params),
          state=ocp.args.StandardSave(rest),
          config=ocp.args.JsonSave({**self._config, 'changes': self.changes}),
          **further,
        ),
      )
      rest_of_it = work.pop_all()
    self.taken_step = step
    self._saving = self._thread.submit(self._finish, step, orbax, rest_of_it, meetings)
    if not copied:
      self.wait()

  def wait(self) -> None:
    """Waits until the current save is on disk.

    Raises:
      WriteError: It could not be written; earlier checkpoints are intact.
    """
    if self._saving is not None:
      concurrent.futures.wait([self._saving])  # Ctrl-C leaves it in place for the next call
      saving, self._saving = self._saving, None
      try:
        saving.result()
      except Exception:
        self.taken_step = self.latest_step
        raise

  def _finish(
    self,
    step: int,
    orbax: ocp.AsyncCheckpointer,
    rest_of_it: contextlib.ExitStack,
    meetings: hosts.ThreadMeetings,
  ) -> None:
    """Finishes a save in the background; it succeeds or fails in all processes alike."""
    with _told(meetings):
      with rest_of_it:  # the first process seals and renames the folder, and removes old ones
        # All finish their parts before the first removes a folder that one could not write to.
        with _told(meetings), disk.writing(f'checkpoint {step}', self.directory):
          orbax.wait_until_finished()
    _meet(meetings)
    self.latest_step = step

  def _kept(self, steps: list[int]) -> list[int]:
    """Returns the checkpoints to keep, by the evaluations so far."""
    ranked = records.best_first(self.directory.parent) if self._keep_best else []
    return steps[-self._keep :] + [s for s in ranked if s in steps][: self._keep_best]

  def restore(self, like: State) -> State:
    """Restores the newest intact checkpoint, with the shapes and shardings of `like`.

    The leaves of `like` may be `jax.ShapeDtypeStruct`s. Damaged checkpoints are renamed, so that
    their steps can be saved again.
    """
    params, rest = _split(like)
    _check_shapes(self.directory / str(self.latest_step), params)
    with _orbax() as orbax:
      restored = orbax.restore(
        self.directory / str(self.latest_step),
        args=ocp.args.Composite(
          params=ocp.args.StandardRestore(_abstract(params)),
          state=ocp.args.StandardRestore(_abstract(rest)),
        ),
      )
    for step in self.damaged if hosts.is_first() else ():
      step_folders.set_aside(self.directory, step)
    return _joined(like, restored.params, restored.state)

  def restore_rollouts(self, name: str) -> bytes:
    """Returns some rollouts of the newest intact checkpoint, as given to `save`; b'' for none."""
    folder = self.directory / str(self.latest_step)
    if not self.latest_step or not (folder / name).exists():
      return b''
    with _orbax() as orbax:
      item = {name: ocp.args.ArrayRestore()}
      restored = orbax.restore(folder, args=ocp.args.Composite(**item))
    return np.asarray(restored[name]).tobytes()


@dataclasses.dataclass(frozen=True)
class Saved:
  """Location and config of a checkpoint, for other uses than resuming."""

  folder: pathlib.Path
  step: int  # finished steps
  config: dict[str, Any]  # config of the run that saved it
  changes: list[dict[str, Any]]  # earlier config changes, see `Checkpoints`

  def check_params(self, config: Config) -> None:
    """Checks that `restore_params` can load this checkpoint, before a model is loaded.

    Raises:
      ValueError: The config describes another model.
    """
    compatibility.check_model(self.config, self.step, config)

  def restore_params(self, config: Config, like: Params) -> Params:
    """Returns the parameters of a model like `like`, which `config` must describe.

    Raises:
      ValueError: The checkpoint is of another model.
    """
    self.check_params(config)
    flat = flax.traverse_util.flatten_dict(like, sep='/')
    _check_shapes(self.folder, flat)
    params = ocp.args.StandardRestore(_abstract(flat))
    with _orbax() as orbax:
      restored = orbax.restore(self.folder, args=ocp.args.Composite(params=params))
    return flax.traverse_util.unflatten_dict(restored.params, sep='/')


def newest(directory: pathlib.Path) -> Saved:
  """Returns the newest intact checkpoint of a directory; warns about damaged ones.

  Raises:
    FileNotFoundError: There is no checkpoint.
    ValueError: None is intact.
  """
  step, _ = step_folders.newest_intact(directory)
  if step is None:
    raise FileNotFoundError(f'{directory} holds no checkpoint; give the --workdir of a run.')
  return _open(directory, step)


def chosen(directory: pathlib.Path, which: str | None) -> Saved:
  """Returns a checkpoint by name; warns about damaged ones that are skipped.

  Args:
    directory: Folder of a run's checkpoints.
    which: A step; or 'best', the best intact checkpoint that the run has evaluated, see
      `records.best_first`; or None, the newest intact one.

  Raises:
    FileNotFoundError: There is no checkpoint.
    ValueError: There is no such checkpoint; names the existing ones.
  """
  there = step_folders.steps(directory)
  if which is None or not there:
    return newest(directory)
  names = ', '.join(map(str, there))
  if which == 'best':
    for step in (step for step in records.best_first(directory.parent) if step in there):
      if (reason := step_folders.problem(directory / str(step))) is None:
        return _open(directory, step)
      warnings.warn(f'{directory / str(step)} is damaged ({reason}): skipped', stacklevel=2)
    raise ValueError(
      f'--step=best: no intact checkpoint of {directory} has been evaluated in training (see '
      f'evaluation.every and checkpoint.keep_best). There are steps {names}.'
    )
  if which not in map(str, there):
    raise ValueError(
      f'--step={which}: {directory} holds no such checkpoint. There are steps {names}; or give '
      'best.'
    )
  if reason := step_folders.problem(directory / which):
    raise ValueError(
      f'--step={which}: {directory / which} is damaged ({reason}). There are steps {names}.'
    )
  return _open(directory, int(which))


def _open(directory: pathlib.Path, step: int) -> Saved:
  folder = directory.absolute() / str(step)
  with _orbax() as orbax:
    restored = orbax.restore(folder, args=ocp.args.Composite(config=ocp.args.JsonRestore()))
  changes = restored.config.pop('changes')
  return Saved(folder, step, restored.config, changes)


def _async_checkpointer(meetings: hosts.ThreadMeetings) -> ocp.AsyncCheckpointer:
  """Returns a checkpointer whose background barriers use `meetings` instead of devices."""
  options = ocp.options.AsyncOptions(
    timeout_secs=_PATIENCE_SECONDS,
    barrier_sync_fn=lambda **unused: _meet(meetings),
    create_directories_asynchronously=False,  # or save() returns before a full disk is noticed
  )
  return ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(), async_options=options)


@contextlib.contextmanager
def _told(meetings: hosts.ThreadMeetings) -> Iterator[None]:
  """Sends an error in the block to the other processes, which raise it as well."""
  try:
    yield
  except BaseException as error:
    meetings.meet(str(error) or type(error).__name__)
    raise


def _meet(meetings: hosts.ThreadMeetings) -> None:
  """Waits for the other processes, and raises the error of one of them."""
  if problem := meetings.meet():
    raise disk.WriteError(problem)


def _unshared(state: Any) -> Any:
  """Copies arrays on the CPU, so that donated buffers of updates do not change a save.

  Orbax saves a view of a CPU array's buffer, but a host copy of an accelerator array. Frozen
  arrays are never donated.
  """
  own = jax.tree.map(_copy_on_cpu, dataclasses.replace(state, frozen={}))
  return dataclasses.replace(own, frozen=state.frozen)


def _bytes_on_cpus(state: Any) -> int:
  """Returns the bytes of the arrays that `_unshared` would copy, over all devices."""
  changing = jax.tree.leaves(dataclasses.replace(state, frozen={}))
  return sum(array.nbytes for array in changing if _is_on_cpu(array))


def _is_on_cpu(array: Any) -> bool:
  if not isinstance(array, jax.Array):  # Orbax copies NumPy arrays, and numbers are immutable
    return False
  device: Any = next(iter(array.sharding.device_set))
  return device.platform == 'cpu'


def _copy_on_cpu(array: Any) -> Any:
  if not _is_on_cpu(array):
    return array
  parts = [jax.device_put(np.array(s.data), s.device) for s in array.addressable_shards]
  return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


@contextlib.contextmanager
def _orbax(
  make: Callable[[], Any] = lambda: ocp.Checkpointer(ocp.CompositeCheckpointHandler()),
) -> Iterator[Any]:
  """Yields a checkpointer; hides tracebacks of its threads, whose errors the call raises."""
  logging.getLogger('absl').addFilter(_is_worth_showing)
  shown = sys.unraisablehook
  sys.unraisablehook = lambda u: None if 'Event loop is closed' in str(u.exc_value) else shown(u)
  with make() as orbax:
    yield orbax
  sys.unraisablehook = shown  # not restored after an error, as writers may still be running


def _is_worth_showing(record: logging.LogRecord) -> bool:
  return record.levelno < logging.WARNING or 'orbax' not in pathlib.Path(record.pathname).parts


def _split(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns parameters and the rest, under names independent of library classes."""
  params = {'/'.join(path): leaf for path, leaf in {**state.trainable, **state.frozen}.items()}
  leaves = jax.tree_util.tree_flatten_with_path(
    dataclasses.replace(state, trainable={}, frozen={})
  )[0]
  rest = {f'{i:05d}{jax.tree_util.keystr(path)}': leaf for i, (path, leaf) in enumerate(leaves)}
  return params, rest


def _joined(like: Any, params: Mapping[str, Any], rest: Mapping[str, Any]) -> Any:
  """Returns a state with the structure of `like`, from its parts as `_split` returns them."""
  without = jax.tree.structure(dataclasses.replace(like, trainable={}, frozen={}))
  return dataclasses.replace(
    jax.tree.unflatten(without, jax.tree.leaves(rest)),
    trainable={path: params['/'.join(path)] for path in like.trainable},
    frozen={path: params['/'.join(path)] for path in like.frozen},
  )


def _check_shapes(folder: pathlib.Path, params: Mapping[str, Any]) -> None:
  """Raises ValueError if a checkpoint holds parameters of other shapes."""
  saved: Any = ocp.StandardCheckpointHandler().metadata(folder / 'params')
  for name in params.keys() & saved.keys():
    there, here = tuple(saved[name].shape), tuple(params[name].shape)
    if there == here:
      continue
    if name == 'embed/embedding' and there[1:] == here[1:]:
      raise ValueError(
        f'the vocabulary has {here[0]} words, that of {folder} {there[0]}: the words of the task '
        'or of the prompts have changed since. Undo that, or take another workdir.'
      )
    raise ValueError(f'{name} has shape {here}, but {there} in {folder}: that is another model.')


def _abstract(tree: Any) -> Any:
  def of(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, 'sharding', None))

  return jax.tree.map(of, tree)
