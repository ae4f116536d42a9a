"""Tests sweeps: which runs start, what a failure costs, which files are written."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from agent_gspo.apps import sweep

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Stands in for launch/train.py: accuracy and tokens follow from the price and the seed.
_TRAIN = """
import json, pathlib, sys
fields = dict(a.lstrip('-').split('=', 1) for a in sys.argv[1:])
workdir = pathlib.Path(fields['workdir'])
price, seed = float(fields['config.budget.lambda_tok']), int(fields['config.seed'])
if price == 0.5 and not (workdir / 'mended').exists():
  sys.exit(3)
with (workdir / 'calls').open('a') as calls:
  calls.write(' '.join(sys.argv[1:]) + '\\n')
(workdir / 'metrics.jsonl').write_text(json.dumps({'step': 1, 'task/accuracy': 0.5}) + '\\n')
record = {'label': 'trained', 'step': 1, 'task/accuracy': 0.9 - price / 10 + seed / 100,
          'tokens/written_per_question': 50 - 40 * price}
start = {'label': 'untrained', 'step': 0, 'task/accuracy': 0.25, 'tokens/written_per_question': 60}
seen = {'label': 'trained, training split', 'step': 1, 'comm/silence_rate_irrelevant': price}
lines = (json.dumps(r) + '\\n' for r in (start, record, seen))
(workdir / 'eval.jsonl').write_text(''.join(lines))
(workdir / 'done').write_text('1\\n')
"""

# Runs until a signal comes.
_WAITING = """
import pathlib, signal, sys, time
workdir = pathlib.Path(sys.argv[1].removeprefix('--workdir='))
def end(*_):
  (workdir / 'ended').touch()
  sys.exit(130)  # as launch/train.py
for number in (signal.SIGINT, signal.SIGTERM):
  signal.signal(number, end)
(workdir / 'begun').touch()
time.sleep(60)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
  path = tmp_path / 'train.py'
  path.write_text(_TRAIN)
  monkeypatch.setattr(sweep, '_TRAIN', (sys.executable, str(path)))
  return path


def _command(*arguments):
  command = [sys.executable, str(ROOT / 'launch/sweep.py'), '--config=c.py', *arguments]
  return subprocess.run(command, capture_output=True, text=True)


def _points(folder, prices=('0', '0.5'), seeds=(0, 1)):
  return sweep.points(folder, sweep.grid([('budget.lambda_tok', prices)]), seeds)


@pytest.mark.parametrize('jobs', [1, 3])
def test_missing_runs_are_run_and_a_failure_stops_nothing(tmp_path, script, jobs):
  todo, notes = _points(tmp_path / 'runs'), []
  failed = sweep.run_missing(todo, 'c.py', ['--config.steps=7'], jobs=jobs, note=notes.append)
  assert [(p.setting.name, p.seed) for p in failed] == [
    ('lambda_tok=0.5', 0),
    ('lambda_tok=0.5', 1),
  ]
  assert notes[0] == '0 of 4 runs have ended, 4 to go'
  assert sum('FAILED' in note for note in notes) == 2
  for point in failed:
    (point.workdir / 'mended').touch()
  failed = sweep.run_missing(todo, 'c.py', ['--config.steps=7'], jobs=jobs, note=notes.append)
  assert not failed
  assert '2 of 4 runs have ended, 2 to go' in notes
  for point in todo:
    (call,) = (point.workdir / 'calls').read_text().splitlines()  # once, not again
    assert f'--config.seed={point.seed}' in call
    assert '--config=c.py' in call
    assert '--config.steps=7' in call
  assert not sweep.run_missing(todo, 'c.py', ['--config.steps=7'], note=notes.append)
  assert notes[-1] == '4 of 4 runs have ended, 0 to go'
  with pytest.raises(ValueError, match=r'steps=7 .* is not .*steps=8'):
    sweep.run_missing(todo, 'c.py', ['--config.steps=8'], note=notes.append)


def test_a_value_of_several_lines_is_the_same_in_the_next_start(tmp_path, script):
  given = ['--config.team.roles.solver.system=Add.\r\nThen answer.\n']
  for seeds in ((0,), (0, 1)):
    todo = _points(tmp_path, ('0',), seeds)
    assert not sweep.run_missing(todo, 'c.py', given, note=lambda text: None)


