"""Memory that is freed is there for the next who asks, without the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys, threading
from agent_gspo.training import host_memory

if sys.argv[1] == 'keep':
  host_memory.keep()

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
  """Of 2048, those that the system gives again to a second thread."""
  done = subprocess.run([sys.executable, '-c', _PROGRAM, how], capture_output=True, check=True)
  return int(done.stdout)


@pytest.mark.skipif(sys.platform != 'linux', reason='only glibc is told')
def test_freed_memory_serves_the_next_thread():
  assert _pages('keep') < 100 < 2000 < _pages('default')
