"""Rolls out ahead of the learner: one thread samples with older weights during the updates.

With `mesh.actors` it samples on devices of its own, to which each version is copied. The threads of
several processes exchange episodes without devices, which may be busy with an update.

The rollout of step `t` is sampled with the weights after step `max(t - rollout.ahead, start)`, is
learned from in its turn and never dropped. So tokens do not depend on which thread is faster:
draws are functions of the step, the seed and the state whose weights are used.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.selection import SelectionState
from agent_gspo.sharding import encoding, hosts
from agent_gspo.training.collect import collect
from agent_gspo.training.progress import Progress
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import RolloutBatch


@dataclasses.dataclass(frozen=True)
class Collected:
  """A finished rollout.

  Attributes:
    rollout: Episodes to learn from.
    everything: All episodes, see `collect`; None if they are those of `rollout`.
    drawn: Questions drawn by the end of this rollout, see `SelectionState`.
  """

  rollout: RolloutBatch
  everything: RolloutBatch | None
  drawn: int


class _Begun(NamedTuple):
  """A rollout that is finished, under way or queued.

  Attributes:
    step: Finished steps when it is learned from.
    version: Finished steps of its weights.
    result: The rollout, or its error.
  """

  step: int
  version: int
  result: futures.Future[Collected]


class Ahead:
  """Rollouts of the next steps, oldest first: that of the next one, and at most `ahead` others."""

  def __init__(self, setup: Setup, saved: bytes = b''):
    """Starts the thread.

    Args:
      setup: Run setup.
      saved: Result of `waiting` in the checkpoint that the run resumes from.
    """
    self._setup = setup
    self._thread = futures.ThreadPoolExecutor(1, 'rollout')
    self._silence, self._meetings = _Silence(), hosts.ThreadMeetings(seconds=1.0)
    self._begun = collections.deque[_Begun]()
    self._drawn: int | None = None  # questions drawn so far; the thread's own
    self._sampled = self._reported = 0.0  # seconds that the thread rolled out; of them in metrics
    self._frozen: Any = None  # frozen parameters on the actors
    for step, version, collected in encoding.decode(saved) if saved else ():
      result = futures.Future[Collected]()
      result.set_result(collected)
      self._begun.append(_Begun(step, version, result))
      self._drawn = collected.drawn

  def __call__(
    self, setup: Setup, state: TrainState, progress: Progress
  ) -> tuple[RolloutBatch, RolloutBatch, SelectionState]:
    """Begins rollouts with the weights of `state` and waits for the one to learn from.

    Takes and returns the same as `collect`.

    Raises:
      Exception: A rollout failed, of this step or of a later one.
    """
    while self._begun and self._begun[0].step < state.step:
      self._begun.popleft()
    self._begin(state)
    for begun in self._begun:
      if begun.result.done():
        begun.result.result()  # raises if it failed
    progress.phase('rollout')
    found = self._begun[0].result.result()
    # Questions are drawn ahead, in order; what is known about them is known now.
    selection = dataclasses.replace(state.selection, drawn=jnp.int32(found.drawn))
    return found.rollout, found.everything or found.rollout, selection

  def _begin(self, state: TrainState) -> None:
    """Queues the rollouts that use the weights of `state`."""
    version, config = int(state.step), self._setup.config
    last = min(version + config.rollout.ahead, config.steps - 1)
    steps = range(version + len(self._begun), last + 1)
    if not steps:
      return
    weights = dataclasses.replace(state, opt_state=None, reference=None)
    if config.mesh.actors or hosts.count() > 1:  # of all processes: not in the thread
      self._frozen = self._frozen or self._setup.own_copy(state.frozen)
      trainable, pool = self._setup.own_copy((state.trainable, state.pool))
      selection = jax.tree.map(jnp.asarray, jax.device_get(state.selection))
      weights = dataclasses.replace(
        weights, trainable=trainable, frozen=self._frozen, pool=pool, selection=selection
      )
    if not config.mesh.actors:  # a copy: updates donate these buffers
      trainable = jax.tree.map(jnp.array, weights.trainable)
      weights = dataclasses.replace(weights, trainable=trainable)
    for step in steps:
      result = self._thread.submit(self._collect, weights, step)
      self._begun.append(_Begun(step, version, result))

  def _collect(self, state: TrainState, step: int) -> Collected:
    """Rolls out a step; runs in the thread, in the order of the steps."""
    start = time.monotonic()
    if self._drawn is not None:
      selection = dataclasses.replace(state.selection, drawn=jnp.int32(self._drawn))
      state = dataclasses.replace(state, selection=selection)
    rollout, everything, after = collect(self._setup, state, self._silence, step, self._gather)
    self._drawn = int(after.drawn)
    self._sampled += time.monotonic() - start
    return Collected(rollout, None if everything is rollout else everything, self._drawn)

  def _gather(self, own: RolloutBatch) -> list[RolloutBatch]:
    return self._meetings.gather(own, lambda: self._silence.phase('wait'))

  def metrics(self, rollout: RolloutBatch, step: int) -> dict[str, float]:
    """Returns the mean age of messages in steps, and seconds of rollouts since the last call."""
    last, self._reported = self._reported, self._sampled
    return {
      'rollout/staleness': float(step - rollout.version[rollout.learns].mean()),
      'time/actors_s': self._reported - last,
    }

  def wait(self) -> None:
    """Waits until nothing is under way.

    Raises:
      Exception: A rollout failed.
    """
    for begun in self._begun:
      begun.result.result()

  def waiting(self, step: int) -> bytes:
    """Returns the encoded rollouts that a run resumed after `step` steps cannot sample anew.

    Those are the rollouts of older weights, which are awaited. b'' if there are none.

    Raises:
      Exception: One of them failed.
    """
    older = [begun for begun in self._begun if begun.version < step <= begun.step]
    found = [(begun.step, begun.version, begun.result.result()) for begun in older]
    return encoding.encode(found) if found else b''

  def close(self) -> None:
    """Ends the rollout under way at its next layer, and drops the queued ones."""
    self._silence.stopped = True
    self._thread.shutdown(cancel_futures=True)


class _Silence(Progress):
  """Shows nothing, since the learner's phases are shown; ends the rollout that calls it."""

  stopped = False

  def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
    """Raises CancelledError once it is `stopped`."""
    if self.stopped:
      raise futures.CancelledError
