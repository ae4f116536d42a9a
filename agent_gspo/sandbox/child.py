"""Confines its own process, then runs one program in it.

`sandbox` starts this file as a script and writes a description of the program to its
standard input. It imports nothing but the standard library. Each layer of `confine`
raises if the kernel refuses it, so that the program never runs with a layer missing.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import types

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_DEATH_SIGNAL, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES = 1, 22, 38
_FILTER_MODE = 2
_CAPSET = {'x86_64': 126, 'aarch64': 91}
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
# Landlock rights: of files 1 execute, 2 write, 4 read, 2 ** 14 empty; of folders 8 list,
# 256 make file. Not 32, remove file: written files stay where `process` counts their sizes.
_READ = 4 | 8
_READ_FILE = 4
_SCRATCH = 2 | 4 | 8 | 256 | 1 << 14


def _must(result: int) -> int:
  if result < 0:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
  return result


def _prctl(option: int, *arguments) -> None:
  # All five as longs: a bare int would leave the upper half of a register undefined.
  values = [*arguments, *[0] * (4 - len(arguments))]
  _must(_LIBC.prctl(option, *(ctypes.c_void_p(value) for value in values)))


def _limits(spec) -> None:
  kinds = {
    'cpu_seconds': resource.RLIMIT_CPU,
    'memory_bytes': resource.RLIMIT_AS,
    'file_bytes': resource.RLIMIT_FSIZE,
    'open_files': resource.RLIMIT_NOFILE,
  }
  for name, kind in kinds.items():
    # SIGXCPU comes first, since it identifies the limit; SIGKILL a second later.
    soft, hard = spec['limits'][name], spec['limits'][name] + int(kind == resource.RLIMIT_CPU)
    already = resource.getrlimit(kind)[1]  # A lower limit of the account stays.
    if already != resource.RLIM_INFINITY:
      soft, hard = min(soft, already), min(hard, already)
    resource.setrlimit(kind, (soft, hard))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _no_privileges(spec) -> None:
  with open('/proc/self/oom_score_adj', 'w') as file:
    file.write('1000')  # If memory runs out, the kernel kills this process first.
  _prctl(_SET_NO_NEW_PRIVILEGES, 1)
  header = ctypes.create_string_buffer(struct.pack('<Ii', 0x20080522, 0))
  none = ctypes.create_string_buffer(24)
  _must(_LIBC.syscall(_CAPSET[spec['machine']], header, none))


def _dies_with_parent(spec) -> None:
  _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
  if os.getppid() != spec['parent']:
    raise OSError('the parent has ended')


def _landlock(spec) -> str:
  version = _must(_LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
  # Every right that this kernel knows is denied, then a few are granted: file
  # rights, TCP, and (scopes) signals and abstract sockets to processes outside.
  rights = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1
  attributes = struct.pack('<QQQ', rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
  buffer = ctypes.create_string_buffer(attributes, len(attributes))
  rules = _must(_LIBC.syscall(_LANDLOCK_CREATE, buffer, ctypes.c_size_t(len(attributes)), 0))
  given = [(path, _READ if os.path.isdir(path) else _READ_FILE) for path in spec['readable']]
  for path, allowed in [*given, ('/dev/null', 2 | 4 | 1 << 14), (spec['scratch'], _SCRATCH)]:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = ctypes.create_string_buffer(struct.pack('<Qi', allowed & rights, folder))
    _must(_LIBC.syscall(_LANDLOCK_ADD, rules, 1, rule, 0))
    os.close(folder)
  _must(_LIBC.syscall(_LANDLOCK_RESTRICT, rules, 0))
  os.close(rules)
  return f'version {version}'


def _seccomp(spec) -> None:
  code = bytes.fromhex(spec['filter'])
  buffer = ctypes.create_string_buffer(code, len(code))
  program = ctypes.create_string_buffer(
    struct.pack('@HP', len(code) // 8, ctypes.addressof(buffer))
  )
  _prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.addressof(program))


_LAYERS = {
  'resource limits': _limits,
  'no privileges': _no_privileges,
  'dies with its parent': _dies_with_parent,
  'landlock': _landlock,
  'seccomp': _seccomp,  # Last: it forbids what the others need.
}


def confine(spec) -> dict[str, str]:
  """Confines this process irrevocably; returns each layer with its details."""
  report = {}
  for name, layer in _LAYERS.items():
    try:
      report[name] = layer(spec) or 'on'
    except Exception as error:
      raise OSError(f'{name}: {error}') from error
  return report


def main() -> None:
  spec = json.loads(sys.stdin.buffer.read())
  nothing = os.open('/dev/null', os.O_RDWR)
  os.dup2(nothing, 0)
  os.close(nothing)
  try:
    status: dict[str, object] = {'layers': confine(spec)}
  except OSError as error:
    status = {'error': str(error)}
  os.write(spec['status'], json.dumps(status).encode())
  os.close(spec['status'])
  if 'error' in status:
    os._exit(1)
  module = types.ModuleType('program')
  vars(module)['PEER'] = spec['peer']
  sys.modules['program'] = module
  exec(compile(spec['program'], '<program>', 'exec'), module.__dict__)


if __name__ == '__main__':
  main()
