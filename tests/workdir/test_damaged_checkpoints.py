"""Checks that a damaged checkpoint costs only the steps since the previous one."""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import micro_run
import numpy as np
import pytest
import small_checkpoints

from agent_gspo.config import Config
from agent_gspo.workdir import checkpoints, step_folders


@pytest.fixture(scope='module')
def saved(tmp_path_factory) -> pathlib.Path:
  """Saves steps 1 and 2; do not write there."""
  folder = tmp_path_factory.mktemp('saved') / 'checkpoints'
  checkpoints = small_checkpoints.open_(folder, keep=2)
  for step in (1, 2):
    checkpoints.save(small_checkpoints.state(step + 0.5, step))
    checkpoints.wait()
  return folder


@pytest.fixture
def folder(saved, tmp_path) -> pathlib.Path:
  """Copies `saved`."""
  return pathlib.Path(shutil.copytree(saved, tmp_path / 'checkpoints'))


def assert_holds(checkpoints: checkpoints.Checkpoints, value: float, step: int) -> None:
  """Checks that the newest intact checkpoint is this one, bit for bit."""
  assert checkpoints.latest_step == step
  restored = checkpoints.restore(small_checkpoints.state(0.0))
  expected = small_checkpoints.state(value, step)
  jax.tree.map(np.testing.assert_array_equal, restored, expected)


@pytest.mark.parametrize('name', ['run[1]', 'a\\b'])
def test_a_folder_that_could_not_be_read_is_refused(tmp_path, name):
  with pytest.raises(ValueError, match=r'checkpoints: no checkpoint could be read from this fold'):
    small_checkpoints.open_(tmp_path / name / 'checkpoints')
  assert not (tmp_path / name).exists()


@pytest.mark.parametrize('name', sorted(small_checkpoints.DAMAGES))
def test_a_run_goes_on_from_the_one_before(folder, name):
  small_checkpoints.DAMAGES[name](folder / '2')
  with pytest.warns(UserWarning, match=r'checkpoints/2 is damaged \(.+\): skipped') as warned:
    checkpoints = small_checkpoints.open_(folder, keep=2)
  assert len(warned) == 1
  assert list(checkpoints.damaged) == [2]
  assert sorted(p.name for p in folder.iterdir()) == ['1', '2']  # reading changes nothing
  assert_holds(checkpoints, 1.5, 1)
  assert sorted(p.name for p in folder.iterdir()) == ['1', '2.damaged']
  checkpoints.save(small_checkpoints.state(7.5, 2))  # the same step again
  checkpoints.wait()
  assert_holds(small_checkpoints.open_(folder, keep=2), 7.5, 2)


@pytest.mark.parametrize('name', sorted(small_checkpoints.DAMAGES))
def test_evaluation_and_export_take_the_one_before(folder, name):
  small_checkpoints.DAMAGES[name](folder / '2')
  with pytest.warns(UserWarning, match=r'checkpoints/2 is damaged'):
    found = checkpoints.newest(folder)
  assert found.step == 1
  assert found.config['model']['source'] == 'random:micro'
  config = Config.from_dict(micro_run.get_config().to_dict())
  params = found.restore_params(config, small_checkpoints.params(0.0))
  jax.tree.map(np.testing.assert_array_equal, params, small_checkpoints.params(1.5))
  assert sorted(p.name for p in folder.iterdir()) == ['1', '2']


@pytest.mark.parametrize('open_', [small_checkpoints.open_, checkpoints.newest])
def test_a_folder_without_an_intact_checkpoint_is_one_error(folder, open_):
  small_checkpoints.DAMAGES['metadata deleted'](folder / '1')
  small_checkpoints.DAMAGES['state flipped'](folder / '2')
  wrong = (
    r"no checkpoint in .*checkpoints is intact \(2: 'state/ocdbt.*' has changed since it was "
    r"written; 1: 'params/_METADATA' is missing\)\. Put the files back from a copy; or remove"
  )
  with pytest.raises(ValueError, match=wrong):
    open_(folder)
  assert sorted(p.name for p in folder.iterdir()) == ['1', '2']


