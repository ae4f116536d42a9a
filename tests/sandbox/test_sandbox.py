"""Attacks the code sandbox: each attempt must be contained and leave no process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

from agent_gspo import sandbox
from agent_gspo.sandbox import process, seccomp

pytestmark = pytest.mark.skipif(sys.platform != 'linux', reason='the sandbox needs Linux')

# Limits are wide, since the machine may be shared; tests check why a program ended.
LIMITS = sandbox.Limits(cpu_seconds=1, wall_seconds=30.0)
# For programs that idle forever; by default the sandbox waits two seconds.
IDLE = sandbox.Limits(wall_seconds=99, idle_seconds=0.5)
SHORT = sandbox.Limits(cpu_seconds=20, wall_seconds=2.0, idle_seconds=99.0)
ATTEMPTS = textwrap.dedent("""
  import ctypes, os, sys
  libc = ctypes.CDLL(None, use_errno=True)

  def attempt(what, action):
    try:
      action()
    except BaseException as error:
      print('refused', what, type(error).__name__, flush=True)
    else:
      print('DONE', what, flush=True)
""")


def _attempts(program: str, limits: sandbox.Limits = LIMITS) -> int:
  """Runs attempts that must all be refused; returns how many there were."""
  outcome = sandbox.run(ATTEMPTS + textwrap.dedent(program), limits)
  assert outcome.ok, outcome
  assert 'DONE' not in outcome.stdout, outcome.stdout
  return outcome.stdout.count('refused')


def _marked(marker: str) -> list[int]:
  """Returns other processes with the marker in their environment or working folder."""
  found = []
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      here = (
        marker in os.readlink(folder / 'cwd')
        or marker.encode() in (folder / 'environ').read_bytes()
      )
    except OSError:
      continue
    if here and int(folder.name) != os.getpid():
      found.append(int(folder.name))
  return found


@pytest.fixture(autouse=True)
def scratches(tmp_path, monkeypatch):
  """Yields scratch folders under a path that marks processes; in the end both must be gone."""
  folder = tmp_path / 'scratches'
  folder.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(folder))
  open_before = len(os.listdir('/proc/self/fd'))
  yield folder
  assert _marked(str(folder)) == []
  assert list(folder.iterdir()) == []
  assert len(os.listdir('/proc/self/fd')) == open_before


def test_ordinary_program_runs():
  outcome = sandbox.run(
    'import collections, dataclasses, decimal, hashlib, heapq, itertools, math, random, re, sys\n'
    'open("note", "w").write("x" * 1000)\n'
    'open("/dev/null", "w").write("x")\n'
    'print(len(open("note").read()), math.comb(5, 2))\n'
    'print("warned", file=sys.stderr)'
  )
  assert outcome == sandbox.Outcome(returncode=0, stopped='', stdout='1000 10\n', stderr='warned\n')


def test_marker_finds_a_process(scratches):
  """The check for left-over processes is itself able to fail."""
  left = subprocess.Popen(['sleep', '60'], env={'HOME': str(scratches)})
  try:
    deadline = time.monotonic() + 10
    while _marked(str(scratches)) != [left.pid] and time.monotonic() < deadline:
      time.sleep(0.01)
    assert _marked(str(scratches)) == [left.pid]
  finally:
    left.kill()
    left.wait()


def test_mechanisms():
  found = sandbox.mechanisms()
  assert set(found) == {
    'resource limits',
    'no privileges',
    'dies with its parent',
    'landlock',
    'seccomp',
  }
  assert found['landlock'].startswith('version ')


@pytest.mark.parametrize(
  ('program', 'limits', 'stopped'),
  [
    ('while True: pass', LIMITS, 'cpu time'),
    ('import os\nwhile True:\n  try: os.fork()\n  except OSError: pass', LIMITS, 'cpu time'),
    ('import time; time.sleep(1000)', SHORT, 'wall time'),
    ('print("x" * 100)', sandbox.Limits(output_bytes=10), 'output'),
  ],
)
def test_limits(program, limits, stopped):
  begun = time.monotonic()
  assert sandbox.run(program, limits).stopped == stopped
  assert time.monotonic() - begun < 20


SILENT = {
  'sleeps': 'import time; time.sleep(1000)',
  'sleeps again and again': 'import time\nwhile True: time.sleep(0.5)',
  'waits for a signal': 'import signal; signal.pause()',
  'waits for nothing': 'import select; select.select([], [], [])',
  'waits for itself': 'import os; os.read(os.pipe()[0], 1)',
  'waits for a lock': 'import threading; x = threading.Lock(); x.acquire(); x.acquire()',
  'closes everything': 'import os, time; os.closerange(0, 256); time.sleep(1000)',
}


@pytest.mark.parametrize('name', SILENT)
def test_silent_program(name):
  begun = time.monotonic()
  assert sandbox.run(SILENT[name], IDLE).stopped == 'idle'
  assert time.monotonic() - begun < 30


@pytest.mark.parametrize('place', ['import time; time.sleep(1000)\n', ''])
def test_silent_solution(place):
  solution = f'{place}import time\ndef f(x): time.sleep(1000)'
  outcome = sandbox.run_tests(solution, 'f', TESTS)
  assert outcome.stopped == 'idle'


@pytest.mark.parametrize(
  'program',
  [
    'import time\nfor i in range(8): time.sleep(0.25); print(i, flush=True)',
    'import time\nfor i in range(8): time.sleep(0.25); sum(range(1_000_000))',
    'import time; time.sleep(0.3)',
  ],
)
def test_programs_that_get_on_are_not_idle(program):
  assert sandbox.run(program, sandbox.Limits(idle_seconds=1.0)).ok


def test_a_long_answer_leaves_its_tests_waiting():
  solution = 'def f(x):\n  sum(range(30_000_000))\n  return x * x'
  limits = sandbox.Limits(cpu_seconds=99, wall_seconds=99, idle_seconds=0.2)
  outcome = sandbox.run_tests(solution, 'f', 'assert f(3) == 9', limits=limits)
  assert outcome.ok, outcome


def _processor_seconds(pid: int) -> float:
  numbers = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
  return (int(numbers[11]) + int(numbers[12])) / os.sysconf('SC_CLK_TCK')


def test_a_starved_program_is_not_idle():
  """Occupies the one processor that the program may use."""
  limits = sandbox.Limits(cpu_seconds=99, wall_seconds=3.0, idle_seconds=0.2)
  processor = {min(os.sched_getaffinity(0))}
  with contextlib.ExitStack() as stack:
    busy_one = stack.enter_context(process.start('while True: pass', limits))
    pid = busy_one.popen.pid
    assert _wait_until(lambda: _processor_seconds(pid) > 0.2)
    os.sched_setaffinity(pid, processor)
    os.setpriority(os.PRIO_PROCESS, pid, 19)
    # Each in a session of its own, as the program is: some kernels share time among sessions.
    for _ in range(15):
      busy = subprocess.Popen(
        [sys.executable, '-S', '-c', 'while True: pass'], start_new_session=True
      )
      stack.callback(busy.wait)
      stack.callback(busy.kill)
      os.sched_setaffinity(busy.pid, processor)
    time.sleep(0.5)
    before = _processor_seconds(pid)
    ended_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.watch([busy_one], limits) == 'wall time'
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = ended.ru_utime + ended.ru_stime - ended_before.ru_utime - ended_before.ru_stime
    assert used - before < 0.5  # In three seconds.


def test_a_program_that_is_held_up_is_not_idle():
  limits = sandbox.Limits(wall_seconds=2.0, idle_seconds=0.3)
  with process.start('while True: pass', limits) as stopped:
    assert _wait_until(lambda: _processor_seconds(stopped.popen.pid) > 0.2)
    os.kill(stopped.popen.pid, signal.SIGSTOP)
    assert process.watch([stopped], limits) == 'wall time'


def test_fork_bomb():
  assert (
    _attempts("""
    import multiprocessing, subprocess, threading
    attempt('fork', os.fork)
    attempt('forkpty', os.forkpty)
    attempt('spawn', lambda: os.posix_spawn('/bin/sh', ['sh'], {}))
    attempt('subprocess', lambda: subprocess.run(['/bin/sh', '-c', ':(){ :|:& };:']))
    attempt('system', lambda: None if os.system('true') == 0 else 0 / 0)
    attempt('multiprocessing', lambda: multiprocessing.Process(target=print).start())
    attempt('thread', lambda: threading.Thread(target=print).start())
    attempt('exec', lambda: os.execv('/bin/sh', ['sh']))
    """)
    == 8
  )


def test_daemon_by_double_fork():
  assert (
    _attempts("""
    def daemon():
      if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
          import time
          time.sleep(1000)
    attempt('daemon', daemon)
    attempt('setsid', os.setsid)
    attempt('setpgid', lambda: os.setpgid(0, 0))
    """)
    == 3
  )


@pytest.mark.parametrize('program', ['bytearray(10 << 30)', 'x = [0]\nwhile True: x += x'])
def test_large_allocation(program):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  outcome = sandbox.run(program, sandbox.Limits(cpu_seconds=10))
  assert 'MemoryError' in outcome.stderr
  assert outcome.returncode == 1
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize('stream', ['stdout', 'stderr'])
def test_endless_print(stream):
  outcome = sandbox.run(
    f'import sys\nwhile True: print("spam" * 100, file=sys.{stream})', sandbox.Limits()
  )
  assert outcome.stopped == 'output'
  assert not outcome.ok
  assert 0 < len(outcome.stdout + outcome.stderr) < 2 * sandbox.Limits().output_bytes


def test_lower_limit_of_the_account_stays():
  code = PARENT.format(
    'import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n'
    'print(sandbox.run("from resource import *; print(getrlimit(RLIMIT_NOFILE))").stdout)'
  )
  found = subprocess.run(
    [sys.executable, '-c', code, tempfile.gettempdir()], cwd=ROOT, capture_output=True, text=True
  )
  assert found.stdout.strip() == '(24, 24)', found.stderr


def test_print_without_buffer():
  outcome = sandbox.run('import os\nwhile True: os.write(1, b"x")', sandbox.Limits(cpu_seconds=20))
  assert outcome.stopped in ('output', 'cpu time')


def test_sockets(tmp_path):
  with socket.socket() as server, socket.socket(socket.AF_UNIX) as local:
    server.bind(('127.0.0.1', 0))
    server.listen()
    local.bind(str(tmp_path / 'local'))
    local.listen()
    server.settimeout(0.1)
    tried = _attempts(f"""
      import asyncio, socket, urllib.request
      address = ('127.0.0.1', {server.getsockname()[1]})
      attempt('tcp', lambda: socket.create_connection(address))
      attempt('udp', lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', address))
      attempt('unix', lambda: socket.socket(socket.AF_UNIX).connect({str(tmp_path / 'local')!r}))
      attempt('abstract', lambda: socket.socket(socket.AF_UNIX).bind(chr(0) + 'name'))
      attempt('netlink', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
      attempt('pair', socket.socketpair)
      attempt('url', lambda: urllib.request.urlopen('http://127.0.0.1:%d' % address[1]))
    """)
    assert tried == 7
    with pytest.raises(TimeoutError):
      server.accept()


def test_files_outside(tmp_path):
  victim, folder = tmp_path / 'victim', tmp_path / 'folder'
  victim.write_text('precious')
  victim.chmod(0o666)
  folder.mkdir(mode=0o777)
  before = victim.stat()
  tried = _attempts(f"""
    import shutil
    victim, folder = {str(victim)!r}, {str(folder)!r}
    for mode in ('w', 'a', 'r+', 'x', 'r'):
      attempt('open ' + mode, lambda: open(victim, mode))
    attempt('empty', lambda: os.open(victim, os.O_RDONLY | os.O_TRUNC))
    attempt('truncate', lambda: os.truncate(victim, 0))
    attempt('remove', lambda: os.remove(victim))
    attempt('rmdir', lambda: os.rmdir(folder))
    attempt('rmtree', lambda: shutil.rmtree(folder))
    attempt('rename', lambda: os.rename(victim, victim + '2'))
    attempt('move in', lambda: os.rename(victim, 'mine'))
    attempt('move out', lambda: (open('own', 'w').close(), os.rename('own', folder + '/own')))
    attempt('replace', lambda: (open('own', 'w').close(), os.replace('own', victim)))
    attempt('hard link', lambda: os.link(victim, 'linked'))
    attempt('symbolic link', lambda: os.symlink(victim, 'linked'))
    attempt('chmod', lambda: os.chmod(victim, 0))
    attempt('chown', lambda: os.chown(victim, 1, 1))
    attempt('utime', lambda: os.utime(victim, (0, 0)))
    attempt('mkdir', lambda: os.mkdir(folder + '/new'))
    attempt('new file', lambda: open(folder + '/new', 'w'))
    attempt('up', lambda: open('../new', 'w'))
    attempt('list', lambda: os.listdir(folder))
    attempt('shared memory', lambda: open('/dev/shm/agent_gspo_new', 'w'))
    attempt('temporary', lambda: open(os.path.join(os.sep, 'var', 'tmp', 'agent_gspo_new'), 'w'))
    attempt('memfd', lambda: os.memfd_create('x'))
    attempt('mknod', lambda: os.mknod('node'))
    attempt('chroot', lambda: os.chroot('.'))
    attempt('source', lambda: open({sandbox.__file__!r}, 'a'))
  """)
  assert tried == 29
  assert victim.read_text() == 'precious'
  after = victim.stat()
  assert (after.st_mode, after.st_mtime_ns, after.st_nlink, after.st_uid) == (
    before.st_mode,
    before.st_mtime_ns,
    1,
    before.st_uid,
  )
  assert list(folder.iterdir()) == []


def test_secrets_are_out_of_reach(tmp_path, monkeypatch):
  monkeypatch.setenv('SECRET_KEY', 'hush-4711')
  (tmp_path / 'key').write_text('hush-4711')
  outcome = sandbox.run('import os; print(dict(os.environ), open)', LIMITS)
  assert outcome.ok
  assert set(eval(outcome.stdout.rpartition(' <')[0])) == {
    'HOME',
    'TMPDIR',
    'LANG',
    'PYTHONHASHSEED',
  }
  tried = _attempts(f"""
    names = ('environ', 'maps', 'mem', 'cmdline')
    places = ['/proc/%d/%s' % (os.getppid(), name) for name in names]
    places += ['/proc/self/environ', '/proc/1/environ', '/etc/shadow', '/etc/passwd']
    places += [{str(tmp_path / 'key')!r}, os.path.expanduser('~root/.bashrc')]
    for place in places:
      attempt(place, lambda: open(place, 'rb').read())
    attempt('list', lambda: os.listdir('/proc'))
    attempt('descriptors', lambda: os.listdir('/proc/%d/fd' % os.getppid()))
  """)
  assert tried == 12


def test_no_inherited_descriptors(tmp_path):
  with (tmp_path / 'open').open('w') as file:
    os.set_inheritable(file.fileno(), True)
    outcome = sandbox.run(
      'import os\nfor d in range(3, 200):\n  try: print(d, os.fstat(d))\n  except OSError: pass'
    )
  assert outcome.ok
  assert outcome.stdout == ''


def test_killing_the_parent():
  seen = []
  before = signal.signal(signal.SIGIO, lambda *_: seen.append('SIGIO'))
  try:
    tried = _attempts("""
      import fcntl, resource, signal
      parent = os.getppid()
      for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, 0):
        attempt('kill', lambda: os.kill(parent, number))
      attempt('everyone', lambda: os.kill(-1, signal.SIGKILL))
      attempt('group', lambda: os.killpg(os.getpgid(parent), signal.SIGKILL))
      attempt('by descriptor', lambda: signal.pidfd_send_signal(os.pidfd_open(parent), 9))
      read, write = os.pipe()
      attempt('owner', lambda: fcntl.fcntl(read, fcntl.F_SETOWN, parent))
      fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
      os.write(write, b'x')
      attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, parent, 19))
      attempt('limit', lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1)))
    """)
  finally:
    signal.signal(signal.SIGIO, before)
  assert tried == 10
  assert seen == []


@pytest.mark.skipif(platform.machine() != 'x86_64', reason='numbers of x86_64')
def test_raw_system_calls():
  """Repeats the attacks without Python's functions."""
  outcome = sandbox.run(
    """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
parent = os.getppid()
for number, *arguments in (
  (56, 17, 0, 0, 0, 0), (57,), (58,), (435, 0, 0),  # clone, fork, vfork, clone3
  (41, 2, 1, 0), (41, 1, 1, 0), (53, 1, 1, 0, 0), (425, 1, 0),  # socket(s), io_uring_setup
  (62, parent, 9), (200, parent, 9), (234, parent, parent, 9), (129, parent, 9, 0),  # kill ...
  (424, 0, 9, 0, 0), (434, parent, 0),  # pidfd_send_signal, pidfd_open
  (101, 16, parent, 0, 0), (310, parent, 0, 0, 0, 0, 0),  # ptrace, process_vm_readv
  (105, 0), (157, 4, 1), (272, 0x10000000), (321, 0, 0, 0), (319, b'x', 0), (165, 0, 0, 0, 0, 0),
):  # setuid, prctl, unshare, bpf, memfd_create, mount
  ctypes.set_errno(0)
  print(number, libc.syscall(number, *arguments), ctypes.get_errno())
""",
    LIMITS,
  )
  assert outcome.ok, outcome
  lines = [line.split() for line in outcome.stdout.splitlines()]
  assert len(lines) == 22
  assert all(line[1:] == ['-1', '1'] for line in lines), lines