def test_a_run_that_still_has_to_evaluate_has_not_ended(tmp_path, script):
  todo, notes = _points(tmp_path, ('0',), (0,)), []
  sweep.run_missing(todo, 'c.py', [], note=notes.append)
  # As after a kill behind the record of the trained team; or of an earlier version.
  (todo[0].workdir / 'done').unlink()
  assert [s['seeds'] for s in sweep.summary(todo)] == [[]]
  assert not sweep.run_missing(todo, 'c.py', [], note=notes.append)
  assert '0 of 1 runs have ended, 1 to go' == notes[-3]
  assert len((todo[0].workdir / 'calls').read_text().splitlines()) == 2
  assert [s['seeds'] for s in sweep.summary(todo)] == [[0]]


@pytest.mark.parametrize(('number', 'status'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_sweep_and_its_runs(tmp_path, number, status):
  script = tmp_path / 'train.py'
  script.write_text(_WAITING)
  text = (
    'import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);'  # as in the background
    'from agent_gspo.apps import sweep; from agent_gspo.apps.commands.sweep import cli;'
    f'sweep._TRAIN = (sys.executable, {str(script)!r}); cli()'
  )
  arguments = ['--config=c.py', f'--workdir={tmp_path}/s', '--lambdas=0,1', '--seeds=0']
  command = [sys.executable, '-c', text, *arguments]
  pipe = subprocess.PIPE
  with subprocess.Popen(command, stderr=pipe, text=True, start_new_session=True) as begun:
    while not (tmp_path / 's/lambda_tok=0_seed_0/begun').exists():
      assert begun.poll() is None
      time.sleep(0.05)
    # A terminal interrupts the whole group; a scheduler may end this process alone.
    (os.killpg if number == signal.SIGINT else os.kill)(begun.pid, number)
    _, told = begun.communicate(timeout=30)
  assert (begun.returncode, told) == (status, '')
  assert (tmp_path / 's/lambda_tok=0_seed_0/ended').exists()
  assert not (tmp_path / 's/lambda_tok=1_seed_0').exists()


def test_an_interrupted_run_waits_for_what_becomes_of_the_sweep():
  processes, after = sweep._Processes(), []
  status = lambda: processes.run([sys.executable, '-c', 'raise SystemExit(130)'])
  thread = threading.Thread(target=lambda: after.append((status(), processes.stopped)))
  thread.start()
  time.sleep(0.5)  # as if Ctrl-C reached the run half a second before
  processes.stop()
  thread.join()
  assert after == [(130, True)]
  assert processes.run(['no such program']) == 130


def test_summary_and_table(tmp_path, script):
  todo = _points(tmp_path)
  sweep.run_missing(todo, 'c.py', [], note=lambda text: None)
  free, failed = sweep.summary(todo)
  assert (failed['seeds'], failed['planned']) == ([], 2)
  assert free['seeds'] == [0, 1]
  assert free['trained']['task/accuracy'] == pytest.approx([0.9, 0.91])
  header, _, _, row, no_runs = sweep.table([free, failed]).splitlines()
  assert 'accuracy, %' in header
  assert 'silent, note relevant' not in header  # no run has said it
  assert header.endswith('| silent, note irrelevant, training split, % |')
  assert no_runs == '| lambda_tok=0.5 (0 of 2 seeds) | - | - | - |'
  assert row == '| lambda_tok=0 | 90.5 [90.0, 91.0] | 50.0 [50.0, 50.0] | 0.0 [0.0, 0.0] |'


def test_runs_of_an_edited_config_are_told(tmp_path, script):
  todo = _points(tmp_path, ('0',))
  sweep.run_missing(todo, 'c.py', [], note=lambda text: None)
  for point, rounds in zip(todo, (1, 2), strict=True):
    config = {'seed': point.seed, 'steps': 3, 'team': {'rounds': rounds}}
    (point.workdir / 'config.json').write_text(json.dumps(config))
  settings = sweep.summary(todo)
  assert settings[0]['differing'] == ['team.rounds']
  assert '| lambda_tok=0 (runs differ in team.rounds) |' in sweep.table(settings)


def test_grid_is_a_product_and_names_differ(tmp_path):
  settings = sweep.grid([('a.x', ['1', '2']), ('b.y', ['u', 'v'])])
  assert [s.name for s in settings] == ['x=1, y=u', 'x=1, y=v', 'x=2, y=u', 'x=2, y=v']
  assert settings[1].fields == {'a.x': '1', 'b.y': 'v'}
  with pytest.raises(ValueError, match='same name'):
    sweep.points(tmp_path, [*settings, settings[0]], [0])


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ([], 'nothing to sweep'),
    (['--vary=advantage.name'], 'write FIELD=VALUE,VALUE'),
    (['--setting=advantage.name=x'], 'NAME: FIELD=VALUE'),
    (['--lambdas=0', '--steps=3'], 'unknown argument'),
    (['--lambdas=0', '--jobs=0'], 'at least 1'),
    (['--lambdas=0', '--workdir=gs://b/s'], '--workdir=gs://b/s: must be a folder of this machine'),
    (['--lambdas=0', '--seeds=0,a'], "--seeds=0,a: 'a' is no whole number; write such as 0,1,2"),
    (['--lambdas=0', '--seeds='], "--seeds=: '' is no whole number"),
    (['--lambdas=0', '--seeds=0,1,00'], "--seeds=0,1,00: '00' is given twice"),
    (['--lambdas=0,x'], "--lambdas=0,x: 'x' is no number"),
    (['--lambdas=0,0.0'], "--lambdas=0,0.0: '0.0' is given twice"),
    (['--lambdas=0,nan'], "--lambdas=0,nan: 'nan' must be a finite number"),
    (['--lambdas=-inf'], "--lambdas=-inf: '-inf' must be a finite number"),
    (['--lambdas=0', '--vary=budget.lambda_tok=1'], 'budget.lambda_tok is varied twice'),
    (['--vary=budget.lambda_tk=1', '--config=tiny'], 'Did you mean --config.budget.lambda_tok?'),
    (['--lambdas=0', '--config.lr=1', '--config=tiny'], 'Did you mean --config.learner.learning_'),
    (['--lambdas=0', '--config=tinny'], '--config=tinny: no such file or name; there are'),
    (['--vary=seed=5,6'], 'seed is set by --seeds; give the values there'),
    (['--setting=a: seed=7'], 'seed is set by --seeds'),
    (['--lambdas=0', '--config.seed=7'], 'seed is set by --seeds'),
    (['--setting=a: x.y=1 x.y=2'], '--setting=a: x.y=1 x.y=2: x.y is given twice'),
  ],
)
def test_bad_arguments(tmp_path, arguments, message):
  done = _command(f'--workdir={tmp_path}/s', *arguments)
  assert done.returncode == 2
  assert message in done.stderr


