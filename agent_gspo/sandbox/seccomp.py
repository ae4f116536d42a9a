"""Builds the seccomp filter of a sandboxed process: its allowed system calls.

Everything that is not listed fails with EPERM, calls of future kernels included.
Not listed, among others: whatever makes a process, a thread or a socket, runs a
program, sends a signal, changes owner, mode or limits, makes folders and links, mounts,
traces, or shares memory.

Nor can files be unlinked or renamed, or be created without a name (O_TMPFILE, memfd_create):
while open or mapped, they would use disk space that cannot be counted.
"""

from __future__ import annotations

import dataclasses
import struct

# Number of each call: (x86_64, aarch64); None if the machine lacks the call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
  # Open files.
  'read': (0, 63),
  'write': (1, 64),
  'readv': (19, 65),
  'writev': (20, 66),
  'pread64': (17, 67),
  'pwrite64': (18, 68),
  'lseek': (8, 62),
  'close': (3, 57),
  'close_range': (436, 436),
  'dup': (32, 23),
  'dup2': (33, None),
  'dup3': (292, 24),
  'pipe': (22, None),
  'pipe2': (293, 59),
  'poll': (7, None),
  'ppoll': (271, 73),
  'select': (23, None),
  'pselect6': (270, 72),
  'fsync': (74, 82),
  'fdatasync': (75, 83),
  'ftruncate': (77, 46),
  'fadvise64': (221, 223),
  # Paths; Landlock decides which.
  'stat': (4, None),
  'fstat': (5, 80),
  'lstat': (6, None),
  'newfstatat': (262, 79),
  'statx': (332, 291),
  'access': (21, None),
  'faccessat': (269, 48),
  'faccessat2': (439, 439),
  'readlink': (89, None),
  'readlinkat': (267, 78),
  'getdents64': (217, 61),
  'getcwd': (79, 17),
  # Its own memory.
  'mmap': (9, 222),
  'munmap': (11, 215),
  'mprotect': (10, 226),
  'mremap': (25, 216),
  'madvise': (28, 233),
  'brk': (12, 214),
  # Its own signals, timers, locks and end.
  'rt_sigaction': (13, 134),
  'rt_sigprocmask': (14, 135),
  'rt_sigpending': (127, 136),
  'rt_sigsuspend': (130, 133),
  'rt_sigreturn': (15, 139),
  'sigaltstack': (131, 132),
  'restart_syscall': (219, 128),
  'pause': (34, None),
  'alarm': (37, None),
  'getitimer': (36, 102),
  'setitimer': (38, 103),
  'nanosleep': (35, 101),
  'clock_nanosleep': (230, 115),
  'futex': (202, 98),
  'set_robust_list': (273, 99),
  'rseq': (334, 293),
  'exit': (60, 93),
  'exit_group': (231, 94),
  # Questions without effect.
  'time': (201, None),
  'gettimeofday': (96, 169),
  'clock_gettime': (228, 113),
  'clock_getres': (229, 114),
  'times': (100, 153),
  'getrusage': (98, 165),
  'getrlimit': (97, 163),
  'getrandom': (318, 278),
  'getpid': (39, 172),
  'getppid': (110, 173),
  'gettid': (186, 178),
  'getuid': (102, 174),
  'geteuid': (107, 175),
  'getgid': (104, 176),
  'getegid': (108, 177),
  'uname': (63, 160),
  'sched_yield': (24, 124),
  'sched_getaffinity': (204, 123),
}
_MACHINES = {'x86_64': (0, 0xC000003E), 'aarch64': (1, 0xC00000B7)}


@dataclasses.dataclass(frozen=True)
class _Checked:
  """System call allowed if the masked 32-bit words of its arguments have listed values."""

  numbers: tuple[int | None, int | None]
  words: tuple[tuple[int, int, tuple[int, ...]], ...]  # (word, mask, values); word 2i: low of i


_ALL = 0xFFFFFFFF
# Access mode, O_TRUNC and the bit of O_TMPFILE. Emptying a file that is opened for reading is
# refused here: Landlock before Linux 6.2 does not see it.
_OPENING = (0o20001003, (0, 1, 2, 0o1001, 0o1002))
_CHECKED = (
  _Checked((2, None), ((2, *_OPENING),)),  # open(path, flags)
  _Checked((257, 56), ((4, *_OPENING),)),  # openat(folder, path, flags)
  # fcntl: duplicate and flags; F_SETOWN could have signals sent to another process.
  _Checked((72, 25), ((2, _ALL, (0, 1, 2, 3, 4, 1030)),)),
  _Checked((16, 29), ((2, _ALL, (0x5401, 0x5450, 0x5451)),)),  # ioctl: TCGETS, close on exec
  _Checked((302, 261), ((4, _ALL, (0,)), (5, _ALL, (0,)))),  # prlimit64 that sets nothing
)

_LOAD, _AND, _JUMP_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000


def machines() -> tuple[str, ...]:
  """Returns the supported machine names (`platform.machine()`)."""
  return tuple(_MACHINES)


def filter_program(machine: str) -> bytes:
  """Returns the filter of one of `machines()` as an array of `struct sock_filter`."""
  column, architecture = _MACHINES[machine]
  code = [
    (_LOAD, 0, 0, 4),
    (_JUMP_EQUAL, 1, 0, architecture),
    (_RETURN, 0, 0, _KILL),  # Another calling convention has other numbers.
    (_LOAD, 0, 0, 0),
  ]
  for numbers in _CALLS.values():
    number = numbers[column]
    if number is not None:
      code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
  for call in _CHECKED:
    number = call.numbers[column]
    if number is not None:
      checks = _argument_checks(call)
      code += [(_JUMP_EQUAL, 0, len(checks), number), *checks]
  code.append((_RETURN, 0, 0, _REFUSE))
  return b''.join(struct.pack('<HBBI', *instruction) for instruction in code)


def _argument_checks(call: _Checked) -> list[tuple[int, int, int, int]]:
  code = []
  for word, mask, values in call.words:
    code += [(_LOAD, 0, 0, 16 + 4 * word), (_AND, 0, 0, mask)]
    code += [(_JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    code.append((_RETURN, 0, 0, _REFUSE))
  return [*code, (_RETURN, 0, 0, _ALLOW)]