def test_raising_its_own_limits():
  tried = _attempts("""
    import resource
    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
      attempt('limit', lambda: resource.setrlimit(kind, (1 << 40, 1 << 40)))
    attempt('uid', lambda: os.setuid(1))
    attempt('death signal', lambda: 0 / 0 if libc.prctl(1, 0) else None)
    attempt('namespace', lambda: 0 / 0 if libc.unshare(0x10000000) else None)
  """)
  assert tried == 6


@pytest.mark.parametrize(
  ('program', 'stopped'),
  [
    ('open("a", "wb").write(bytes(100 << 20))', ''),
    ('import os\nos.truncate(os.open("a", os.O_CREAT | os.O_RDWR), 1 << 40)', ''),
    (
      'import time\nfor i in range(20): open(str(i), "wb").write(bytes(4 << 20))\ntime.sleep(99)',
      'files',
    ),
    ('import time\nfor i in range(2000): open(str(i), "w").close()\ntime.sleep(99)', 'files'),
  ],
)
def test_huge_files(program, stopped):
  outcome = sandbox.run(program, sandbox.Limits(file_bytes=8 << 20))
  assert not outcome.ok
  assert outcome.stopped == stopped
  assert stopped or 'File too large' in outcome.stderr


def test_files_keep_their_names():
  tried = _attempts("""
    import shutil, tempfile
    for name in 'abc':
      open(name, 'w').close()
    held = open('c')
    attempt('remove', lambda: os.remove('a'))
    attempt('remove an open file', lambda: os.unlink('c'))
    attempt('remove in a folder', lambda: os.unlink('a', dir_fd=os.open('.', os.O_RDONLY)))
    attempt('rename', lambda: os.rename('a', 'd'))
    attempt('rename over', lambda: os.rename('a', 'b'))
    attempt('replace an open file', lambda: os.replace('a', 'c'))
    attempt('move', lambda: shutil.move('a', 'd'))
    attempt('link', lambda: os.link('a', 'd'))
    attempt('exchange', lambda: 0 / 0 if libc.renameat2(-100, b'a', -100, b'b', 2) else None)
    attempt('no name', lambda: os.open('.', os.O_TMPFILE | os.O_RDWR))
    attempt('no name left', lambda: os.open('.', os.O_TMPFILE | os.O_WRONLY | os.O_EXCL))
    attempt('temporary', lambda: tempfile.TemporaryFile())
    attempt('anonymous', lambda: os.memfd_create('x'))
  """)
  assert tried == 13


