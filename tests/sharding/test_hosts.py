"""Tests the detection of other processes under Slurm and on TPU pod slices."""

from __future__ import annotations

import pytest

from agent_gspo.sharding import places

_ALLOCATION = {'SLURM_JOB_ID': '7', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '2', 'SLURM_LOCALID': '0'}
_STEP = {**_ALLOCATION, 'SLURM_STEP_NODELIST': 'node[1-4]'}
_OF_STEP = places.Place('node1:61447', 4, 2, (0,))


@pytest.mark.parametrize(
  ('environ', 'place'),
  [
    ({}, None),
    (_ALLOCATION, None),  # without srun
    ({**_ALLOCATION, 'SLURM_NTASKS': '4(x2)'}, None),
    ({**_STEP, 'SLURM_NTASKS': '4(x2)'}, None),
    ({**_STEP, 'SLURM_NTASKS': '1'}, None),
    ({**_STEP, 'SLURM_PTY_PORT': '40001'}, None),  # srun --pty bash
    (_STEP, _OF_STEP),
    ({'TPU_WORKER_HOSTNAMES': 'one'}, None),
  ],
)
def test_a_process_is_alone_unless_it_was_started_beside_others(monkeypatch, environ, place):
  for name in [*_STEP, 'SLURM_PTY_PORT', 'TPU_WORKER_HOSTNAMES', 'JAX_COORDINATOR_ADDRESS']:
    monkeypatch.delenv(name, raising=False)
  for name, value in environ.items():
    monkeypatch.setenv(name, value)
  assert places.find() == place


def test_a_pod_slice_whose_hosts_are_not_known_says_what_is_missing(monkeypatch):
  monkeypatch.setenv('TPU_WORKER_HOSTNAMES', 'one,two')
  with pytest.raises(ValueError, match='give --coordinator, --num_processes and --process_id'):
    places.find()
