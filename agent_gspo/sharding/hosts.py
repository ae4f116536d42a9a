"""Several processes of one run: how they find each other, and what they tell each other.

Every process runs the same program. What each does alone (conversations, grading) it tells the
others by `gather`; what one alone may decide (which checkpoint there is) it tells them by `agreed`.
Each of these is a meeting: all processes must come, in the same order. With one process all of it
costs nothing. Devices carry what is told, so only main threads may meet like this; other threads
have `ThreadMeetings`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax._src import distributed  # where its coordination service is; there is no public name
from jax.experimental import multihost_utils

from agent_gspo.sharding import encoding, partners, places

T = TypeVar('T')
_MEETINGS = itertools.count()
_FINE = 'fine'


def connect(
  coordinator: str = '', processes: int = 0, index: int = -1, heartbeat_seconds: int = 100
) -> None:
  """Joins the other processes; the first thing a process does with JAX.

  They meet here, if they have not met before (`partners.meet`). Whatever ends one of them ends all.

  Args:
    coordinator, processes, index: who is who, see `places.find`.
    heartbeat_seconds: a process whose host gives no sign for so long has died, so the others end;
      the default is JAX's own.

  Raises:
    ValueError: the seconds are below 1; or see `places.find` and `partners.meet`.
  """
  if heartbeat_seconds < 1:
    raise ValueError(f'--heartbeat_timeout_s={heartbeat_seconds} must be at least 1.')
  place = places.find(coordinator, processes, index)
  if place is None or place.processes == 1:
    return
  bound = partners.meet(place)
  jax.distributed.initialize(
    place.coordinator,
    place.processes,
    place.index,
    local_device_ids=place.local_devices,
    heartbeat_timeout_seconds=heartbeat_seconds,
    coordinator_bind_address=bound or None,
  )


def count() -> int:
  """Number of processes."""
  return jax.process_count()


def is_first() -> bool:
  """Whether this process writes the files of the run."""
  return jax.process_index() == 0


def share(n: int) -> slice:
  """Which of `n` things are this process's to do; shares differ by one at most."""
  index, processes = jax.process_index(), jax.process_count()
  return slice(n * index // processes, n * (index + 1) // processes)


def gather(value: T) -> list[T]:
  """The value of each process, in their order."""
  if count() == 1:
    return [value]
  data = np.frombuffer(encoding.encode(value), np.uint8)
  sizes = multihost_utils.process_allgather(np.asarray(data.size))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: data.size] = data
  found = multihost_utils.process_allgather(padded)
  return [encoding.decode(row[:size].tobytes()) for row, size in zip(found, sizes, strict=True)]


def agreed(decide: Callable[[], T]) -> T:
  """What the first process finds; the others do not look."""
  if count() == 1:
    return decide()
  data = np.frombuffer(encoding.encode(decide()) if is_first() else b'', np.uint8)
  # In two numbers: parameters may have more bytes than an int32 counts.
  high, low = multihost_utils.broadcast_one_to_all(np.asarray(divmod(data.size, 2**30), np.int32))
  data = data if is_first() else np.zeros(int(high) * 2**30 + int(low), np.uint8)
  return encoding.decode(np.asarray(multihost_utils.broadcast_one_to_all(data)).tobytes())


def barrier() -> None:
  """Waits until all processes are here."""
  gather(None)


def any_of(flag: bool) -> bool:
  """Whether it is so in one process at least."""
  return any(gather(flag))


class ThreadMeetings:
  """Meetings of one thread of each process, beside whatever the main threads do.

  They go by JAX's coordination service: no device takes part. All processes must make these
  objects in the same order.
  """

  def __init__(self, seconds: float):
    """Makes a row of meetings, each of which waits so long at most."""
    self._key, self._met = f'agent_gspo/meetings/{next(_MEETINGS)}', 0
    self._milliseconds, self._problem = int(1000 * seconds), ''

  def meet(self, problem: str = '') -> str:
    """Waits for the others; returns the first process's problem that has one, '' if none has.

    After a problem there is no further meeting: this gives the same again, at once.
    """
    if count() == 1 or self._problem:
      return self._problem or problem
    client = cast(Any, distributed.global_state.client)
    keys = [f'{self._key}/{self._met}/{index}' for index in range(count())]
    self._met += 1
    client.key_value_set(keys[jax.process_index()], problem or _FINE)
    told = [client.blocking_key_value_get(key, self._milliseconds) for key in keys]
    self._problem = next((text for text in told if text != _FINE), '')
    return self._problem