WRITING = {  # each round leaves 4 MB on the disk, and tries to have them overlooked
  'mapped and removed': """
  with open(f'{i}', 'w+b') as file:
    file.write(block)
    file.flush()
    kept.append(mmap.mmap(file.fileno(), 4096))
  os.unlink(f'{i}')""",
  'open and removed': """
  kept.append(open(f'{i}', 'wb', buffering=0))
  with contextlib.suppress(OSError):
    os.unlink(f'{i}')
  kept[-1].write(block)""",
  'removed as soon as written': """
  with open(f'{i}', 'wb', buffering=0) as file:
    kept.append(os.dup(file.fileno()))
    file.write(block)
  os.unlink(f'{i}')""",
  'mapped and renamed over': """
  with open(f'{i}', 'w+b') as file:
    file.write(block)
    file.flush()
    kept.append(mmap.mmap(file.fileno(), 4096))
  os.rename(f'{i}', 'target')""",
  'written through a mapping': """
  with open(f'{i}', 'w+b') as file:
    file.truncate(len(block))
    with mmap.mmap(file.fileno(), len(block)) as mapping:
      mapping[:] = block""",
  'holes': """
  with open(f'{i}', 'wb') as file:
    file.truncate(len(block))""",
  'a byte behind a hole': """
  with open(f'{i}', 'wb') as file:
    file.seek(len(block))
    file.write(b'x')""",
  'small pieces': """
  for j in range(40):
    with open(f'{i}-{j}', 'wb') as file:
      file.write(block[: len(block) // 40])""",
}


