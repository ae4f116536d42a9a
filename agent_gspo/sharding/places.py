"""Finds the index of a process in its run: by its arguments, Slurm or a TPU pod slice."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, cast


@dataclasses.dataclass(frozen=True)
class Place:
  """Index of one of several processes, and how to reach process 0."""

  coordinator: str  # `host:port` of process 0
  processes: int  # number of processes
  index: int  # index of this process
  local_devices: tuple[int, ...] | None = None  # device ids to use; None: all of its host

  @property
  def host_and_port(self) -> tuple[str, int]:
    """Returns host and port of the coordinator.

    Raises:
      ValueError: The address is not `host:port`.
    """
    host, _, port = self.coordinator.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
      raise ValueError(
        f'--coordinator={self.coordinator} must be host:port, with a port from 1 to 65535.'
      )
    return host.strip('[]'), int(port)

  def named(self, *indices: int) -> str:
    """Returns a name for processes of the run: 'process 1 of 2'."""
    several = 'es' if len(indices) > 1 else ''
    return f'process{several} {", ".join(map(str, indices))} of {self.processes}'


def find(coordinator: str = '', processes: int = 0, index: int = -1) -> Place | None:
  """Returns the place of this process among others, None for a single process.

  Without arguments it is read from the environment of Slurm or the TPU.

  Raises:
    ValueError: Some arguments are given, but not all; or they are inconsistent.
  """
  told = {
    'coordinator': bool(coordinator),
    'num_processes': processes > 0,
    'process_id': index >= 0,
  }
  local: Any = None
  if any(told.values()):
    missing = ', '.join(f'--{name}' for name, given in told.items() if not given)
    if missing:
      raise ValueError(f'{missing} missing: give all of {", ".join(f"--{name}" for name in told)}.')
    if index >= processes:
      raise ValueError(f'--process_id={index} must be below --num_processes={processes}.')
  elif _is_one_of_several(os.environ):
    from jax._src import clusters  # there is no public name

    # As in `jax.distributed.initialize`, which does not return its findings.
    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
    named = os.environ.get('JAX_COORDINATOR_ADDRESS')
    coordinator, processes, index, local = cast(Any, detect)(named, None, None, None, None, 300)
    if None in (coordinator, processes, index):
      raise ValueError(
        'the environment names several processes, but not who is who: give --coordinator, '
        '--num_processes and --process_id.'
      )
  else:
    return None
  place = Place(coordinator, processes, index, None if local is None else tuple(local))
  _ = place.host_and_port
  return place


def _is_one_of_several(environ: Mapping[str, str]) -> bool:
  """Returns whether Slurm or a TPU pod slice started this process beside others."""
  tasks = environ.get('SLURM_NTASKS', '')
  # An allocation has tasks too, but a process not started by srun belongs to no step.
  of_step = 'SLURM_STEP_NODELIST' in environ and tasks.isdecimal() and int(tasks) > 1
  # In a step with a terminal, only the first task is interactive.
  of_step = of_step and 'SLURM_PTY_PORT' not in environ
  return of_step or len(environ.get('TPU_WORKER_HOSTNAMES', '').split(',')) > 1
