"""Checks that freed memory is reused without the operating system."""

from __future__ import annotations

import gc
import subprocess
import sys

import micro_run
import pytest

from agent_gspo.training import host_memory, loop

_PROGRAM = """
import resource, sys, threading
from agent_gspo.training import host_memory

if sys.argv[1] in ('keep', 'release'):
  host_memory.keep()
if sys.argv[1] == 'release':
  host_memory.release()

def pages():
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  _ = b"x" * (8 << 20)
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = []
for _ in range(2):
  thread = threading.Thread(target=lambda: found.append(pages()))
  thread.start()
  thread.join()
print(found[1])
"""


def _pages(how: str) -> int:
  """Counts the pages, of 2048, that the system gives again to a second thread."""
  done = subprocess.run([sys.executable, '-c', _PROGRAM, how], capture_output=True, check=True)
  return int(done.stdout)


@pytest.mark.skipif(sys.platform != 'linux', reason='only glibc is told')
def test_freed_memory_serves_the_next_thread():
  assert _pages('keep') < 100 < 2000 < _pages('default')


@pytest.mark.skipif(sys.platform != 'linux', reason='only glibc is told')
def test_released_memory_returns_to_the_system():
  assert _pages('release') > 2000


_SCATTERED = """
from agent_gspo.training import host_memory

host_memory.keep()
host_memory._SMALL = 0
blocks = [bytes(b'x') * (8 << 20) for _ in range(16)]
del blocks[:-1]  # the last one keeps the heap from shrinking
before = host_memory.resident()
host_memory.give_back()
print(before - host_memory.resident())
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='only glibc is told')
def test_scattered_memory_is_given_back():
  done = subprocess.run([sys.executable, '-c', _SCATTERED], capture_output=True, check=True)
  assert int(done.stdout) > 100 << 20


def test_memory_is_given_back_when_a_loop_holds_more_than_its_first_turn(monkeypatch):
  held, given = iter([100, 109, 111, 105]), []
  monkeypatch.setattr(host_memory, 'resident', lambda: next(held))
  monkeypatch.setattr(host_memory, 'give_back', lambda: given.append(True))
  ceiling = host_memory.Ceiling()
  counts = []
  for _ in range(4):
    ceiling.check()
    counts.append(len(given))
  assert counts == [0, 0, 1, 1]


@pytest.mark.parametrize(
  ('group', 'limits', 'expected'),
  [
    ('0::/', {}, None),
    ('0::/job', {'job/memory.max': '3000'}, 3000),
    ('0::/job/step', {'job/step/memory.max': 'max', 'job/memory.max': '2000'}, 2000),
    ('0::/outside/of/the/container', {'memory.max': '1000'}, 1000),
    ('4:cpu,memory:/job', {'memory/job/memory.limit_in_bytes': '500'}, 500),
    ('4:cpuset:/job', {'memory/job/memory.limit_in_bytes': '500'}, None),
  ],
)
def test_a_cgroup_limits_the_memory(tmp_path, group, limits, expected):
  for file, text in {'proc/self/cgroup': group + '\n'}.items() | {
    (f'sys/fs/cgroup/{name}', value) for name, value in limits.items()
  }:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
  host = host_memory.available(tmp_path / 'nothing')
  assert host > 2**28
  assert host_memory.available(tmp_path) == (expected or host)


@pytest.mark.slow
def test_a_run_keeps_its_programs_from_the_garbage_collector(tmp_path):
  kept = []
  tell = lambda step, metrics: kept.append(gc.get_freeze_count())
  loop.train(micro_run.changed(steps=2), tmp_path, on_step=tell)
  assert kept[0] == 0
  assert kept[1] > 10_000
  assert gc.get_freeze_count() == 0
