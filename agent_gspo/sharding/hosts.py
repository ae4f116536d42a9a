"""Connects the processes of a run and exchanges Python values between them.

Every process runs the same program. `gather` exchanges results of per-process work (episodes,
grading); `agreed` broadcasts decisions of the first process (which checkpoint there is). Both are
collectives: all processes must call them in the same order. With one process they do nothing. They
run on devices, so only main threads may call them; other threads use `ThreadMeetings`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed  # coordination service, without a public name
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agent_gspo.sharding import encoding, partners, places
from agent_gspo.sharding.placement import by_process

T = TypeVar('T')
_MEETINGS = itertools.count()
_FINE = 'fine'


def connect(
  coordinator: str = '', processes: int = 0, index: int = -1, heartbeat_seconds: int = 100
) -> None:
  """Connects this process to the others, before any other use of JAX.

  Calls `partners.meet`, if it was not called before. If one process ends early, all end.

  Args:
    coordinator, processes, index: See `places.find`.
    heartbeat_seconds: Time without a heartbeat after which a process counts as dead and the others
      end; the default is JAX's own.

  Raises:
    ValueError: `heartbeat_seconds` is below 1; or see `places.find` and `partners.meet`.
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
  """Returns the number of processes."""
  return jax.process_count()


def is_first() -> bool:
  """Returns whether this process is the first, which writes the files of the run."""
  return jax.process_index() == 0


def share(n: int) -> slice:
  """Returns this process's slice of `n` items; sizes differ by one at most."""
  index, processes = jax.process_index(), jax.process_count()
  return slice(n * index // processes, n * (index + 1) // processes)


def gather(value: T) -> list[T]:
  """Returns the value of each process, in their order."""
  if count() == 1:
    return [value]
  data = np.frombuffer(encoding.encode(value), np.uint8)
  sizes = multihost_utils.process_allgather(_stacked(np.asarray(data.size, np.int32)), tiled=True)
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: data.size] = data
  found = multihost_utils.process_allgather(_stacked(padded), tiled=True)
  return [encoding.decode(row[:size].tobytes()) for row, size in zip(found, sizes, strict=True)]


def agreed(decide: Callable[[], T]) -> T:
  """Broadcasts `decide()` of the first process; the others do not call it."""
  if count() == 1:
    return decide()
  data = np.frombuffer(encoding.encode(decide()) if is_first() else b'', np.uint8)
  # As two numbers: parameters may have more than 2**31 bytes.
  high, low = _sum(np.asarray(divmod(data.size, 2**30), np.int32)).tolist()
  data = data if is_first() else np.zeros(high * 2**30 + low, np.uint8)
  return encoding.decode(_sum(data).tobytes())


def barrier() -> None:
  """Waits until all processes call this."""
  gather(None)


def any_of(flag: bool) -> bool:
  """Returns whether `flag` is set in at least one process."""
  return any(gather(flag))


def _stacked(own: np.ndarray) -> jax.Array:
  """Returns the arrays of all processes as one, `[processes, ...]`.

  Uses the first device of each process, since the last ones may be sampling (`mesh.actors`).
  """
  first = Mesh(by_process(jax.devices())[:, 0], 'process')
  sharding = NamedSharding(first, PartitionSpec('process'))
  return jax.make_array_from_callback((count(), *own.shape), sharding, lambda _: own[None])


def _sum(own: np.ndarray) -> np.ndarray:
  """Returns the sum of the arrays of all processes."""
  total = jnp.sum(_stacked(own), axis=0, dtype=own.dtype)
  return multihost_utils.process_allgather(total, tiled=True)


class ThreadMeetings:
  """Collectives of background threads, one per process, independent of the main threads.

  They use JAX's coordination service instead of devices. All processes must create these objects
  in the same order.
  """

  def __init__(self, seconds: float):
    """Prepares collectives that each wait at most `seconds`; `gather` then waits again."""
    self._key, self._met = f'agent_gspo/meetings/{next(_MEETINGS)}', 0
    self._milliseconds, self._problem = int(1000 * seconds), ''

  def meet(self, problem: str = '') -> str:
    """Waits for the others; returns the problem of the first process that has one, else ''.

    After a problem, further calls return it immediately.
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

  def gather(self, value: T, waiting: Callable[[], object] = lambda: None) -> list[T]:
    """Returns the value of each process, in their order; calls `waiting` after each wait."""
    if count() == 1:
      return [value]
    client, own = cast(Any, distributed.global_state.client), jax.process_index()
    client.key_value_set_bytes(f'{self._key}/{self._met}/{own}', encoding.encode(value))
    found: list[T] = []
    while len(found) < count():
      key = f'{self._key}/{self._met}/{len(found)}'
      try:
        data = client.blocking_key_value_get_bytes(key, self._milliseconds)
      except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith('DEADLINE_EXCEEDED'):
          raise
        waiting()
      else:
        found.append(encoding.decode(data))
    # All are here, so they have read the values of the call before.
    client.key_value_delete(f'{self._key}/{self._met - 1}/{own}')
    self._met += 1
    return found