@pytest.mark.parametrize('name', WRITING)
def test_what_is_written_is_counted(name):
  body = textwrap.indent(WRITING[name], '  ')
  program = f"""
import contextlib, mmap, os, time
block, kept = bytes(4 << 20), []
for i in range(20):
  with contextlib.suppress(OSError):{body}
time.sleep(99)
"""
  assert sandbox.run(program, sandbox.Limits(file_bytes=8 << 20)).stopped == 'files'


SWALLOW = """
import signal
for number in range(1, 65):
  try: signal.signal(number, lambda *_: None)
  except (OSError, ValueError): pass
"""


def test_swallowed_signals():
  block = 'signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))'
  outcome = sandbox.run(f'{SWALLOW}\n{block}\nwhile True: pass', LIMITS)
  assert outcome.returncode == -signal.SIGKILL
  assert not outcome.ok
  assert sandbox.run(f'{SWALLOW}\nwhile True: signal.pause()', SHORT).stopped == 'wall time'


DEEP = 'import sys\nsys.setrecursionlimit(10**9)\n'


@pytest.mark.parametrize(
  'program',
  [
    'def f(): f()\nf()',
    DEEP + 'def f(): return [f()]\nf()',
    DEEP + 'class A:\n  def __repr__(self): return repr(self)\nrepr(A())',
    '(' * 10_000 + ')' * 10_000,
    'import ctypes; ctypes.string_at(0)',
    'import os; os.abort()',
  ],
)
def test_crashes(program):
  limits = sandbox.Limits(cpu_seconds=5, memory_bytes=128 << 20)
  assert sandbox.run(program, limits).returncode != 0