def test_a_damaged_one_twice_is_kept_once(folder):
  for _ in range(2):
    small_checkpoints.DAMAGES['arrays cut off'](folder / '2')
    with pytest.warns(UserWarning, match='is damaged'):
      checkpoints = small_checkpoints.open_(folder, keep=2)
    checkpoints.restore(small_checkpoints.state(0.0))
    checkpoints.save(small_checkpoints.state(2.5, 2))
    checkpoints.wait()
  assert sorted(p.name for p in folder.iterdir()) == ['1', '2', '2.damaged']


def test_files_of_others_are_no_damage(folder):
  (folder / '2' / '.nfs0001').touch()
  (folder / '2' / '.ipynb_checkpoints').mkdir()
  (folder / '2' / '.ipynb_checkpoints' / 'notes').touch()
  (folder / 'notes.txt').touch()
  (folder / '007').mkdir()
  assert small_checkpoints.open_(folder).latest_step == 2
  (folder / '2' / 'params' / 'more').touch()
  assert step_folders.problem(folder / '2') == "'params/more' is not listed in SHA256SUMS"


def test_checksums_are_those_of_sha256sum(folder):
  lines = (folder / '2' / 'SHA256SUMS').read_text().splitlines()
  told = dict(reversed(line.split('  ', 1)) for line in lines)
  files = {p for p in (folder / '2').rglob('*') if p.is_file()} - {folder / '2' / 'SHA256SUMS'}
  assert told == {
    p.relative_to(folder / '2').as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
    for p in files
  }


_WRITTEN = ['1', '2', 'unfinished1.orbax-checkpoint-tmp']
# Where a process is killed while it saves, and what is there then.
_KILLED = {
  'while arrays are copied': ('checkpoints.ocp.AsyncCheckpointer.save', 0, ['1', '2']),
  'when arrays are written': ('checkpoints.ocp.CompositeCheckpointHandler.finalize', 0, _WRITTEN),
  'before the checksums': ('step_folders._seal', 0, ['1', '2', 'unfinished1']),
  'before it gets its name': ('pathlib.Path.rename', 0, ['1', '2', 'unfinished1']),
  'before the oldest goes': ('pathlib.Path.rename', 1, ['1', '2', '3']),
  'while the oldest goes': ('shutil.rmtree', 0, ['2', '3', 'removed']),
}
# Each in a process of its own; the imports are paid once.
_KILL = """
import json, os, pathlib, shutil, signal, sys
import small_checkpoints
from agent_gspo.workdir import checkpoints, step_folders

def save_and_die(folder, function, calls):
  kept = small_checkpoints.open_(pathlib.Path(folder), keep=2)
  path, _, name = function.rpartition('.')
  real, left = getattr(eval(path), name), [None] * calls
  def killed(*arguments, **options):
    if not left:
      os.kill(os.getpid(), signal.SIGKILL)
    left.pop()
    return real(*arguments, **options)
  setattr(eval(path), name, killed)
  kept.save(small_checkpoints.state(3.5, 3))
  kept.wait()
  os._exit(0)

for case in json.load(sys.stdin):
  child = os.fork()
  if not child:
    save_and_die(*case)
  assert os.waitpid(child, 0)[1] == signal.SIGKILL, case
"""


@pytest.mark.slow
def test_killed_while_saving(saved, tmp_path):
  cases = []
  for name, (function, calls, _) in _KILLED.items():
    cases.append((str(shutil.copytree(saved, tmp_path / name)), function, calls))
  paths = f'{micro_run.ROOT}:{micro_run.ROOT / "tests" / "support"}'
  done = subprocess.run(
    [sys.executable, '-c', _KILL],
    input=json.dumps(cases),
    env={**micro_run.environment(), 'PYTHONPATH': paths},
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  for name, (_, _, there) in _KILLED.items():
    folder = tmp_path / name
    assert sorted(p.name for p in folder.iterdir()) == there, name
    again = small_checkpoints.open_(folder, keep=2)
    assert not again.damaged, name
    newest = 3 if '3' in there else 2
    assert_holds(again, newest + 0.5, newest)
    again.save(small_checkpoints.state(9.5, newest + 1))
    again.wait()
    assert_holds(small_checkpoints.open_(folder, keep=2), 9.5, newest + 1)
    assert sorted(p.name for p in folder.iterdir()) == [str(newest), str(newest + 1)], name
