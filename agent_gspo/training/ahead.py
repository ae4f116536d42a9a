"""Rolls out ahead of the learner: one thread samples with older weights during the updates.

With `mesh.actors` it samples on devices of its own, to which each version is copied. The threads of
several processes exchange episodes without devices, which may be busy with an update.

The rollout of step `t` begins with the weights after step `max(t - rollout.ahead, start)` or later
ones, is learned from in its turn and never dropped. Its questions are drawn with the state after
that step. Under `rollout.schedule='fixed'` those weights write all of it, so tokens do not depend
on which thread is faster. Under 'free' the newest weights write each layer, also of rollouts in
flight, whose messages so far are saved in checkpoints.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp

from agent_gspo.algorithms.selection import SelectionState
from agent_gspo.sharding import encoding, hosts
from agent_gspo.teams.policies import Policy, Reply, Turn
from agent_gspo.training import engine
from agent_gspo.training.collect import collect
from agent_gspo.training.progress import Progress
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import Flat, TrainState
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


@dataclasses.dataclass(eq=False)
class _Begun:
  """A rollout that is finished, in flight or queued.

  Attributes:
    step: Finished steps when it is learned from.
    version: Finished steps of the state that draws its questions, and of its oldest weights.
    selection: State of the selection rule that draws its questions, but for the number of draws.
    written: Replies so far by turn; empty under the fixed schedule.
    result: The rollout, or its error; None until a resumed one is queued.
  """

  step: int
  version: int
  selection: SelectionState
  written: dict[Hashable, Reply] = dataclasses.field(default_factory=dict)
  result: futures.Future[Collected] | None = None

  @property
  def done(self) -> bool:
    """Returns whether it is finished or has failed."""
    return self.result is not None and self.result.done()

  def wait(self) -> Collected:
    """Returns the rollout, or raises its error."""
    assert self.result is not None, 'queued as a step begins'
    return self.result.result()

  def saved(self) -> tuple[Any, ...]:
    """Returns plain data for a checkpoint, see `restored`; does not wait."""
    head = self.step, self.version, jax.device_get(self.selection)
    if self.result is not None and self.result.done() and not self.result.exception():
      return *head, {}, self.wait()
    return *head, {key: tuple(reply) for key, reply in self.written.copy().items()}, None

  @classmethod
  def restored(cls, step, version, selection, written, collected: Collected | None) -> _Begun:
    """Inverts `saved`."""
    selection = jax.tree.map(jnp.asarray, selection)
    begun = cls(step, version, selection, {key: Reply(*x) for key, x in written.items()})
    if collected:
      begun.result = futures.Future()
      begun.result.set_result(collected)
    return begun


class Ahead:
  """Rollouts of the next steps, oldest first: that of the next one, and at most `ahead` others."""

  def __init__(self, setup: Setup, saved: bytes = b''):
    """Starts the thread.

    Args:
      setup: Run setup.
      saved: Result of `waiting` in the checkpoint that the run resumes from.
    """
    self._setup, self._free = setup, setup.config.rollout.schedule == 'free'
    self._thread = futures.ThreadPoolExecutor(1, 'rollout')
    self._silence, self._meetings = _Silence(), hosts.ThreadMeetings(seconds=1.0)
    self._begun = collections.deque[_Begun]()
    self._drawn: int | None = None  # questions drawn so far; the thread's own
    self._sampled = self._reported = 0.0  # seconds that the thread rolled out; of them in metrics
    self._frozen: Any = None  # frozen parameters on the actors
    self._pool: list[tuple[Flat, Flat]] = []  # opponents, each with its copy
    self._newest: TrainState | None = None  # newest weights, under the free schedule
    self._published = -1  # version that a server has, under the free schedule
    for values in encoding.decode(saved) if saved else ():
      begun = _Begun.restored(*values)
      self._begun.append(begun)
      if begun.done:
        self._drawn = begun.wait().drawn

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
      if begun.done:
        begun.wait()  # raises if it failed
    progress.phase('rollout')
    found = self._begun[0].wait()
    # The draw count is that of the rollout; the posterior is the newest.
    selection = dataclasses.replace(state.selection, drawn=jnp.int32(found.drawn))
    return found.rollout, found.everything or found.rollout, selection

  def _begin(self, state: TrainState) -> None:
    """Publishes the weights of `state`, and queues the rollouts that may begin now."""
    version, config = int(state.step), self._setup.config
    last = min(version + config.rollout.ahead, config.steps - 1)
    steps = range(version + len(self._begun), last + 1)
    if not steps and not self._free:
      return
    if self._drawn is None:
      self._drawn = int(state.selection.drawn)
    weights = self._copied(state)
    self._newest = weights if self._free else None
    self._begun += [_Begun(step, version, weights.selection) for step in steps]
    if self._free:  # queued rollouts keep no weights
      weights = dataclasses.replace(weights, trainable={})
    for begun in self._begun:
      if begun.result is None:
        own = dataclasses.replace(weights, step=jnp.int32(begun.version), selection=begun.selection)
        begun.result = self._thread.submit(self._collect, own, begun)

  def _copied(self, state: TrainState) -> TrainState:
    """Returns what a rollout reads of a state, which updates do not change."""
    config = self._setup.config
    weights = dataclasses.replace(state, opt_state=None, reference=None)
    if config.mesh.actors or hosts.count() > 1:  # collective over processes, so not in the thread
      self._frozen = self._frozen or self._setup.own_copy(state.frozen)
      trainable = self._setup.own_copy(state.trainable)
      pool = None if state.pool is None else self._copied_pool(state.pool)
      selection = jax.tree.map(jnp.asarray, jax.device_get(state.selection))
      weights = dataclasses.replace(
        weights, trainable=trainable, frozen=self._frozen, pool=pool, selection=selection
      )
    if not config.mesh.actors:  # a copy: updates donate these buffers
      trainable = jax.tree.map(jnp.array, weights.trainable)
      weights = dataclasses.replace(weights, trainable=trainable)
    return weights

  def _copied_pool(self, pool: Sequence[Flat]) -> tuple[Flat, ...]:
    """Returns copies of the opponents for a rollout; reuses those of unchanged members."""
    before = self._pool or [({}, {})] * len(pool)
    self._pool = [
      (member, copy if _same(member, old) else self._setup.own_copy(member))
      for member, (old, copy) in zip(pool, before, strict=True)
    ]
    return tuple(copy for _, copy in self._pool)

  def _collect(self, state: TrainState, begun: _Begun) -> Collected:
    """Rolls out a step; runs in the thread, in the order of the steps."""
    start = time.monotonic()
    selection = dataclasses.replace(state.selection, drawn=jnp.int32(self._drawn))
    state = dataclasses.replace(state, selection=selection)
    write = functools.partial(self._write, begun.written) if self._free else None
    rollout, everything, after = collect(
      self._setup, state, self._silence, begun.step, self._gather, write
    )
    self._drawn = int(after.drawn)
    self._sampled += time.monotonic() - start
    return Collected(rollout, None if everything is rollout else everything, self._drawn)

  def _write(
    self, written: dict[Hashable, Reply], policy_of: Callable[[TrainState], Policy]
  ) -> Policy:
    """Returns the policy of the newest weights, which adds its replies to `written`.

    Reuses replies that are there already for the same prompt. The continuation after a tool's
    result has the weights of the tokens before it.
    """
    own = threading.local()  # each part of a rollout is written in its thread
    has_tools = self._setup.team.has_tools

    def speak(turns: Sequence[Turn]) -> list[Reply]:
      places = [_place(turn) for turn in turns]
      missing = [i for i, place in enumerate(places) if place not in written]
      if missing:
        policy = getattr(own, 'policy', None)
        if policy is None or not turns[missing[0]].offset:
          policy = policy_of(self._current())
        own.policy = policy if has_tools else None
        replies = policy([turns[i] for i in missing])
        written.update(zip((places[i] for i in missing), replies, strict=True))
      return [written[place] for place in places]

    return speak

  def _current(self) -> TrainState:
    """Returns the newest weights, which a server that samples has by then."""
    state = self._newest
    assert state is not None, 'published as a step begins'
    if int(state.step) != self._published:
      engine.publish(self._setup, state)
      self._published = int(state.step)
    return state

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
    """Waits until no rollout is in flight.

    Raises:
      Exception: A rollout failed.
    """
    for begun in self._begun:
      if begun.result is not None:
        begun.wait()

  def waiting(self, step: int) -> bytes:
    """Returns the encoded rollouts that a run resumed after `step` steps does not begin anew.

    Those are the rollouts that began with older weights. The fixed schedule waits for them; under
    the free one, it saves the replies so far of those in flight. b'' if there are none. All
    processes call this.

    Raises:
      Exception: One of them failed, under the fixed schedule.
    """
    older = [begun for begun in self._begun if begun.version < step <= begun.step]
    if not self._free:
      for begun in older:
        begun.wait()
    found = [begun.saved() for begun in older]
    if self._free:  # each process writes its own episodes
      found = [_merged(of) for of in zip(*hosts.gather(found), strict=True)]
    return encoding.encode(found) if found else b''

  def close(self) -> None:
    """Ends the rollout under way at its next layer, and drops the queued ones."""
    self._silence.stopped = True
    self._thread.shutdown(cancel_futures=True)


def _place(turn: Turn) -> Hashable:
  """Returns the key of a turn in its rollout: plain data, which differs with the prompt."""
  prompt = zlib.crc32(turn.prompt_ids.tobytes())
  return turn.question.id, turn.sample, turn.agent, turn.round, turn.branch, turn.offset, prompt


def _same(one: Flat, other: Flat) -> bool:
  """Returns whether parameters are the same arrays."""
  return all(x is other.get(path) for path, x in one.items())


def _merged(saved: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
  """Returns a rollout as saved by each process: finished by one, or with the replies of all."""
  finished = [rollout for rollout in saved if rollout[-1] is not None]
  step, version, selection, _, collected = (finished or saved)[0]
  written = {} if finished else {key: x for own in saved for key, x in own[3].items()}
  return step, version, selection, written, collected


class _Silence(Progress):
  """Shows nothing, since the learner's phases are shown; ends the rollout that calls it."""

  stopped = False

  def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
    """Raises CancelledError once it is `stopped`."""
    if self.stopped:
      raise futures.CancelledError