@pytest.mark.parametrize('program', ['\0', '\ud800', 'x = "\ud800"', 'def', '\r', '# coding: x'])
def test_strange_texts(program):
  assert isinstance(sandbox.run(program, LIMITS).ok, bool)
  assert not sandbox.run_tests(program, 'f', 'f()', limits=LIMITS).ok


def test_closed_streams():
  closing = 'import os, time\nfor d in range(256):\n  try: os.close(d)\n  except OSError: pass\n'
  assert sandbox.run(closing + 'time.sleep(1000)', SHORT).stopped == 'wall time'
  assert sandbox.run('import sys; sys.stdout.close(); sys.stderr.close()', LIMITS).returncode == 0


TESTS = """
assert f(2) == 4
assert f(3) == 9
assert [f(x) for x in range(100)] == [x * x for x in range(100)]
"""


def test_right_solution_passes():
  assert sandbox.run_tests('def f(x):\n  print("noise")\n  return x * x', 'f', TESTS).ok


CHEATS = {
  'wrong': 'def f(x): return x + x',
  'missing': 'g = 1',
  'not a function': 'f = 4',
  'raises': 'def f(x): raise AssertionError',
  'exit at once': 'import os\nos._exit(0)',
  'exit in the call': 'import os\ndef f(x): os._exit(0)',
  'polite exit': 'import sys\ndef f(x): sys.exit(0)',
  'exit by signal': 'import signal\ndef f(x): signal.alarm(1); signal.pause()',
  'at exit': 'import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit(0)',
  'equals everything': """
class Same(int):
  def __eq__(self, other): return True
  def __ne__(self, other): return False
  __hash__ = int.__hash__
def f(x): return Same(1)""",
  'equals everything, no int': """
class Same:
  def __eq__(self, other): return True
def f(x): return Same()""",
  'patched builtins': """
import builtins, sys
class Never(BaseException):
  def __new__(cls, *a): sys.exit(0)
builtins.AssertionError = Never
builtins.compile = builtins.exec = lambda *a, **k: None
sys.excepthook = lambda *a: None
def f(x): return None""",
  'patched pickle': """
import pickle, sys
pickle.dumps = lambda value: b"cos\\n_exit\\n(I0\\ntR."
def f(x): return 1""",
  'walks the frames': """
import sys, gc
def f(x):
  frame, found = sys._getframe(), []
  while frame:
    found += [v for v in frame.f_globals.values() if isinstance(v, str) and 'assert' in v]
    frame = frame.f_back
  found += [o for o in gc.get_objects() if isinstance(o, str) and 'assert f(' in o]
  return x * x if found else 0""",
  'writes to its peer': """
import os, struct
def f(x):
  for d in range(3, 40):
    try: os.write(d, b"pass" + struct.pack(">I", 0xFFFFFFFF))
    except OSError: pass
  return 0""",
  'endless result': """
def f(x):
  while True: yield x""",
  'circular result': 'def f(x):\n  a = []\n  a.append(a)\n  return a',
  'huge result': 'def f(x): return "x" * (100 << 20)',
  'endless': 'def f(x):\n  while True: pass',
}


