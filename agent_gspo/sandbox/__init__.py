"""Runs model-written Python code in a sandboxed process.

Each program is one process (`child`), which confines itself before it runs the code:

- seccomp: a list of allowed system calls. It cannot create sockets, processes or threads, run
  programs or send signals, so killing the process ends everything.
- Landlock: files are written in a scratch folder only, and read there, in the folders of
  Python's standard library and in the system's libraries; not in the home folder or /proc.
  Files cannot be removed or renamed, so the sum of their sizes is the disk space of a program.
- resource limits on processor time, memory, file size and open files; here, limits on
  wall time, idle time, output and the size of the scratch folder.
- no capabilities and no new privileges (root becomes powerless), an empty environment,
  no inherited files, and an end with its parent.

No root is needed. A layer that the kernel does not have is an error, never skipped.

Not prevented: a program sees whether a path exists, the metadata of files (`stat`), the time and
the machine's name; it can use processor, memory and disk up to the limits, and beyond them the
disk space that it writes in the 0.1 s between two checks; a kernel bug in an allowed call is a
bug here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
from collections.abc import Iterator, Sequence

from agent_gspo.sandbox.process import Limits, SandboxUnavailableError, start, watch

DEFAULT_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Exit status and output of a program.

  Attributes:
    returncode: Exit status; minus the number of the signal that killed it.
    stopped: Limit that ended it ('wall time', 'idle', 'output', 'files', 'cpu time'), or ''.
    stdout: Standard output, up to the limit.
    stderr: Standard error of the program and its peer, up to the limit.
  """

  returncode: int
  stopped: str
  stdout: str
  stderr: str

  @property
  def ok(self) -> bool:
    """Returns whether the program ended without an error."""
    return self.returncode == 0 and not self.stopped


def run(program: str, limits: Limits = DEFAULT_LIMITS) -> Outcome:
  """Runs a program.

  An exit status of 0 proves nothing about its behavior: see `run_tests`.

  Raises:
    SandboxUnavailableError: if this machine lacks a layer of protection.
  """
  return _run([program], limits)


def run_tests(
  solution: str, name: str, tests: str, *, setup: str = '', limits: Limits = DEFAULT_LIMITS
) -> Outcome:
  """Runs tests against a function of a program that cannot see them.

  Solution and tests are two sandboxed processes; arguments and results travel between
  them as plain data. The outcome is that of the tests, whose exit status the solution cannot
  change: it passes only by returning the right results.

  Args:
    solution: Program that defines the function `name`.
    name: Function name.
    tests: Program that calls `name` and raises if a result is wrong.
    setup: Program that runs before the tests, in their process.
    limits: Limits on each of the two processes.

  Raises:
    SandboxUnavailableError: if this machine lacks a layer of protection.
  """
  calls = pathlib.Path(__file__).with_name('calls.py').read_text(encoding='utf-8')
  return _run(
    [
      f'{calls}\nexamine({setup!r}, {tests!r}, {name!r}, PEER)\n',
      f'{calls}\nserve({solution!r}, {name!r}, PEER)\n',
    ],
    limits,
  )


@functools.cache
def mechanisms() -> dict[str, str]:
  """Returns the layers of protection in use on this machine, with details.

  Raises:
    SandboxUnavailableError: if one is missing; names it and the remedy.
  """
  with start('', DEFAULT_LIMITS) as process:
    if watch([process], DEFAULT_LIMITS):
      raise SandboxUnavailableError('this machine is too busy to start a process; try again')
    return process.layers()


def _run(programs: Sequence[str], limits: Limits) -> Outcome:
  """Runs one program, or two connected ones; returns the first one's outcome."""
  with contextlib.ExitStack() as stack:
    with _peers(len(programs)) as peers:
      processes = [
        stack.enter_context(start(program, limits, peer))
        for program, peer in zip(programs, peers, strict=True)
      ]
    stopped = watch(processes, limits)
    for process in processes:
      process.layers()  # Raises if it was not confined.
    returncode = processes[0].popen.returncode
    if not stopped and returncode == -signal.SIGXCPU:
      stopped = 'cpu time'
    return Outcome(
      returncode=returncode,
      stopped=stopped,
      stdout=processes[0].stdout().decode(errors='replace'),
      stderr=b''.join(process.stderr() for process in processes).decode(errors='replace'),
    )


@contextlib.contextmanager
def _peers(count: int) -> Iterator[list[tuple[int, int]]]:
  """Yields (read, write) descriptors of pipes between two programs; -1 for a single one."""
  if count == 1:
    yield [(-1, -1)]
    return
  (read_a, write_b), (read_b, write_a) = os.pipe(), os.pipe()
  try:
    yield [(read_a, write_a), (read_b, write_b)]
  finally:  # If they stayed open here, a program would wait for a peer that has ended.
    for end in (read_a, write_a, read_b, write_b):
      os.close(end)
