"""The update on eight devices equals that on one; run with eight host devices of its own."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

_SCRIPT = """
import dataclasses, json, sys
sys.path[:0] = [{root!r}, {tests!r}]
import jax, numpy as np, optax
import tiny
from agent_gspo.algorithms import objectives
from agent_gspo.models.transformer import Transformer
from agent_gspo.training import packing, placement, state as state_lib
from agent_gspo.training.update import Updater

rng = np.random.default_rng(0)
draw = lambda n: rng.integers(5, 300, n).astype(np.int32)
old = lambda n: -rng.random(n).astype(np.float32)
messages = [tiny.message(draw(6), draw(n), old(n)) for n in (1, 3, 5) * 8]
weights = rng.normal(size=len(messages)).astype(np.float32)
found = {{}}
for devices in (1, 2, 8):
  where = placement.make_placement(devices)
  for name in ('gspo', 'dapo'):
    updater = Updater(
      Transformer(tiny.CONFIG), objectives.make(name), optax.sgd(0.1), 0.8, entropy=False,
      placement=where,
    )
    state = where.everywhere(state_lib.init(tiny.params(), optax.sgd(0.1)))
    batches = packing.pack_messages(messages, weights, row_tokens=24, rows=8)
    scored = updater.score(state, batches)
    state, metrics = updater.minibatch(state, batches)
    used = len(jax.tree.leaves(state.trainable)[0].sharding.device_set)
    flat = np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.trainable)])
    found[f'{{name}} {{devices}}'] = [
      used, metrics['policy/objective'], metrics['policy/grad_norm'],
      metrics['policy/clip_fraction'],
      float(np.abs(flat).sum()), float((flat * np.cos(np.arange(flat.size))).sum()),
      float(sum(np.abs(b.old_logprobs).sum() for b in scored)),
    ]
print(json.dumps(found))
"""


@pytest.fixture(scope='module')
def found():
  tests = pathlib.Path(__file__).resolve().parent
  flags = '--xla_force_host_platform_device_count=8'
  done = subprocess.run(
    [sys.executable, '-c', _SCRIPT.format(root=str(tests.parent), tests=str(tests))],
    env={**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize('name', ['gspo', 'dapo'])
@pytest.mark.parametrize('devices', [2, 8])
def test_device_count_changes_nothing(found, name, devices):
  used, *figures = found[f'{name} {devices}']
  assert used == devices
  assert figures == pytest.approx(found[f'{name} 1'][1:], rel=1e-4)
  assert figures[1] > 0.01  # there is a gradient to compare