@pytest.mark.parametrize('name', CHEATS)
def test_success_is_proven_by_results(name):
  outcome = sandbox.run_tests(
    CHEATS[name], 'f', TESTS, limits=sandbox.Limits(cpu_seconds=2, wall_seconds=30)
  )
  assert not outcome.ok


@pytest.mark.parametrize(
  ('returned', 'test'),
  [
    ('[1, (2, 3)]', 'f() == [1, (2, 3)] and f() != [1, [2, 3]] and type(f()[1]) is tuple'),
    ('True', 'f() is True'),
    ('None', 'f() is None'),
    ('float("inf"), -0.0, 1e-300, 10**50', 'f() == (float("inf"), 0.0, 1e-300, 10**50)'),
    ('float("nan")', 'f() != f()'),
    ('{1, 2}, frozenset({3})', 'f() == ({1, 2}, {3})'),
    ('b"x", "\\ud800é"', 'f() == (b"x", "\\ud800é")'),
    ('__import__("collections").Counter("aab")', 'f() == {"a": 2, "b": 1}'),
    ('__import__("enum").IntEnum("E", "A B").B', 'f() == 2'),
    ('(i for i in range(3))', 'f() != [0, 1, 2] and list(f()) == [0, 1, 2]'),
    ('map(str, range(3))', 'tuple(f()) == ("0", "1", "2")'),
  ],
)
def test_results_keep_their_types(returned, test):
  outcome = sandbox.run_tests(f'def f(): return {returned}', 'f', f'assert {test}')
  assert outcome.ok, outcome.stderr


