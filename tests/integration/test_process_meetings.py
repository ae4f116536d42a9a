"""Checks that processes of one run that differ or fail end soon, in one line."""

import shutil
import socket
import time

import micro_run
import pytest
import several_processes

_SECONDS = 15  # until all have ended; the machine of the tests may start them later


def _end_in_one_line(started, line, seconds=_SECONDS, own=None) -> None:
  """Checks that processes end in time with this line, the last with its own if given."""
  start = time.monotonic()
  ends = several_processes.ends(started)
  took = time.monotonic() - start
  for index, (status, output) in enumerate(ends):
    told = [text for text in output.splitlines() if not text.startswith(('[Gloo]', 'waiting for'))]
    wanted = own if own and index == len(ends) - 1 else line
    assert status == 2, output
    assert wanted in told[-1], output
    assert sum(text.startswith('error: ') for text in told) == 1, output
    assert 'Traceback' not in output
  assert took < seconds, ends


def _start(tmp_path, processes=2, **options):
  return several_processes.start(tmp_path / 'run', processes, 1, **options)


def _last(processes, *options):
  """Returns options of the last process alone."""
  return lambda index: [*options] if index == processes - 1 else []


def test_another_seed_ends_both_before_anything_is_made(tmp_path):
  started = _start(tmp_path, options=_last(2, '--config.seed=1'))
  _end_in_one_line(started, 'seed is 0 in process 0, 1 in process 1 of 2; must be the same in all')
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('processes', 'option', 'line', 'own'),
  [
    (
      3,
      '--config.budget.lambda_tok=0.5',
      'budget.lambda_tok is 0.02 in process 0, 0.5 in process',
      '',
    ),
    (
      3,
      '--config.no.such=1',
      'cannot take part: ',
      "--config.no.such: the config has no field 'no'",
    ),
    (2, '--config=no.py', 'cannot take part: ', 'no.py'),
    (2, '--workdir=', 'cannot take part: --workdir is missing', '--workdir is missing'),
    (2, '--plan', '--plan is False in process 0, True in process', ''),
    (2, '--process_id=9', 'process 9 of ', '--process_id=9 must be below'),
  ],
)
def test_a_process_with_another_command(tmp_path, processes, option, line, own):
  _end_in_one_line(
    _start(tmp_path, processes, options=_last(processes, option)), line, own=own or None
  )


@pytest.mark.slow
def test_a_partner_that_does_not_come(tmp_path):
  options = ['--start_timeout_s=4', '--num_processes=3']
  _end_in_one_line(
    _start(tmp_path, options=lambda index: options), 'process 2 of 3 did not come to 127.0.0.1:'
  )


@pytest.mark.slow
def test_a_port_that_is_taken(tmp_path):
  with socket.create_server(('127.0.0.1', 0)) as taken:
    options = [f'--coordinator=127.0.0.1:{taken.getsockname()[1]}']
    _end_in_one_line(
      _start(tmp_path, options=lambda index: options),
      'process 0 cannot listen there (Address already in use)',
      own='is another program',
    )


_OTHER_JAX = """
import importlib.metadata
version = importlib.metadata.version
importlib.metadata.version = lambda name: '0.1' if name == 'jax' else version(name)
"""


@pytest.mark.slow
def test_another_version_and_another_code(tmp_path):
  (tmp_path / 'sitecustomize.py').write_text(_OTHER_JAX)
  for path, line in ((tmp_path, "'0.1' in process 1 of 2"), (tmp_path / 'copy', 'code is ')):
    if path.name == 'copy':
      shutil.copytree(micro_run.ROOT / 'agent_gspo', path / 'agent_gspo')
      (path / 'agent_gspo' / 'cache.py').open('a').write('# changed\n')
      shutil.copytree(micro_run.ROOT / 'launch', path / 'launch')
    program = ['python', str(path / 'launch' / 'train.py')] if path.name == 'copy' else []
    under = [
      'bash',
      '-c',
      f'export PYTHONPATH={path}:$PYTHONPATH; shift $1; exec {" ".join(program)} "$@"',
    ]
    under += ['bash', '3' if program else '1']
    _end_in_one_line(_start(tmp_path, under=_last(2, *under)), line)


_PLUGIN = """
import numpy as np
def zero(rewards, *, scale=1.0):
  return np.zeros_like(rewards)
"""


@pytest.mark.slow
def test_a_plug_in_that_one_process_has_not_or_has_otherwise(tmp_path):
  own = ['--config.objective.name=mine_of_test:zero']
  for index in (0, 1):
    (tmp_path / str(index)).mkdir()
  (tmp_path / '0' / 'mine_of_test.py').write_text(_PLUGIN)
  under = lambda i: ['bash', '-c', f'export PYTHONPATH={tmp_path / str(i)}:$PYTHONPATH; "$@"', '-']
  started = _start(tmp_path, under=under, options=lambda index: own)
  _end_in_one_line(
    started, "ended: objective.name='mine_of_test:zero'", 40, "'mine_of_test' cannot"
  )
