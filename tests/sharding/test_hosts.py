"""Which processes look for others: those that Slurm or a TPU pod slice started beside them."""

from __future__ import annotations

import jax
import pytest

from agent_gspo.sharding import hosts

_ALLOCATION = {'SLURM_JOB_ID': '1', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0', 'SLURM_LOCALID': '0'}
_STEP = {**_ALLOCATION, 'SLURM_STEP_NODELIST': 'node[1-4]'}


@pytest.mark.parametrize(
  ('environ', 'joins'),
  [
    ({}, False),
    (_ALLOCATION, False),  # without srun
    ({**_ALLOCATION, 'SLURM_NTASKS': '4(x2)'}, False),
    ({**_STEP, 'SLURM_NTASKS': '4(x2)'}, False),
    ({**_STEP, 'SLURM_NTASKS': '1'}, False),
    (_STEP, True),
    ({'TPU_WORKER_HOSTNAMES': 'one'}, False),
    ({'TPU_WORKER_HOSTNAMES': 'one,two'}, True),
  ],
)
def test_a_process_is_alone_unless_it_was_started_beside_others(monkeypatch, environ, joins):
  joined = []
  monkeypatch.setattr(hosts.os, 'environ', environ)
  monkeypatch.setattr(jax.distributed, 'initialize', lambda *_, **options: joined.append(options))
  hosts.connect()
  assert joined == [{'heartbeat_timeout_seconds': 100}] * joins