def test_arguments_are_copies():
  """A solution that changes its argument changes its copy, by keyword as well."""
  outcome = sandbox.run_tests(
    'def f(x, *, y): x.append(y); return x',
    'f',
    'a = [1]\nassert f(a, y=2) == [1, 2]\nassert helper(a) == [1]',
    setup='def helper(x): return x\ndef f(x, y): pass',
  )
  assert outcome.ok, outcome.stderr


def test_many_at_once():
  def one(i):
    if i % 4 == 0:
      return sandbox.run('while True: pass', LIMITS).stopped == 'cpu time'
    return sandbox.run(f'print({i} ** 2)', sandbox.Limits()).stdout == f'{i * i}\n'

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert all(pool.map(one, range(16)))


PARENT = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from agent_gspo import sandbox
{}
"""
ROOT = pathlib.Path(sandbox.__file__).parents[2]


def _wait_until(condition) -> bool:
  deadline = time.monotonic() + 20
  while not condition() and time.monotonic() < deadline:
    time.sleep(0.02)
  return condition()


def test_dies_with_its_parent(scratches, monkeypatch):
  code = PARENT.format(
    'sandbox.run("import time; time.sleep(1000)", sandbox.Limits(wall_seconds=99, idle_seconds=99))'
  )
  parent = subprocess.Popen([sys.executable, '-c', code, str(scratches)], cwd=ROOT)
  # The folder is in the parent's arguments only, not in its environment.
  assert _wait_until(lambda: _marked(str(scratches)))
  parent.kill()
  parent.wait()
  assert _wait_until(lambda: not _marked(str(scratches)))
  for folder in scratches.iterdir():  # No process was left to remove it.
    folder.rmdir()


def _without(call: int) -> str:
  """Returns code that disables a system call, as on older kernels."""
  code = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x00050026), (0x06, 0, 0, 0x7FFF0000)]
  packed = b''.join(struct.pack('<HBBI', *instruction) for instruction in code)
  return (
    'import ctypes, struct\nlibc = ctypes.CDLL(None)\n'
    f'code = ctypes.create_string_buffer({packed!r})\n'
    'program = struct.pack("@HP", 4, ctypes.addressof(code))\n'
    'assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0\n'
  )


@pytest.mark.skipif(platform.machine() != 'x86_64', reason='numbers of x86_64')
@pytest.mark.parametrize(
  ('call', 'layer'), [(444, 'landlock'), (446, 'landlock'), (126, 'no priv')]
)
def test_refuses_without_a_layer(scratches, call, layer):
  code = PARENT.format(f"""{_without(call)}
