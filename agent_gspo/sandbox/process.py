"""Starts, monitors and kills sandboxed processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import platform
import selectors
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence

from agent_gspo.sandbox import seccomp

_HERE = pathlib.Path(__file__).parent
_TICK_SECONDS = 0.1
_MAX_FILES = 256
_SYSTEM_PATHS = (
  '/lib',
  '/lib64',
  '/usr/lib',
  '/usr/lib64',
  '/usr/share/zoneinfo',
  '/etc/ld.so.cache',
  '/etc/localtime',
  '/dev/urandom',
  '/dev/zero',
)


class SandboxUnavailableError(RuntimeError):
  """Error: this machine lacks a layer of protection, so nothing was run."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """Resource limits of one program, which is always one process with one thread.

  Attributes:
    cpu_seconds: Processor time (whole seconds).
    wall_seconds: Time from start to end, start-up included.
    idle_seconds: Time in which the program, and its peer, only sleep: they use no processor
      time, print nothing, and wait for neither a processor nor a disk.
    memory_bytes: Address space; the interpreter takes some 30 MB of it.
    output_bytes: Standard output and error together.
    file_bytes: One file, and all files in the scratch folder together.
    open_files: File descriptors.
  """

  cpu_seconds: int = 5
  wall_seconds: float = 30.0
  idle_seconds: float = 2.0
  memory_bytes: int = 512 << 20
  output_bytes: int = 1 << 18
  file_bytes: int = 16 << 20
  open_files: int = 32


class Process:
  """Started program and its output so far.

  Attributes:
    popen: Process handle.
    scratch: Scratch folder.
    status: Descriptor on which the process reports its layers of protection.
    output: Bytes written so far, by descriptor.
    killed: Whether `kill` ended it.
  """

  def __init__(self, popen: subprocess.Popen, status: int, scratch: str):
    self.popen = popen
    self.scratch = scratch
    assert popen.stdout is not None
    assert popen.stderr is not None
    self._stdout, self._stderr = popen.stdout.fileno(), popen.stderr.fileno()
    descriptors = (status, self._stdout, self._stderr)
    self.output = {descriptor: bytearray() for descriptor in descriptors}
    self.status = status
    self.killed = False

  def kill(self) -> None:
    """Kills the process if it has not ended; it has no children that could outlive it."""
    if self.popen.poll() is None:
      self.killed = True
      self.popen.kill()
      self.popen.wait()

  def printed(self) -> int:
    """Counts the bytes of standard output and error so far."""
    return sum(len(found) for key, found in self.output.items() if key != self.status)

  def stdout(self) -> bytes:
    """Returns the standard output so far."""
    return bytes(self.output[self._stdout])

  def stderr(self) -> bytes:
    """Returns the standard error so far."""
    return bytes(self.output[self._stderr])

  def layers(self) -> dict[str, str]:
    """Returns the layers of protection in use; empty if it was killed before confinement."""
    text = self.output[self.status]
    if not text and self.killed:
      return {}
    try:
      return json.loads(text)['layers']
    except (ValueError, KeyError):
      found = self.stderr().decode(errors='replace')
      reason = json.loads(text)['error'] if text else f'the process died early: {found}'
      raise SandboxUnavailableError(
        f'model-written code cannot be sandboxed here ({reason}). Remedy: Linux 5.13 or later '
        'with Landlock (`landlock` in /sys/kernel/security/lsm) and seccomp; in a container, a '
        'profile that allows the calls landlock_* and prctl(PR_SET_SECCOMP)'
      ) from None


@contextlib.contextmanager
def start(program: str, limits: Limits, peer: tuple[int, int] = (-1, -1)) -> Iterator[Process]:
  """Starts a program; removes it, its scratch folder and its pipes at the end.

  Args:
    program: Source text.
    limits: Resource limits.
    peer: Descriptors for this program alone, to read from and to write to; -1 for none.

  Raises:
    SandboxUnavailableError: on a machine without a system-call filter.
  """
  if sys.platform != 'linux' or platform.machine() not in seccomp.machines():
    raise SandboxUnavailableError(
      f'model-written code runs on Linux on {" or ".join(seccomp.machines())} only, not '
      f'on {sys.platform} on {platform.machine()}. Remedy: grade code on such a machine'
    )
  with contextlib.ExitStack() as stack:
    scratch = tempfile.mkdtemp(prefix='agent_gspo_sandbox_')
    stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    status, status_end = os.pipe()
    stack.callback(os.close, status)
    try:
      popen = subprocess.Popen(
        # No site packages, nothing from the current folder, no bytecode written.
        [sys.executable, '-S', '-s', '-P', '-B', '-X', 'utf8', _HERE / 'child.py'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=scratch,
        # One hash seed: the order of a set must not decide a grade.
        env={'HOME': scratch, 'TMPDIR': scratch, 'LANG': 'C.UTF-8', 'PYTHONHASHSEED': '0'},
        pass_fds=[status_end, *(end for end in peer if end >= 0)],
        start_new_session=True,
      )
    finally:
      os.close(status_end)
    stack.enter_context(popen)  # closes its pipes
    process = Process(popen, status, scratch)
    stack.callback(process.kill)
    spec = {
      'program': program,
      'limits': dataclasses.asdict(limits),
      'peer': peer,
      'scratch': scratch,
      'status': status_end,
      'parent': os.getpid(),
      'machine': platform.machine(),
      'readable': _readable(),
      'filter': seccomp.filter_program(platform.machine()).hex(),
    }
    assert popen.stdin is not None
    with contextlib.suppress(BrokenPipeError), popen.stdin:
      popen.stdin.write(json.dumps(spec).encode())
    yield process


@functools.cache
def _readable() -> tuple[str, ...]:
  library = sysconfig.get_paths(vars={'base': sys.base_prefix, 'platbase': sys.base_prefix})
  # The folder above has the shared libraries that come with some interpreters.
  folders = {os.path.dirname(library[kind]) for kind in ('stdlib', 'platstdlib')}
  paths = {*folders, *_SYSTEM_PATHS}
  return tuple(sorted(path for path in paths if os.path.exists(path)))


def watch(processes: Sequence[Process], limits: Limits) -> str:
  """Reads the programs' output until the first one ends; kills all of them at a limit.

  Returns:
    The exceeded limit, or ''.
  """
  deadline = time.monotonic() + limits.wall_seconds
  stopped, ended, next_look = '', False, 0.0
  last_activity, idle_looks = None, 0
  with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
    for process in processes:
      for descriptor in process.output:
        os.set_blocking(descriptor, False)
        selector.register(descriptor, selectors.EVENT_READ, process)
    first_end = os.pidfd_open(processes[0].popen.pid)
    stack.callback(os.close, first_end)
    selector.register(first_end, selectors.EVENT_READ)
    while not stopped and not ended:
      for key, _ in selector.select(_TICK_SECONDS):
        if key.fd == first_end:
          ended = True
        elif not _read(key.data, key.fd, limits.output_bytes):
          selector.unregister(key.fd)
      if any(process.printed() > limits.output_bytes for process in processes):
        stopped = 'output'
      elif not ended and time.monotonic() > next_look:  # not after each output
        next_look = time.monotonic() + _TICK_SECONDS
        activity = _activity(processes)
        # Counts checks, not seconds: a late check proves nothing about the time before it.
        idle_looks = idle_looks + 1 if activity and activity == last_activity else 0
        last_activity = activity
        if idle_looks * _TICK_SECONDS >= limits.idle_seconds:
          stopped = 'idle'
        else:
          stopped = _passed_limit(processes, limits, deadline)
  if ended:
    processes[0].popen.wait()
  for process in processes:
    process.kill()
    for descriptor in process.output:  # Output written just before the end.
      while _read(process, descriptor, limits.output_bytes):
        pass
  return stopped


def _activity(processes: Sequence[Process]) -> tuple[str | int, ...]:
  """Returns counters that change with progress; empty if a process is runnable or blocked."""
  found: list[str | int] = []
  for process in processes:
    try:
      stat = pathlib.Path(f'/proc/{process.popen.pid}/stat').read_text(encoding='utf-8')
    except OSError:
      return ()
    state, *numbers = stat.rpartition(')')[2].split()
    if state not in 'SZ':  # Neither sleeping nor ended: it runs, or waits for CPU or disk.
      return ()
    user_ticks, system_ticks = numbers[10:12]
    found += [user_ticks, system_ticks, process.printed()]
  return tuple(found)


def _passed_limit(processes: Sequence[Process], limits: Limits, deadline: float) -> str:
  if time.monotonic() > deadline:
    return 'wall time'
  if any(_too_full(process.scratch, limits.file_bytes) for process in processes):
    return 'files'
  return ''


def _read(process: Process, descriptor: int, most: int) -> bool:
  """Reads once, storing about `most` bytes in all; False at the end or if nothing is ready."""
  try:
    found = os.read(descriptor, 1 << 16)
  except BlockingIOError:
    return False
  if descriptor == process.status or process.printed() <= most:
    process.output[descriptor] += found
  return bool(found)


def _too_full(scratch: str, most_bytes: int) -> bool:
  """Returns whether the scratch folder exceeds its limits.

  A program can write nowhere else, make no folders and remove no file. Sizes count, not blocks:
  blocks may be allocated late, and holes filled through a mapping.
  """
  size = 0
  with contextlib.suppress(FileNotFoundError), os.scandir(scratch) as entries:
    for count, entry in enumerate(entries, 1):
      with contextlib.suppress(FileNotFoundError):
        size += entry.stat(follow_symlinks=False).st_size
      if size > most_bytes or count > _MAX_FILES:
        return True
  return False