def test_the_command_writes_its_figures(tmp_path, script):
  todo = _points(tmp_path, ('0', '1'))
  sweep.run_missing(todo, 'c.py', [], note=lambda text: None)
  arguments = [f'--workdir={tmp_path}', '--lambdas=0,1', '--seeds=0,1']
  done = _command(*arguments)
  assert done.returncode == 0, done.stderr
  assert '4 of 4 runs have ended' in done.stdout
  record = json.loads((tmp_path / 'sweep.json').read_text())
  assert [s['name'] for s in record['settings']] == ['lambda_tok=0', 'lambda_tok=1']
  table = (tmp_path / 'sweep.md').read_text()
  assert 'lambda_tok=1' in table
  rows = table.splitlines()
  assert rows[2] == '| untrained | 25.0 [25.0, 25.0] | 60.0 [60.0, 60.0] | - |'
  assert (tmp_path / 'report.html').stat().st_size > 1000


def test_settings_that_begin_elsewhere_have_no_row_for_the_start(tmp_path, script):
  sweep.run_missing(_points(tmp_path, ('0', '1')), 'c.py', [], note=lambda text: None)
  settings = sweep.summary(_points(tmp_path, ('0', '1')))
  assert '| untrained |' in sweep.table(settings)
  settings[1]['untrained']['task/accuracy'][0] = 0.5
  assert '| untrained |' not in sweep.table(settings)


def test_missing_seeds_are_told_and_the_start_is_compared_by_seed(tmp_path, script):
  todo = _points(tmp_path, ('0', '1'))
  sweep.run_missing(todo, 'c.py', [], note=lambda text: None)
  (todo[2].workdir / 'done').unlink()  # lambda_tok=0, seed 1
  settings = sweep.summary(todo)
  settings[1]['untrained']['task/accuracy'][1] = 0.75
  _, _, start, missing, whole = sweep.table(settings).splitlines()
  assert start.startswith('| untrained | 50.0 [25.0, 75.0] |')
  assert missing.startswith('| lambda_tok=0 (1 of 2 seeds) | 90.0 |')
  assert whole.startswith('| lambda_tok=1 | 80.5 [80.0, 81.0] |')
  settings[1]['untrained']['task/accuracy'][0] = 0.75
  assert '| untrained |' not in sweep.table(settings)
