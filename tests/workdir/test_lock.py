"""Checks that no two processes write to one folder, and a kill leaves no lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import signal
import subprocess
import sys

import micro_run
import pytest

from agent_gspo.training import loop
from agent_gspo.training import setup as setup_lib
from agent_gspo.workdir import disk, lock, records, writers

# Holds the folder, with a child that outlives it, until it is killed.
_HOLDER = """
import subprocess, sys, time
from agent_gspo.workdir import lock
with lock.hold(sys.argv[1]):
  child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
  print(child.pid, flush=True)
  time.sleep(60)
"""


@pytest.fixture
def held(tmp_path):
  """Yields a folder locked by another process, and that process."""
  folder = tmp_path / 'run'
  process = subprocess.Popen(
    [sys.executable, '-c', _HOLDER, str(folder)],
    env={**os.environ, 'PYTHONPATH': str(micro_run.ROOT)},
    stdout=subprocess.PIPE,
    text=True,
  )
  child = int(process.stdout.readline())
  yield folder, process
  os.kill(child, signal.SIGKILL)
  process.kill()
  process.communicate()


def test_a_folder_is_held_until_its_holder_is_gone(held):
  folder, process = held
  message = rf'run is in use by process {process.pid} on \S+: wait for it to end, stop it, or take'
  with pytest.raises(lock.FolderInUseError, match=message), lock.hold(folder):
    pass
  process.kill()  # without any cleanup
  process.wait()
  with lock.hold(folder):
    with pytest.raises(lock.FolderInUseError, match=f'process {os.getpid()} on'):
      lock.hold(folder).__enter__()
    assert (folder / 'lock').read_text().startswith(f'process {os.getpid()} on ')
  with lock.hold(folder):
    pass


@pytest.mark.parametrize('below', ['', 'runs/first'])
@pytest.mark.parametrize(
  ('name', 'arguments', 'flag'),
  [
    ('train', [f'--config={micro_run.CONFIG}'], '--workdir'),
    ('sweep', ['--config=c.py', '--lambdas=0'], '--workdir'),
    ('evaluate', [f'--config={micro_run.CONFIG}'], '--out'),
  ],
)
def test_a_file_is_no_folder(tmp_path, name, arguments, flag, below):
  (tmp_path / 'file').touch()
  folder = tmp_path / 'file' / below
  done = micro_run.run(micro_run.command(name, *arguments, f'{flag}={folder}'))
  assert done.returncode == 2
  told = f'error: {flag}={folder}: that is a file (or lies below one); name a folder.'
  assert done.stderr.splitlines()[-1] == told


@pytest.mark.parametrize('path', ['gs://bucket/run', pathlib.Path('gs://bucket/run')])
def test_a_run_needs_a_folder_of_this_machine(path):
  with pytest.raises(ValueError, match=r'workdir=gs:/.*must be a folder of this machine; mount'):
    loop.train(micro_run.get_config().to_dict(), path)


def test_a_home_folder_is_found(held, monkeypatch):
  monkeypatch.setenv('HOME', str(held[0].parent))
  assert disk.folder('~/run') == held[0]
  assert disk.folder('hf:owner/team') == pathlib.Path('hf:owner/team')
  with pytest.raises(lock.FolderInUseError):
    loop.train(micro_run.get_config().to_dict(), '~/run')
  done = micro_run.run(
    micro_run.command('sweep', '--config=c.py', '--workdir=~/run', '--lambdas=0')
  )
  assert f'error: {held[0]} is in use' in done.stderr


def test_a_second_run_in_a_workdir_ends_at_once(held, monkeypatch):
  folder, process = held
  monkeypatch.setattr(setup_lib, 'open_model', lambda *_, **__: pytest.fail('loaded a model'))
  with pytest.raises(lock.FolderInUseError, match=f'in use by process {process.pid}'):
    loop.train(micro_run.get_config().to_dict(), folder)
  assert [path.name for path in folder.iterdir()] == ['lock']


@pytest.mark.parametrize(
  'command',
  [
    ('sweep', '--config=c.py', '--lambdas=0', '--workdir'),
    ('evaluate', f'--config={micro_run.CONFIG}', '--out'),
  ],
)
def test_a_second_command_in_a_folder_ends_at_once(held, command):
  folder, process = held
  *arguments, flag = command
  done = micro_run.run(micro_run.command(*arguments, f'{flag}={folder}'))
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].startswith(
    f'error: {folder} is in use by process {process.pid}'
  )
  assert [path.name for path in folder.iterdir()] == ['lock']


def _link(folder, name, target):
  folder.mkdir()
  (folder / name).symlink_to(target)


@pytest.mark.parametrize('exists', [True, False])
@pytest.mark.parametrize('name', [lock.FILE, *records.LINES, 'config.json.new'])
def test_a_link_in_place_of_a_file_leaves_its_target_alone(tmp_path, name, exists):
  target, folder = tmp_path / 'target', tmp_path / 'run'
  if exists:
    target.write_text('{"step": 1}\nof another program')
  before = target.read_bytes() if exists else None
  _link(folder, name, target)

  def write():
    with lock.hold(folder), contextlib.closing(writers.RunWriter(folder)) as writer:
      writer.config({})

  with pytest.raises(ValueError, match=f'{name} is a symbolic link; must be a file'):
    write()
  assert (target.read_bytes() if target.exists() else None) == before


def test_a_folder_may_be_a_link(tmp_path):
  (tmp_path / 'elsewhere').mkdir()
  _link(tmp_path / 'runs', 'one', tmp_path / 'elsewhere')
  run = tmp_path / 'runs' / 'one'
  with lock.hold(run), contextlib.closing(writers.RunWriter(run)) as writer:
    writer.metrics(1, {})
  assert (tmp_path / 'elsewhere' / records.METRICS).exists()


def test_the_command_refuses_a_link_in_one_line(tmp_path):
  (tmp_path / 'target').write_text('of another program')
  _link(tmp_path / 'run', lock.FILE, tmp_path / 'target')
  done = micro_run.run(micro_run.train_command(tmp_path / 'run'))
  assert done.returncode == 2
  assert 'lock is a symbolic link; must be a file' in done.stderr.splitlines()[-1]
  assert (tmp_path / 'target').read_text() == 'of another program'


def test_a_file_system_without_locks_is_warned_about(tmp_path, monkeypatch):
  def flock(*unused):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', flock)
  with pytest.warns(UserWarning, match='no locks on this file system'), lock.hold(tmp_path):
    pass
