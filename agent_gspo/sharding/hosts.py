"""Several processes of one run: how they find each other, and what they tell each other.

Every process runs the same program. What each does alone (conversations, grading) it tells the
others by `gather`; what one alone may decide (which checkpoint there is) it tells them by `agreed`.
Each of these is a meeting: all processes must come, in the same order. With one process all of it
costs nothing. Devices carry what is told, so only main threads may meet like this; other threads
have `ThreadMeetings`.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax._src import distributed  # where its coordination service is; there is no public name
from jax.experimental import multihost_utils

T = TypeVar('T')
_MEETINGS = itertools.count()
_FINE = 'fine'


def connect(
  coordinator: str = '', processes: int = 0, index: int = -1, heartbeat_seconds: int = 100
) -> None:
  """Joins the other processes; the first thing a process does with JAX.

  Without arguments JAX asks Slurm or the TPU's own environment, where there is one; elsewhere this
  process is alone. Whatever ends one process ends all of them.

  Args:
    coordinator: address of process 0, `host:port`.
    processes: number of them.
    index: of this one.
    heartbeat_seconds: a process that gives no sign for so long has died, so the others end; the
      default is JAX's own.

  Raises:
    ValueError: some of the arguments are given, but not all; or they do not fit together.
  """
  if heartbeat_seconds < 1:
    raise ValueError(f'--heartbeat_timeout_s={heartbeat_seconds} must be at least 1.')
  told = {
    'coordinator': bool(coordinator),
    'num_processes': processes > 0,
    'process_id': index >= 0,
  }
  if all(told.values()):
    if index >= processes:
      raise ValueError(f'--process_id={index} must be below --num_processes={processes}.')
    jax.distributed.initialize(
      coordinator, processes, index, heartbeat_timeout_seconds=heartbeat_seconds
    )
  elif any(told.values()):
    missing = ', '.join(f'--{name}' for name, given in told.items() if not given)
    raise ValueError(f'{missing} missing: give all of {", ".join(f"--{name}" for name in told)}.')
  elif _is_one_of_several(os.environ):
    jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat_seconds)


def _is_one_of_several(environ: Mapping[str, str]) -> bool:
  """Whether Slurm or a TPU pod slice started this process beside others."""
  tasks = environ.get('SLURM_NTASKS', '')
  # An allocation has tasks too, but a process that no srun started is alone: it is of no step.
  of_step = 'SLURM_STEP_NODELIST' in environ and tasks.isdecimal() and int(tasks) > 1
  return of_step or len(environ.get('TPU_WORKER_HOSTNAMES', '').split(',')) > 1


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
  data = np.frombuffer(pickle.dumps(value), np.uint8)
  sizes = multihost_utils.process_allgather(np.asarray(data.size))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: data.size] = data
  found = multihost_utils.process_allgather(padded)
  return [pickle.loads(row[:size].tobytes()) for row, size in zip(found, sizes, strict=True)]


def agreed(decide: Callable[[], T]) -> T:
  """What the first process finds; the others do not look."""
  if count() == 1:
    return decide()
  data = np.frombuffer(pickle.dumps(decide()) if is_first() else b'', np.uint8)
  # In two numbers: parameters may have more bytes than an int32 counts.
  high, low = multihost_utils.broadcast_one_to_all(np.asarray(divmod(data.size, 2**30), np.int32))
  data = data if is_first() else np.zeros(int(high) * 2**30 + int(low), np.uint8)
  return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(data)).tobytes())


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
    """Makes a row of meetings.

    Args:
      seconds: to wait at most for the others at each.
    """
    self._key, self._met = f'agent_gspo/meetings/{next(_MEETINGS)}', 0
    self._milliseconds, self._problem = int(1000 * seconds), ''

  def meet(self, problem: str = '') -> str:
    """Waits for the others; gives the first process's problem that has one, '' if none has.

    After a problem there is no further meeting: this gives the same again, at once.

    Args:
      problem: what is wrong with this process.
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
