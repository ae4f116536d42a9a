"""Checks that a failed or hanging case keeps its figures and does not stop the others."""

import json
import sys

from benchmarks import device_cases, on_device

_TOLD = f'print({device_cases.RESULT!r} + \'{{"part": "update", "ms": 3.0}}\', flush=True)'


def _run(code, seconds=60.0):
  told = []
  return on_device.run([sys.executable, '-c', f'{_TOLD}\n{code}'], seconds, told.append), told


def test_figures_are_kept_whatever_becomes_of_a_case():
  figures = [{'part': 'update', 'ms': 3.0}]
  assert _run('') == ('ok', figures)
  state, told = _run('1 / 0')
  assert state.startswith('failed: exit status 1')
  assert 'ZeroDivisionError' in state
  assert told == figures
  state, told = _run('import os\nos.abort()')
  assert state.startswith('failed: exit status -6')
  assert told == figures
  # Its own child, which holds the pipe, is ended as well.
  state, told = _run('import subprocess\nsubprocess.run(["sleep", "100"])', seconds=2.0)
  assert state == 'skipped: out of time after 2 s'
  assert told == figures


def test_status_is_1_after_a_failed_part_and_the_others_have_run(monkeypatch, tmp_path):
  figures = {'machine': {'platform': 'gpu', 'models': ['m'], 'matmul_tflops': 4.0}}
  figures |= {'update': {'tflops': 1.0}, 'parity': {'out': 0.1}}

  def run(command, seconds, keep):
    part = command[-1].partition(':')[0]
    keep({'part': part, **figures[part]})
    return 'failed: exit status 1' if part == 'parity' else 'ok'

  monkeypatch.setattr(on_device, 'run', run)
  out = tmp_path / 'found.json'
  monkeypatch.setattr('sys.argv', ['on_device.py', '--parts=parity,update', f'--out={out}'])
  assert on_device.main() == 1
  found = json.loads(out.read_text())
  assert [x['state'][:6] for x in found['states'].values()] == ['ok', 'failed', 'ok']
  assert found['results'] == {
    'parity': [{'out': 0.1}],
    'update': [{'tflops': 1.0, 'mfu': 0.25}],
  }
