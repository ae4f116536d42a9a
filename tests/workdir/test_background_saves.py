"""Checks that a background save writes the state at the time of the call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import dataclasses
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_checkpoints
import tensorstore
from full_disk import full

from agent_gspo.workdir import checkpoints, disk, step_folders


@pytest.fixture
def held(monkeypatch):
  """Yields an event; no array is written before it is set."""
  go_on, open_ = threading.Event(), tensorstore.open

  async def open_later(*arguments, **options):
    await asyncio.to_thread(go_on.wait)
    return await open_(*arguments, **options)

  monkeypatch.setattr(tensorstore, 'open', open_later)
  yield go_on
  go_on.set()


@functools.partial(jax.jit, donate_argnums=0)
def _doubled(tree):
  return jax.tree.map(lambda x: 2 * x, tree)


def _assert_saved(folder, value: float, step: int) -> None:
  found = small_checkpoints.open_(folder)
  assert found.latest_step == step
  restored = found.restore(small_checkpoints.state(0.0))
  jax.tree.map(np.testing.assert_array_equal, restored, small_checkpoints.state(value, step))


def test_what_is_saved_is_the_state_at_the_call(tmp_path, held):
  saver = small_checkpoints.open_(tmp_path)
  state = small_checkpoints.state(1.5, 1)
  before = [np.array(x) for x in jax.tree.leaves(state)]
  saver.save(state)
  assert saver.latest_step is None
  jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state), before)
  donated = (state.trainable, state.opt_state)
  jax.block_until_ready(_doubled(donated))
  assert all(x.is_deleted() for x in jax.tree.leaves(donated))
  held.set()
  saver.wait()
  assert saver.latest_step == 1
  _assert_saved(tmp_path, 1.5, 1)


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='writes to buffers from the host')
def test_no_buffer_that_is_trained_is_read_later(tmp_path, held):
  """Holds whatever JAX does with a donated buffer that is still referenced."""
  saver = small_checkpoints.open_(tmp_path)
  state = small_checkpoints.state(1.5, 1)
  saver.save(state)
  for x in jax.tree.leaves(dataclasses.replace(state, frozen={})):
    ctypes.memset(x.unsafe_buffer_pointer(), 0xFF, x.nbytes)
  assert np.isnan(state.trainable['a', 'lora_a']).all()
  held.set()
  saver.wait()
  _assert_saved(tmp_path, 1.5, 1)


def test_a_large_state_on_a_cpu_is_written_first(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoints, '_LARGEST_COPY', 0)
  monkeypatch.setattr(checkpoints, '_copy_on_cpu', None)
  saver = small_checkpoints.open_(tmp_path)
  state = small_checkpoints.state(1.5, 1)
  saver.save(state)
  assert saver.latest_step == 1
  jax.block_until_ready(_doubled((state.trainable, state.opt_state)))
  _assert_saved(tmp_path, 1.5, 1)
  with full(30), pytest.raises(disk.WriteError, match='checkpoint 2 could not be written'):
    saver.save(small_checkpoints.state(2.5, 2))
  assert saver.latest_step == 1
  saver.save(small_checkpoints.state(2.5, 2))  # there is room again
  _assert_saved(tmp_path, 2.5, 2)


@pytest.mark.parametrize('axes', [(), ('x',)])
def test_an_array_over_several_devices_is_copied_part_by_part(axes):
  mesh = jax.make_mesh((jax.device_count(),), ('x',))
  spec = jax.sharding.PartitionSpec(*axes)
  rows = jnp.arange(6.0 * jax.device_count()).reshape(-1, 3)
  array = jax.device_put(rows, jax.sharding.NamedSharding(mesh, spec))
  copy = checkpoints._copy_on_cpu(array)
  assert (copy.sharding, copy.dtype) == (array.sharding, array.dtype)
  np.testing.assert_array_equal(copy, array)
  where = lambda x: {shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards}
  if jax.default_backend() == 'cpu':
    assert not where(copy) & where(array)


def test_the_next_save_waits_and_the_same_one_does_nothing(tmp_path, monkeypatch):
  go_on, seal, sealed = threading.Event(), step_folders._seal, []

  def seal_later(folder):
    go_on.wait()
    seal(folder)
    sealed.append(folder)

  monkeypatch.setattr(step_folders, '_seal', seal_later)
  saver = small_checkpoints.open_(tmp_path, keep=2)
  saver.save(small_checkpoints.state(1.5, 1))
  saver.save(small_checkpoints.state(7.5, 1))  # under way
  assert not sealed
  assert saver.latest_step is None
  threading.Timer(0.3, go_on.set).start()
  saver.save(small_checkpoints.state(2.5, 2))
  assert len(sealed) >= 1
  assert saver.latest_step in (1, 2)
  saver.wait()
  saver.save(small_checkpoints.state(8.5, 2))  # on the disk
  saver.wait()
  assert len(sealed) == 2
  _assert_saved(tmp_path, 2.5, 2)
  assert step_folders.problem(tmp_path / '1') is None


@pytest.mark.parametrize(
  'next_call', [lambda c: c.save(small_checkpoints.state(3.5, 3)), lambda c: c.wait()]
)
def test_what_goes_wrong_is_raised_at_the_next_call(tmp_path, held, capfd, next_call):
  saver = small_checkpoints.open_(tmp_path, keep=2)
  held.set()
  saver.save(small_checkpoints.state(1.5, 1))
  saver.wait()
  held.clear()
  saver.save(small_checkpoints.state(2.5, 2))  # the disk is full only now
  with full(30):
    held.set()
    concurrent.futures.wait([saver._saving])
  assert saver.latest_step == 1
  message = f'checkpoint 2 could not be written to {tmp_path}: File too large'
  with pytest.raises(disk.WriteError, match=message):
    next_call(saver)
  assert capfd.readouterr().err == ''
  # A write that the error did not stop may leave something, which the next save removes.
  left = {path.name for path in tmp_path.iterdir()}
  assert '1' in left
  assert all(name.startswith('unfinished') for name in left - {'1'})
  saver.wait()  # it is raised once
  _assert_saved(tmp_path, 1.5, 1)
  saver.save(small_checkpoints.state(2.5, 2))  # there is room again
  saver.wait()
  _assert_saved(tmp_path, 2.5, 2)
  assert {path.name for path in tmp_path.iterdir()} == {'1', '2'}