for action in (sandbox.mechanisms, lambda: sandbox.run('print("ran")'),
               lambda: sandbox.run_tests('print("ran")', 'f', 'print("ran")')):
  try: print('RAN', action())
  except sandbox.SandboxUnavailableError as error: print(error)
""")
  found = subprocess.run(
    [sys.executable, '-c', code, str(scratches)], cwd=ROOT, capture_output=True, text=True
  )
  assert found.returncode == 0, found.stderr
  assert 'ran' not in found.stdout.lower().replace('random', '')
  lines = found.stdout.splitlines()
  assert len(lines) == 3
  assert all(f'({layer}' in line and 'Remedy' in line for line in lines)


def test_refuses_other_systems(monkeypatch):
  monkeypatch.setattr(platform, 'machine', lambda: 'riscv64')
  with pytest.raises(sandbox.SandboxUnavailableError, match='riscv64'):
    sandbox.run('print(1)')


def _decide(machine: str, architecture: int, number: int, *arguments: int) -> str:
  """Returns the filter's decision by interpreting its four instructions."""
  data = struct.pack('<IIQ6Q', number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
  code = list(struct.iter_unpack('<HBBI', seccomp.filter_program(machine)))
  place = value = 0
  while True:
    kind, if_so, if_not, operand = code[place]
    place += 1
    if kind == 0x20:
      (value,) = struct.unpack_from('<I', data, operand)
    elif kind == 0x54:
      value &= operand
    elif kind == 0x15:
      place += if_so if value == operand else if_not
    else:
      return {0x7FFF0000: 'allow', 0x50001: 'refuse', 0x80000000: 'kill'}[operand]


@pytest.mark.parametrize(
  ('machine', 'architecture', 'numbers'),
  [
    ('x86_64', 0xC000003E, {'read': 0, 'openat': 257, 'fcntl': 72, 'prlimit': 302}),
    ('aarch64', 0xC00000B7, {'read': 63, 'openat': 56, 'fcntl': 25, 'prlimit': 261}),
  ],
)
def test_filter(machine, architecture, numbers):
  def decide(name, *arguments):
    return _decide(machine, architecture, numbers[name], *arguments)

  assert decide('read') == 'allow'
  assert decide('openat', 0, 0, os.O_RDONLY | os.O_CLOEXEC) == 'allow'
  assert decide('openat', 0, 0, os.O_RDWR | os.O_CREAT | os.O_TRUNC) == 'allow'
  assert decide('openat', 0, 0, os.O_RDONLY | os.O_TRUNC) == 'refuse'
  assert decide('openat', 0, 0, os.O_RDWR | os.O_TMPFILE) == 'refuse'
  assert decide('fcntl', 5, 3) == 'allow'
  assert decide('fcntl', 5, 8) == 'refuse'
  assert decide('prlimit', 0, 0, 0) == 'allow'
  assert decide('prlimit', 0, 0, 1) == 'refuse'
  assert decide('prlimit', 0, 0, 1 << 32) == 'refuse'
  assert _decide(machine, 0x40000003, 3) == 'kill'
  allowed = [n for n in range(2000) if _decide(machine, architecture, n) == 'allow']
  assert 50 < len(allowed) < 100
  # socket, connect, clone, execve, kill, tgkill, ptrace, unshare, io_uring_setup ...
  processes = {
    'x86_64': {41, 42, 56, 57, 58, 59, 62, 101, 200, 234, 272, 425, 435, 0x40000000},
    'aarch64': {198, 203, 220, 221, 129, 131, 117, 97, 425, 435},
  }[machine]
  # rename, link, unlink, fallocate, memfd_create and their relatives
  names = {
    'x86_64': {82, 86, 87, 263, 264, 265, 285, 316, 319},
    'aarch64': {35, 37, 38, 47, 276, 279},
  }[machine]
  assert not (processes | names) & set(allowed)
