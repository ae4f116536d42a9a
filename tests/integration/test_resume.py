"""Checks that a stopped run, resumed by the same command, ends as if uninterrupted."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import gc
import json
import os
import pathlib
import pty
import queue
import resource
import select
import shutil
import signal
import subprocess
import time

import full_disk
import jax
import jax.numpy as jnp
import micro_run
import numpy as np
import pytest
import run_comparison
import small_checkpoints
import tiny
from run_comparison import records, saved

from agent_gspo.apps.reporting import html_report
from agent_gspo.apps.reporting.progress import Progress
from agent_gspo.config import Config
from agent_gspo.config import check as config_lib
from agent_gspo.training import loop, run_evaluations, sft
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import state as state_lib
from agent_gspo.training import train_step as step_lib
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import NonFiniteLossError, Programs
from agent_gspo.workdir import checkpoints, disk, step_folders

STEPS = micro_run.get_config().steps


def assert_same_run(workdir: pathlib.Path) -> None:
  """Compares a finished micro run with the one that nothing interrupted."""
  run_comparison.assert_same_run(workdir, micro_run.finished(), STEPS)


def stop(command: list[str], workdir: pathlib.Path, lines: int, number: int) -> tuple[int, str]:
  """Sends a signal when `metrics.jsonl` has so many lines; gives exit status and output."""
  process = subprocess.Popen(
    command,
    env=micro_run.environment(),
    cwd=micro_run.folder(),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  metrics, deadline = workdir / 'metrics.jsonl', time.monotonic() + 300
  while process.poll() is None and time.monotonic() < deadline:
    if metrics.exists() and metrics.read_bytes().count(b'\n') >= lines:
      os.kill(process.pid, number)
      break
    time.sleep(0.002)
  output, _ = process.communicate(timeout=300)
  return process.returncode, output


def test_reference_run_is_complete():
  workdir = micro_run.finished()
  by_label = {}
  for record in records(workdir, 'eval.jsonl'):
    by_label.setdefault(record['label'], []).append(record['step'])
  assert by_label == {
    'constant answer': [0],
    'single agent': [0],
    'untrained': [0],
    'during': [4, 8],
    'trained': [STEPS],
    'trained, training split': [STEPS],
  }
  seen = records(workdir, 'eval.jsonl')[-1]
  assert (seen['label'], seen['split'], seen['questions']) == (
    'trained, training split',
    'train',
    3,
  )
  trained = [r['policy/grad_norm'] for r in records(workdir, 'metrics.jsonl')]
  assert max(trained) > 0  # otherwise equal parameters would prove nothing


@functools.cache
def _setup() -> setup_lib.Setup:
  config = micro_run.get_config().to_dict()
  return setup_lib.build(config_lib.check(config))


@pytest.fixture
def no_warm_start(monkeypatch, tmp_path):
  """Hides SFT that other tests have cached."""
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path / 'cache'))


@pytest.fixture
def compiled(monkeypatch, no_warm_start):
  """Hides cached SFT and shares compiled programs between runs."""
  setup, made, make_learner = _setup(), [], setup_lib.make_learner

  def same_programs(setup):
    learner = make_learner(setup)
    made.append(learner.programs)
    return dataclasses.replace(learner, programs=made[0])

  again = lambda parts: dataclasses.replace(setup, config=parts.config)
  monkeypatch.setattr(setup_lib, 'build', again)
  monkeypatch.setattr(setup_lib, 'make_learner', same_programs)


@pytest.mark.slow
def test_ctrl_c_then_a_kill_between_checkpoints(tmp_path, compiled):
  micro_run.finished()
  command = micro_run.train_command(tmp_path, '--config.checkpoint.every=3')
  status, output = stop(command, tmp_path, 2, signal.SIGINT)
  assert status == 130, output
  assert 'Traceback' not in output
  step, _ = saved(tmp_path)
  assert 2 <= step < STEPS
  assert len(records(tmp_path, 'metrics.jsonl')) == step
  assert f'saved step {step}; the same command goes on from there' in output

  status, output = stop(command, tmp_path, STEPS - 2, signal.SIGKILL)
  assert status == -signal.SIGKILL, output
  assert f'resumed from the checkpoint at step {step}' in output
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 9, "task/acc')  # as a kill may leave it

  config = micro_run.get_config().to_dict()
  config['checkpoint']['every'] = 3
  loop.train(config, tmp_path)
  assert_same_run(tmp_path)


@pytest.mark.slow
def test_the_reference_policy_is_where_the_run_began(tmp_path, no_warm_start):
  """Keeps the parameters after SFT as the reference, also in a resumed run."""
  config = micro_run.changed(
    steps=1, objective__kl_coef=0.1, learner__minibatches=1, checkpoint__keep=9
  )
  loop.train(config, tmp_path)
  loop.train({**config, 'steps': 3}, tmp_path)
  _, start = saved(tmp_path, 0)
  step, end = saved(tmp_path)
  assert step == 3
  kept = {key.partition('.reference')[2]: x for key, x in end.items() if '.reference' in key}
  for name, array in start.items():
    if name.startswith('params/'):
      path = tuple(name.removeprefix('params/').split('/'))
      np.testing.assert_array_equal(kept.pop(f'[{path}]'), array, err_msg=name)
  assert not kept
  kl = [record['policy/kl'] for record in records(tmp_path, 'metrics.jsonl')]
  assert kl[0] < 1e-9
  assert kl[2] > 1e-9


def test_finished_run_only_prints_its_table(tmp_path, monkeypatch, capsys, compiled):
  workdir = tmp_path / 'run'
  shutil.copytree(micro_run.finished(), workdir)
  files = ('metrics.jsonl', 'eval.jsonl', 'transcripts.jsonl', 'config.json')
  before = {name: (workdir / name).read_bytes() for name in files}
  monkeypatch.setattr(Programs, 'optimizer_step', lambda *_: pytest.fail('trained'))
  monkeypatch.setattr(run_evaluations, 'evaluate', lambda *_, **__: pytest.fail('evaluated'))
  record = loop.train(micro_run.get_config().to_dict(), workdir, display=Progress)
  assert record['label'] == 'trained'
  assert {name: (workdir / name).read_bytes() for name in files} == before
  table = lambda text: text[text.index('untrained   ') : text.index('curves and transcripts')]
  assert table(capsys.readouterr().out) == table((workdir / 'stdout.txt').read_text())


def test_records_that_are_not_whole_are_told(tmp_path, capsys, compiled):
  workdir = tmp_path / 'run'
  shutil.copytree(micro_run.finished(), workdir)
  lines = (workdir / 'metrics.jsonl').read_bytes().splitlines(keepends=True)
  lines[2] = lines[3] = b'{"step": 3, "lo\n'
  (workdir / 'metrics.jsonl').write_bytes(b''.join(lines))
  loop.train(micro_run.get_config().to_dict(), workdir)
  told = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(workdir))]
  metrics = f'{workdir}/metrics.jsonl'
  assert told == [f'{metrics}: dropped 2 lines that held no whole record']
  first, second = records(workdir, 'starts.jsonl')  # of each start
  assert (first['step'], second['step']) == (0, STEPS)
  assert second['jax'] == jax.__version__
  assert second['numpy'] == np.__version__
  assert second['device'] == jax.devices()[0].device_kind
  assert {'jaxlib', 'flax', 'optax', 'python', 'code', 'commit', 'host'} <= second.keys()


@pytest.mark.slow
def test_questions_that_changed_between_starts_are_told(tmp_path, capsys):
  file = tmp_path / 'own.jsonl'

  def write(answer):
    asked = [(split, i) for split in ('train', 'test') for i in range(2)]
    questions = [
      {'question': f'{split} {i}', 'notes': ['3 or 4', '', ''], 'answer': answer, 'split': split}
      for split, i in asked
    ]
    file.write_text('\n'.join(map(json.dumps, questions)))

  config = micro_run.changed(
    task__name='questions', task__options={'file': str(file)}, sft__steps=0, steps=1
  )
  told = []
  for answer in ('3', '3', '4'):
    write(answer)
    loop.train(config, tmp_path / 'run')
    told.append('the questions of task questions have changed' in capsys.readouterr().out)
  assert told == [False, False, True]


def test_a_finished_run_asks_what_its_config_wants_now(tmp_path, monkeypatch, capsys, compiled):
  workdir, evaluate, asked = tmp_path / 'run', run_evaluations.evaluate, []
  shutil.copytree(micro_run.finished(), workdir)

  def evaluated(*arguments, **options):
    asked.append(options['label'])
    return evaluate(*arguments, **options)

  monkeypatch.setattr(run_evaluations, 'evaluate', evaluated)

  def again(**values):
    """Returns the questions that are asked again."""
    asked.clear()
    loop.train(micro_run.changed(**values), workdir)
    return list(asked)

  def edit(change):
    lines = [json.loads(line) for line in (workdir / 'eval.jsonl').read_text().splitlines()]
    for record in lines:
      change(record)
    (workdir / 'eval.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in lines))

  assert again() == []
  assert 'it is gone' not in capsys.readouterr().out
  assert again(evaluation__questions=2) == ['trained']
  shown = ' '.join(capsys.readouterr().out.split())
  assert 'the untrained team was asked 4 test questions at temperature 1.0; it is gone' in shown
  questions = {r['label']: r['questions'] for r in records(workdir, 'eval.jsonl')}
  assert (questions['untrained'], questions['trained']) == (4, 2)
  assert sum(r['label'] == 'trained' for r in records(workdir, 'eval.jsonl')) == 1
  assert again(evaluation__questions=2) == []
  few = {'evaluation__questions': 2, 'evaluation__seen_questions': 2}
  assert again(**few, evaluation__temperature=0.0) == ['trained', 'trained, training split']
  assert again(**few, evaluation__temperature=0.0, evaluation__spread=True) == (
    ['trained', 'trained, training split']
  )
  few |= {'evaluation__temperature': 0.0, 'evaluation__spread': True}
  assert again(**few, evaluation__split='validation') == ['trained']
  few['evaluation__split'] = 'validation'
  edit(lambda record: record['label'] == 'trained' and record.update({'task/accuracy': None}))
  assert again(**few) == ['trained']


@pytest.mark.slow
def test_more_questions_than_there_are_are_asked_once(tmp_path, monkeypatch, compiled):
  workdir, size = tmp_path / 'run', len(_setup().task.questions('test'))
  shutil.copytree(micro_run.finished(), workdir)
  more = micro_run.changed(evaluation__questions=size + 1)
  assert loop.train(more, workdir)['questions'] == size

  def again(*unused, **options):
    raise AssertionError('asked again')

  monkeypatch.setattr(run_evaluations, 'evaluate', again)
  assert loop.train(more, workdir)['questions'] == size


@pytest.mark.slow
def test_an_untrained_team_that_is_still_there_is_asked_again(tmp_path, compiled):
  config = micro_run.changed(
    steps=1, sft__steps=0, learner__minibatches=1, evaluation__seen_questions=0
  )
  loop.train(config, tmp_path)
  before = {r['label']: r for r in records(tmp_path, 'eval.jsonl')}
  config['evaluation']['questions'] = 2
  loop.train(config, tmp_path)
  after = {r['label']: r for r in records(tmp_path, 'eval.jsonl')}
  assert after.keys() == before.keys()
  assert {r['questions'] for r in before.values()} == {4}
  assert {r['questions'] for r in after.values()} == {2}


def test_a_run_has_ended_when_all_is_done(tmp_path, monkeypatch, compiled):
  workdir, evaluate = tmp_path / 'run', run_evaluations.evaluate
  shutil.copytree(micro_run.finished(), workdir)
  assert (workdir / 'done').read_text() == f'{STEPS}\n'
  go = lambda: loop.train(micro_run.changed(evaluation__seen_questions=2), workdir)

  def killed(*unused, **options):
    raise SystemExit('killed')

  monkeypatch.setattr(run_evaluations, 'evaluate', killed)
  with pytest.raises(SystemExit):
    go()
  assert not (workdir / 'done').exists()
  monkeypatch.setattr(run_evaluations, 'evaluate', evaluate)
  go()
  assert (workdir / 'done').is_file()


@pytest.mark.filterwarnings('ignore:.*left out')
def test_no_report_takes_a_run_down(tmp_path, monkeypatch, capsys, compiled):
  workdir = tmp_path / 'run'
  shutil.copytree(micro_run.finished(), workdir)
  for name, line in (
    ('eval.jsonl', '{"step": 3, "label": ["during"], "agents": 7, "task/accuracy": "x"}'),
    ('transcripts.jsonl', '{"step": 3, "messages": ["hello"]}'),
    ('metrics.jsonl', '{"step": [3]}'),
  ):
    with (workdir / name).open('a') as file:
      file.write(line + '\n')
  config = micro_run.get_config().to_dict()
  with pytest.warns(UserWarning, match=r"eval\.jsonl: left out 1 line .*line 8: 'label'"):
    loop.train(config, workdir, display=Progress)
  assert f'curves and transcripts: {workdir}/report.html' in capsys.readouterr().out

  def write_report(*unused):
    raise TypeError('nothing fits')

  monkeypatch.setattr(html_report, 'write_report', write_report)
  with pytest.warns(UserWarning, match='left out'):
    assert loop.train(config, workdir, display=Progress)['label'] == 'trained'
  output = capsys.readouterr().out
  assert 'there is no report (TypeError: nothing fits); all else is done' in output
  assert f'python launch/report.py {workdir}' in output


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(tmp_path, capsys, compiled):
  workdir = tmp_path / 'run'
  config = micro_run.changed(checkpoint__every=7)
  micro_run.finished()
  loop.train(config, workdir)
  small_checkpoints.DAMAGES['arrays flipped'](workdir / 'checkpoints' / str(STEPS))
  capsys.readouterr()
  with pytest.warns(UserWarning, match=f'checkpoints/{STEPS} is damaged'):
    loop.train(config, workdir)
  output = capsys.readouterr().out
  assert 'resumed from the checkpoint at step 7\n' in output
  assert f': now {STEPS}.damaged\n' in output
  assert_same_run(workdir)


@pytest.mark.slow
def test_a_full_disk_stops_a_run_at_its_last_checkpoint(tmp_path, monkeypatch, compiled):
  micro_run.finished()
  config = micro_run.changed(checkpoint__every=4)
  save = checkpoints.Checkpoints.save

  def save_to_a_full_disk(self, state):
    """Saves step 8 to a full disk and waits for the failure; the next save raises."""
    with full_disk.full(10_000 if state.step == 8 else resource.RLIM_INFINITY):
      save(self, state)
      if state.step == 8:
        concurrent.futures.wait([self._saving])

  monkeypatch.setattr(checkpoints.Checkpoints, 'save', save_to_a_full_disk)
  message = (
    rf'checkpoint 8 could not be written to {tmp_path}/checkpoints: File too large\. Checkpoint 4 '
    r'is safe: make room, and the same command goes on from there\.'
  )
  with pytest.raises(disk.WriteError, match=message):
    loop.train(config, tmp_path)
  monkeypatch.setattr(checkpoints.Checkpoints, 'save', save)
  loop.train(config, tmp_path)
  assert_same_run(tmp_path)


@pytest.mark.slow
def test_stopped_at_every_bad_moment(tmp_path, monkeypatch, capsys, compiled):
  """Stops one run five times at critical moments, by its own signal handlers."""
  micro_run.finished()
  config = micro_run.get_config().to_dict()
  config['checkpoint']['every'] = 1
  go = lambda: loop.train(config, tmp_path)

  # In SFT: a partly trained model must not count as trained.
  optimizer_step = Programs.optimizer_step

  def interrupted_step(*arguments):
    signal.raise_signal(signal.SIGINT)
    return optimizer_step(*arguments)

  monkeypatch.setattr(Programs, 'optimizer_step', interrupted_step)
  with pytest.raises(KeyboardInterrupt):
    go()
  monkeypatch.setattr(Programs, 'optimizer_step', optimizer_step)
  assert 'saved step 1 of SFT; the same command goes on' in capsys.readouterr().out
  assert not list((tmp_path / 'checkpoints').iterdir())

  # In the untrained evaluation: its record must not be missing in the end.
  evaluate = run_evaluations.evaluate

  def interrupted_evaluate(*arguments, alone=False, **options):
    if alone:  # the last call of this evaluation
      signal.raise_signal(signal.SIGTERM)
    return evaluate(*arguments, alone=alone, **options)

  monkeypatch.setattr(run_evaluations, 'evaluate', interrupted_evaluate)
  with pytest.raises(KeyboardInterrupt):
    go()
  monkeypatch.setattr(run_evaluations, 'evaluate', evaluate)
  assert 'saved step 0; the same command goes on from there' in capsys.readouterr().out
  assert records(tmp_path, 'eval.jsonl') == []

  # A second Ctrl-C does not wait for the step, which has consumed the state before it.
  calls = []

  def impatient(*arguments):
    calls.append(0)
    if len(calls) == 6:  # the second mini-batch of step 3
      signal.raise_signal(signal.SIGINT)
      signal.raise_signal(signal.SIGINT)
    return optimizer_step(*arguments)

  monkeypatch.setattr(Programs, 'optimizer_step', impatient)
  with pytest.raises(KeyboardInterrupt):
    go()
  monkeypatch.setattr(Programs, 'optimizer_step', optimizer_step)
  assert 'saved step 2; the same command goes on from there' in capsys.readouterr().out
  assert saved(tmp_path)[0] == 2

  # A loss that is not finite: the last good checkpoint stays, the batch is named.
  collect = step_lib.collect

  def poisoned(setup, state, progress):
    batch, *rest = collect(setup, state, progress)
    if state.step == 4:
      first = batch.messages[0]
      asked.append(batch.questions[batch.question[0]].id)
      first = dataclasses.replace(first, logprobs=first.logprobs + np.nan)
      batch = dataclasses.replace(batch, messages=(first, *batch.messages[1:]))
    return batch, *rest

  asked = []
  monkeypatch.setattr(step_lib, 'collect', poisoned)
  message = (
    r'of 2 of step 5, questions relay-.*Lower learner.learning_rate.*checkpoint 4 is good: to go '
    r'on .* --config.learner.learning_rate and --allow_changes=learner.learning_rate\.'
  )
  with pytest.raises(NonFiniteLossError, match=message) as raised:
    go()
  monkeypatch.setattr(step_lib, 'collect', collect)
  assert asked[0] in str(raised.value)
  assert saved(tmp_path)[0] == 4

  # Killed in the middle of writing an evaluation: what is there of it is not kept twice.
  writer_evaluation = loop.RunWriter.evaluation

  def killed(self, record):
    if record['label'] == 'during':
      raise SystemExit('killed')
    writer_evaluation(self, record)

  monkeypatch.setattr(loop.RunWriter, 'evaluation', killed)
  with pytest.raises(SystemExit):
    go()
  monkeypatch.setattr(loop.RunWriter, 'evaluation', writer_evaluation)
  assert records(tmp_path, 'transcripts.jsonl')[-1]['label'] == 'during'

  go()
  assert_same_run(tmp_path)


# The parts.


def test_interruption_waits_for_the_end_of_a_block():
  before = signal.getsignal(signal.SIGINT)
  done = []

  def block(interruption, *signals):
    with interruption.deferred('this'):
      for number in signals:
        signal.raise_signal(number)
        done.append(number)

  with Interruption() as interruption:
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
      block(interruption, signal.SIGTERM)
    assert done == [signal.SIGTERM]
    block(interruption)  # what has been raised is not raised again
    with pytest.raises(KeyboardInterrupt):
      block(interruption, signal.SIGINT, signal.SIGINT)  # the second one does not wait
    assert done == [signal.SIGTERM, signal.SIGINT]
    block(interruption)
  assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_signal_that_the_garbage_collector_swallows_is_not_lost():
  """JAX has a callback there that receives the signal."""
  collecting = lambda phase, info: signal.raise_signal(signal.SIGTERM)
  with Interruption() as interruption:
    interruption.meet()
    gc.callbacks.append(collecting)
    try:
      gc.collect()
    finally:
      gc.callbacks.remove(collecting)
    with pytest.raises(KeyboardInterrupt):
      interruption.meet()


def test_a_terminal_that_closes_interrupts_once_and_nohup_keeps_it_out():
  before = signal.signal(signal.SIGHUP, signal.SIG_DFL)

  def block(interruption, first):
    with interruption.deferred('this'):
      signal.raise_signal(first)
      signal.raise_signal(signal.SIGHUP)  # the shell's, beside the kernel's
      done.append(first)

  try:
    for first in (signal.SIGHUP, signal.SIGTERM):
      done = []
      with Interruption() as interruption:
        with pytest.raises(KeyboardInterrupt):
          block(interruption, first)
        signal.raise_signal(signal.SIGHUP)
        assert done == [first]
      assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interruption() as interruption, interruption.deferred('this'):
      signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_terminal_that_closes_costs_no_finished_step(tmp_path):
  child, terminal = pty.fork()
  if not child:
    os.chdir(micro_run.folder())
    longer = ('--config.checkpoint.every=1000', '--config.steps=200')
    command = micro_run.train_command(tmp_path / 'run', *longer)
    os.execvpe(command[0], command, micro_run.environment())
  until = time.monotonic() + 240
  while not (tmp_path / 'run' / 'metrics.jsonl').exists() and time.monotonic() < until:
    if select.select([terminal], [], [], 0.1)[0]:
      os.read(terminal, 4096)
  os.close(terminal)
  _, status = os.waitpid(child, 0)
  steps = [record['step'] for record in records(tmp_path / 'run', 'metrics.jsonl')]
  assert step_folders.steps(tmp_path / 'run' / 'checkpoints')[-1] == steps[-1] < 200
  assert os.waitstatus_to_exitcode(status) == 130


def test_several_processes_meet_where_nothing_is_lost():
  told, elsewhere = queue.Queue(), []
  with Interruption(lambda flag: flag or bool(elsewhere)) as interruption:
    interruption.tell = told.put
    interruption.meet()
    with interruption.deferred('an update'):
      signal.raise_signal(signal.SIGTERM)
    assert told.get(timeout=5) == 'an update'
    with pytest.raises(KeyboardInterrupt):
      interruption.meet()
  with Interruption(lambda flag: flag or bool(elsewhere)) as interruption:
    with interruption.deferred('an update'), interruption.allowed('a rollout'):
      pass
    with pytest.raises(KeyboardInterrupt), interruption.allowed('a rollout'):
      elsewhere.append(signal.SIGTERM)  # to another process
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):  # the second one does not wait
      signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_several_processes_stop_after_what_is_under_way(tmp_path, monkeypatch, capsys, compiled):
  """Acts as one of several processes that receives a signal at bad moments."""
  micro_run.finished()
  monkeypatch.setattr(loop, 'Interruption', lambda unused: Interruption(lambda flag: flag))
  config = micro_run.get_config().to_dict()
  go = lambda: loop.train(config, tmp_path)

  def interrupt(owner, name, what, expected, calls=1):
    """Goes until a signal comes at a call of a function, whose end it waits for."""
    real, left = getattr(owner, name), [None] * calls

    def interrupted(*arguments, **options):
      left and left.pop()
      if not left:
        signal.raise_signal(signal.SIGTERM)
        left.append(None)
        monkeypatch.setattr(owner, name, real)
      return real(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
      go()
    output = ' '.join(capsys.readouterr().out.split())
    assert f'interrupted: stopping after {what} (a second signal stops at once)' in output
    assert f'saved step {expected}; the same command goes on from there' in output
    of_sft = step_folders.steps(tmp_path / 'sft')  # gone once the run has a checkpoint
    there = f'{of_sft[-1]} of SFT' if of_sft else saved(tmp_path)[0]
    assert there == expected

  interrupt(Programs, 'optimizer_step', 'this step of SFT', '1 of SFT')
  assert not (tmp_path / 'eval.jsonl').exists()
  interrupt(run_evaluations, 'evaluate', 'this evaluation', 0)
  assert records(tmp_path, 'eval.jsonl')[-1]['label'] == 'untrained'
  interrupt(step_lib, 'collect', 'this rollout', 2, calls=3)
  interrupt(Programs, 'optimizer_step', 'this update', 3)
  interrupt(run_evaluations, 'evaluate', 'this evaluation', 4)
  go()
  assert_same_run(tmp_path)


def test_neither_a_fresh_nor_a_restored_state_needs_programs_of_its_own(tmp_path):
  config = micro_run.changed(sft__steps=0, learner__micro_batch_size=1, sampler__prefill_rows=1)
  setup = setup_lib.build(config_lib.check(config))
  learner = setup_lib.make_learner(setup)
  saves = checkpoints.Checkpoints(tmp_path, setup.config)
  state = setup_lib.init_state(setup, setup.params)
  saves.save(state)
  saves.wait()
  restored = saves.restore(setup_lib.state_shapes(setup))
  compiled = []
  for of in (state, restored):
    step_lib.train_step(setup, learner, of, Progress(1, 0, ''))
    sampler, programs = setup.sampler, learner.programs
    for program in (programs.accumulate, programs.apply, sampler.prefill):  # all of one shape
      assert program._cache_size() == 1
    compiled.append(tiny.compilations(sampler))
  assert compiled[0] == compiled[1]


def test_checkpoints_hold_everything_and_keep_the_newest(tmp_path):
  checkpoints = small_checkpoints.open_(tmp_path / 'c', keep=2)
  assert checkpoints.latest_step is None
  for step in range(4):
    checkpoints.save(small_checkpoints.state(step + 0.5, step))
    checkpoints.wait()
  assert sorted(p.name for p in (tmp_path / 'c').iterdir()) == ['2', '3']
  again = small_checkpoints.open_(tmp_path / 'c', keep=2)
  restored = again.restore(small_checkpoints.state(0.0))
  assert again.latest_step == 3
  expected = small_checkpoints.state(3.5, 3)
  assert jax.tree.structure(restored) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, restored, expected)


def test_checkpoint_of_another_config_is_refused_by_field(tmp_path):
  edges = {'topology': 'dag', 'edges': ((0, 2), (1, 2))}
  first = small_checkpoints.open_(tmp_path / 'c', team=edges)
  first.save(small_checkpoints.state(0.0))
  first.wait()
  # What changes neither parameters nor samples may change, and a tuple is a list on the disk.
  small_checkpoints.open_(
    tmp_path / 'c',
    team=edges,
    steps=99,
    evaluation={'questions': 7},
    rollout={'parts': 2},
    mesh={'fsdp': 2},
    sampler={'decode_rows': 8},
  )
  found = r'at step 0 .* \(budget.lambda_tok: 0.02 in the checkpoint, 0.5 now; seed: 0 in .*, 1 now'
  with pytest.raises(ValueError, match=found):
    small_checkpoints.open_(tmp_path / 'c', team=edges, budget={'lambda_tok': 0.5}, seed=1)
  # With a decaying learning rate the number of steps matters.
  linear = {'learner': {'schedule': 'linear'}, 'team': edges}
  other = small_checkpoints.open_(tmp_path / 'd', **linear)
  other.save(small_checkpoints.state(0.0))
  other.wait()
  with pytest.raises(ValueError, match=r'steps: 10 in the checkpoint, 99 now'):
    small_checkpoints.open_(tmp_path / 'd', **linear, steps=99)


def test_some_fields_change_in_mid_run_if_they_are_named(tmp_path):
  first = small_checkpoints.open_(tmp_path, keep=2)
  first.save(small_checkpoints.state(0.0, 1))
  first.wait()
  lower = {'learner': {'learning_rate': 1e-4, 'grad_clip': 0.5}}
  fields = ['learner.learning_rate', 'learner.grad_clip']
  way_on = r'learning_rate: 0.001 in the .* --allow_changes=learner.grad_clip,learner.learning_rate'
  with pytest.raises(ValueError, match=way_on):
    small_checkpoints.open_(tmp_path, **lower)
  with pytest.raises(
    ValueError, match=r'grad_clip: 1.0 in the .* --allow_changes=learner.grad_clip'
  ):
    small_checkpoints.open_(tmp_path, allow_changes=fields[:1], **lower)
  changed = small_checkpoints.open_(tmp_path, keep=2, allow_changes=fields, **lower)
  expected = [
    {'step': 1, 'field': 'learner.grad_clip', 'old': 1.0, 'new': 0.5},
    {'step': 1, 'field': 'learner.learning_rate', 'old': 1e-3, 'new': 1e-4},
  ]
  assert changed.changes == expected
  changed.save(small_checkpoints.state(0.0, 2))
  changed.wait()
  # How many and how wide rows are changes results by rounding alone.
  with pytest.raises(
    ValueError, match=r'pack_length: 64 in .* --allow_changes=learner.pack_length'
  ):
    small_checkpoints.open_(tmp_path, keep=2, learner={**lower['learner'], 'pack_length': 96})
  # From here on it is the run's own config; the same command still works.
  assert small_checkpoints.open_(tmp_path, **lower).changes == expected
  assert small_checkpoints.open_(tmp_path, allow_changes=fields, **lower).changes == expected
  assert checkpoints.newest(tmp_path).config['learner']['learning_rate'] == 1e-4
  with pytest.raises(ValueError, match=r'learning_rate: 0.0001 in the checkpoint, 0.001 now'):
    small_checkpoints.open_(tmp_path)
  # What would make another run of it may not change.
  with pytest.raises(ValueError, match=r'seed: 0 in the .*Use its config, or another --workdir'):
    small_checkpoints.open_(tmp_path, seed=1, **lower)
  with pytest.raises(
    ValueError, match=r'allow_changes=seed: in mid-run only learner.learning_rate'
  ):
    small_checkpoints.open_(tmp_path, allow_changes=['seed'], seed=1, **lower)


@pytest.mark.slow
def test_a_lower_learning_rate_holds_from_where_it_was_changed(tmp_path, no_warm_start):
  config = micro_run.changed(
    steps=1,
    sft__steps=0,
    learner__minibatches=1,
    evaluation__questions=1,
    checkpoint__keep=9,
  )
  loop.train(config, tmp_path / 'same')
  shutil.copytree(tmp_path / 'same', tmp_path / 'lower')
  config['steps'] = 2
  loop.train(config, tmp_path / 'same')
  config['learner']['learning_rate'] /= 8
  loop.train(config, tmp_path / 'lower', allow_changes=['learner.learning_rate'])
  moved = {}
  for name in ('same', 'lower'):
    (_, before), (_, after) = (saved(tmp_path / name, step) for step in (1, 2))
    moved[name] = {k: after[k] - x for k, x in before.items() if k.startswith('params/')}
  assert max(np.abs(x).max() for x in moved['same'].values()) > 1e-4
  for name, x in moved['same'].items():
    np.testing.assert_allclose(moved['lower'][name], x / 8, rtol=1e-2, atol=1e-6, err_msg=name)
  told = json.loads((tmp_path / 'lower' / 'config.json').read_text())
  assert told['changes'] == [
    {'step': 1, 'field': 'learner.learning_rate', 'old': 1e-3, 'new': 1e-3 / 8}
  ]
  assert 'changes' not in json.loads((tmp_path / 'same' / 'config.json').read_text())


def test_another_config_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch):
  monkeypatch.setattr(setup_lib, 'open_model', lambda *_, **__: pytest.fail('loaded a model'))
  first = small_checkpoints.open_(tmp_path / 'checkpoints')
  first.save(small_checkpoints.state(0.0))
  first.wait()
  config = micro_run.get_config().to_dict()
  config['rollout']['group_size'] = 3
  with pytest.raises(ValueError, match=r'rollout.group_size: 2 in the checkpoint, 3 now'):
    loop.train(config, tmp_path)


def test_fewer_steps_than_were_taken_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(setup_lib, 'open_model', lambda *_, **__: pytest.fail('loaded a model'))
  config = micro_run.changed(steps=2)
  first = small_checkpoints.open_(tmp_path / 'checkpoints', **config_lib.resolve(config).to_dict())
  first.save(small_checkpoints.state(0.0, 3))
  first.wait()
  message = rf'steps=2, but the run in {tmp_path} has taken 3\. Set steps=3 or more, or use another'
  with pytest.raises(ValueError, match=message):
    loop.train(config, tmp_path)
  assert not (tmp_path / 'config.json').exists()


def test_what_the_warm_start_does_not_read_may_change_during_it(tmp_path, monkeypatch, compiled):
  class Reached(Exception):
    pass

  def stage(setup, saves, *unused):
    raise Reached(saves.latest_step)

  monkeypatch.setattr(sft, 'Stage', stage)
  first = small_checkpoints.open_(
    tmp_path / 'sft', **config_lib.resolve(micro_run.changed()).to_dict()
  )
  first.save(small_checkpoints.state(0.0, 1))
  first.wait()
  go = lambda **values: loop.train(
    micro_run.changed(**values), tmp_path, allow_changes=['learner.learning_rate']
  )
  with pytest.raises(Reached, match='1'):
    go(learner__learning_rate=1e-5)
  with pytest.raises(ValueError, match=r'sft.learning_rate: .* in the checkpoint, 0.5 now'):
    go(learner__learning_rate=1e-5, sft__learning_rate=0.5)


@pytest.mark.slow
def test_the_width_of_rows_changes_rounding_alone(tmp_path, no_warm_start):
  config = micro_run.changed(
    steps=0, sft__steps=0, learner__minibatches=1, evaluation__questions=1, evaluation__every=0
  )
  loop.train(config, tmp_path / 'same')
  shutil.copytree(tmp_path / 'same', tmp_path / 'wide')
  config['steps'] = 1
  loop.train(config, tmp_path / 'same')
  config['learner']['pack_length'] *= 2
  config['learner']['micro_batch_size'] *= 2
  fields = ['learner.pack_length', 'learner.micro_batch_size']
  loop.train(config, tmp_path / 'wide', allow_changes=fields)
  (same,), (wide,) = (records(tmp_path / name, 'metrics.jsonl') for name in ('same', 'wide'))
  assert wide['packing/positions'] != same['packing/positions']
  for key in ('policy/grad_norm', 'policy/objective', 'reward/mean'):
    assert wide[key] == pytest.approx(same[key], rel=1e-4, abs=1e-6), key
  assert same['policy/grad_norm'] > 0


def test_parameters_for_another_use(tmp_path):
  first = small_checkpoints.open_(tmp_path / 'c')
  first.save(small_checkpoints.state(1.5))
  first.wait()
  saved_there = checkpoints.newest(tmp_path / 'c')
  assert saved_there.config['model']['source'] == 'random:micro'
  assert saved_there.step == 0
  config = micro_run.get_config().to_dict()
  config['rollout']['group_size'], config['evaluation']['split'] = 7, 'validation'
  like = small_checkpoints.params(0.0)
  params = saved_there.restore_params(Config.from_dict(config), like)
  jax.tree.map(np.testing.assert_array_equal, params, small_checkpoints.params(1.5))
  config['task']['options']['max_count'] = 4  # other words for a model from scratch
  with pytest.raises(ValueError, match=r'task.options.max_count: 3 in the checkpoint, 4 now'):
    saved_there.restore_params(Config.from_dict(config), like)
  for folder in (tmp_path / 'none', tmp_path):
    with pytest.raises(FileNotFoundError, match=r'holds no checkpoint; give the --workdir'):
      checkpoints.newest(folder)


@pytest.mark.parametrize(
  ('shape', 'message'),
  [
    ((6, 4), r'the vocabulary has 6 words, that of .* 5: the words of the task or of the prompts'),
    ((5, 3), r'embed/embedding has shape \(5, 3\), but \(5, 4\) in .*: that is another model'),
  ],
)
def test_other_words_than_those_of_the_checkpoint_are_told(tmp_path, shape, message):
  optimizer = state_lib.make_optimizer(LearnerOptions(learning_rate=1.0), updates=1)
  made = lambda shape: {'embed': {'embedding': jnp.zeros(shape)}}
  first = small_checkpoints.open_(tmp_path / 'c')
  first.save(state_lib.init(made((5, 4)), optimizer))
  first.wait()
  with pytest.raises(ValueError, match=message):
    small_checkpoints.open_(tmp_path / 'c').restore(state_lib.init(made(shape), optimizer))
  saved_there, config = checkpoints.newest(tmp_path / 'c'), micro_run.get_config().to_dict()
  with pytest.raises(ValueError, match=message):
    saved_there.restore_params(Config.from_dict(config), made(shape))


@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    ('evaluation.json', 'an evaluation'),
    ('results.jsonl', 'an evaluation'),
    ('team.json', 'an exported team or a model'),
    ('model-00001.safetensors', 'an exported team or a model'),
  ],
)
def test_a_run_has_a_folder_of_its_own(tmp_path, name, kind):
  (tmp_path / name).touch()
  with pytest.raises(ValueError, match=f'is the folder of {kind}; must be another one'):
    loop.train(micro_run.get_config().to_dict(), tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == [name]


def test_updates_do_not_consume_what_the_state_was_made_of():
  params = {'a': {'kernel': jnp.ones(3)}}
  state = state_lib.init(
    params, state_lib.make_optimizer(LearnerOptions(learning_rate=1.0), updates=1)
  )
  jax.tree.leaves(state.trainable)[0].delete()
  assert not params['a']['kernel'].is_deleted()
