"""Tests rollouts ahead of the learner: schedule, timing, exact resume."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import threading
import time
import traceback
import types
from concurrent import futures

import jax
import micro_run
import numpy as np
import pytest
import run_comparison
import small_checkpoints

from agent_gspo.config import check as config_lib
from agent_gspo.sharding import encoding
from agent_gspo.sharding.options import MeshOptions
from agent_gspo.teams.policies import Reply, Turn
from agent_gspo.training import ahead as ahead_lib
from agent_gspo.training import loop
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.ahead import Ahead
from agent_gspo.training.policy_loss import Programs
from agent_gspo.training.progress import Progress
from agent_gspo.types import Question
from agent_gspo.workdir import disk
from agent_gspo.workdir.checkpoints import Checkpoints
from benchmarks.rollouts_ahead import SlowMaze
from configs import half_maze

STEPS = 5
_SMALL = {
  'steps': STEPS,
  'task.name': 'benchmarks.rollouts_ahead:SlowMaze',
  'rollout.questions': 2,
  'rollout.group_size': 4,
  'learner.learning_rate': 3e-3,
  'reward.gate': 'always',
  'budget.lambda_tok': 0.01,
  'sft.steps': 0,
  'evaluation.questions': 2,
  'evaluation.every': 3,
  'evaluation.questions_during': 2,
}


def _maze(**values) -> dict:
  """Returns a small maze config; `a__b` is field `a.b`."""
  config = half_maze.get_config()
  with config.unlocked():
    values = {field.replace('__', '.'): value for field, value in values.items()}
    config.update_from_flattened_dict(_SMALL | values)
  return config.to_dict()


# The queue alone.


class _Rollouts:
  """Stands for `collect`: each rollout is its own step, and draws three questions.

  Under the free schedule it is what its two layers wrote: the versions of the weights.
  """

  def __init__(self, monkeypatch, ahead: int, schedule: str = 'fixed'):
    self.begun, self.failing, self.hold = [], None, threading.Semaphore(10**6)
    rollout = types.SimpleNamespace(ahead=ahead, schedule=schedule, engine='')
    config = types.SimpleNamespace(rollout=rollout, steps=6, mesh=MeshOptions())
    self.setup = types.SimpleNamespace(config=config, team=types.SimpleNamespace(has_tools=True))
    monkeypatch.setattr(ahead_lib, 'collect', self)

  def __call__(self, setup, state, progress, step, gather, write):
    self.hold.acquire()
    progress.phase('rollout')
    if step == self.failing:
      raise OSError('no maze')
    drawn = int(state.selection.drawn)
    after = state.selection.replace(drawn=drawn + 3)
    if write is None:
      self.begun.append((step, int(state.step), drawn, _first(state)))
      return step, step, after
    assert not state.trainable  # it would stay in memory while the rollout is queued
    replies = write(self._policy)([_turn(0)])
    self.begun.append((step, int(state.step), drawn, float(state.selection.posterior.a[0])))
    self.hold.acquire()
    replies += write(self._policy)([_turn(0), _turn(1)])[1:]
    rollout = [(reply.version, reply.token_ids.tolist()) for reply in replies]
    return rollout, rollout, after

  @staticmethod
  def _policy(state):
    """Returns a policy that writes the version of its weights."""
    reply = Reply.given([int(_first(state))], ended=True, version=int(state.step))
    return lambda turns: [reply] * len(turns)


def _turn(round_: int) -> Turn:
  prompt = np.arange(round_ + 1, dtype=np.int32)
  return Turn(Question('q', '', ''), 0, 0, round_, prompt, {}, limit=1, stop_ids=(0,))


class _Told(Progress):
  """Calls a function when the learner waits with its weights published."""

  def __init__(self, function):
    self.phase = lambda *_: function()


def _state(step: int):
  return small_checkpoints.state(float(step), step)


def _knowing(step: int):
  """Returns a state whose posterior identifies its step."""
  state = _state(step)
  posterior = state.selection.posterior.replace(a=np.full(1, step, np.float32))
  return state.replace(selection=state.selection.replace(posterior=posterior))


def _first(state) -> float:
  return float(state.trainable['a', 'lora_a'][0, 0])


@pytest.mark.parametrize('k', [1, 2, 9])
def test_a_step_learns_from_the_weights_of_k_steps_before(monkeypatch, k):
  rollouts = _Rollouts(monkeypatch, k)
  found, states = Ahead(rollouts.setup), [_state(step) for step in range(6)]
  weights = [_first(state) for state in states]
  for step, state in enumerate(states):
    rollout, everything, selection = found(rollouts.setup, state, Progress())
    assert rollout == everything == step
    # Draws made ahead are not of this step, whose posterior is the newest.
    assert int(selection.drawn) == 3 * (step + 1)
    assert selection.posterior is state.selection.posterior
    for leaf in state.trainable.values():
      leaf.delete()  # as an update does
    assert len(rollouts.begun) <= min(step + 1 + k, 6)
  found.close()
  versions = [max(step - k, 0) for step in range(6)]
  expected = [(step, v, 3 * step, weights[v]) for step, v in enumerate(versions)]
  assert rollouts.begun == expected  # and none beyond the last step


def test_a_resumed_queue_goes_on(monkeypatch):
  """Rollouts of older weights are saved, those of the saved weights are sampled anew."""
  rollouts = _Rollouts(monkeypatch, 2)
  whole = Ahead(rollouts.setup)
  for step in range(3):
    whole(rollouts.setup, _state(step), Progress())
  saved = whole.waiting(3)
  assert whole.waiting(0) == b''
  whole.close()
  rollouts.begun.clear()
  again = Ahead(rollouts.setup, saved)
  for step in range(3, 6):
    rollout, _, selection = again(rollouts.setup, _state(step), Progress())
    assert (rollout, int(selection.drawn)) == (step, 3 * (step + 1))
  again.close()
  assert [(step, version, drawn) for step, version, drawn, _ in rollouts.begun] == [(5, 3, 15)]


def test_a_free_rollout_goes_on_with_the_newest_weights(monkeypatch):
  """Includes a stop; draws of questions do not change."""
  rollouts = _Rollouts(monkeypatch, 2, 'free')
  rollouts.hold = threading.Semaphore(3)  # two layers of the first rollout, one of the second
  found, states = Ahead(rollouts.setup), [_knowing(step) for step in range(3)]
  assert found(rollouts.setup, states[0], Progress())[0] == [(0, [0]), (0, [0])]
  while len(rollouts.begun) < 2:
    time.sleep(0.01)
  saved = found.waiting(1)  # does not wait
  release = lambda: rollouts.hold.release(10**6)
  rollout, _, selection = found(rollouts.setup, states[1], _Told(release))
  assert rollout == [(0, [0]), (1, [1])]
  assert int(selection.drawn) == 6
  found.wait()
  assert found(rollouts.setup, states[2], Progress())[0] == [(1, [1]), (1, [1])]
  found.close()
  before, rollouts.begun = rollouts.begun[1:3], []
  assert before == [(1, 0, 3, 0), (2, 0, 6, 0)]
  again = Ahead(rollouts.setup, saved)
  resumed = dataclasses.replace(states[1], selection=states[1].selection.replace(drawn=3))
  assert again(rollouts.setup, resumed, Progress())[0] == [(0, [0]), (1, [1])]
  again.wait()
  again.close()
  assert rollouts.begun == [*before, (3, 1, 9, 1)]


def test_a_free_rollout_forgets_a_reply_to_another_prompt(monkeypatch):
  """A changed environment gives other replies."""
  rollouts = _Rollouts(monkeypatch, 1, 'free')
  found, written = Ahead(rollouts.setup), {}
  found(rollouts.setup, _state(0), Progress())
  write = found._write(written, rollouts._policy)
  write([_turn(0)])
  found(rollouts.setup, _state(1), Progress())
  other = dataclasses.replace(_turn(0), prompt_ids=np.asarray([7], np.int32))
  assert [reply.version for reply in write([_turn(0), other])] == [0, 1]
  found.close()


def test_what_follows_a_tool_has_the_weights_of_what_is_before_it(monkeypatch):
  rollouts = _Rollouts(monkeypatch, 1, 'free')
  found = Ahead(rollouts.setup)
  found(rollouts.setup, _state(0), Progress())
  write = found._write({}, rollouts._policy)
  more = dataclasses.replace(_turn(0), prompt_ids=np.asarray([7, 8], np.int32), offset=1)
  versions = [reply.version for reply in write([_turn(0)])]
  found(rollouts.setup, _state(1), Progress())
  with futures.ThreadPoolExecutor(1) as other_part:
    versions += [reply.version for reply in other_part.submit(write, [_turn(2)]).result()]
  versions += [reply.version for turn in (more, _turn(1)) for reply in write([turn])]
  assert versions == [0, 1, 0, 1]
  found.close()


def test_a_save_takes_the_devices_after_the_rollouts_are_written():
  """In-flight rollouts need the devices."""
  turn, saved = threading.Lock(), []

  def waiting(step: int) -> bytes:
    assert not turn.locked()
    return b'rollouts'

  def save(state, rollouts):
    assert turn.locked()
    saved.append(rollouts['rollouts'])

  run = types.SimpleNamespace(
    checkpoints=types.SimpleNamespace(taken_step=1, save=save),
    ahead=types.SimpleNamespace(waiting=waiting),
    memory=(),
    setup=types.SimpleNamespace(
      sampler=types.SimpleNamespace(placement=types.SimpleNamespace(turn=turn))
    ),
  )
  for step in (1, 2):  # the first one is saved already
    loop.Run._save(run, _state(step))
  assert saved == [b'rollouts']


def test_actors_copy_opponents_that_stay_once(monkeypatch):
  rollouts, copied = _Rollouts(monkeypatch, 1), []
  rollouts.setup.config.mesh = MeshOptions(actors=1)

  def own_copy(tree):
    copied.append(tree)
    return jax.tree.map(np.copy, tree)

  rollouts.setup.own_copy = own_copy
  first, second, third = (dict(_state(step).trainable) for step in (7, 8, 9))
  found, pools = Ahead(rollouts.setup), []
  for step, pool in enumerate([(first, second), (dict(first), third)]):  # placed anew: other dicts
    pools.append(found._copied(_state(step).replace(pool=pool)).pool)
  assert pools[1][0] is pools[0][0]
  assert [float(_first(_state(0).replace(trainable=x))) for pool in pools for x in pool] == [
    float(_first(_state(0).replace(trainable=x))) for x in (first, second, first, third)
  ]
  assert len(copied) == 1 + 2 + 3  # frozen parameters, those that learn, opponents
  found.close()


def test_an_error_of_a_later_rollout_is_raised_at_once(monkeypatch):
  rollouts = _Rollouts(monkeypatch, 2)
  rollouts.failing = 2
  found = Ahead(rollouts.setup)
  found(rollouts.setup, _state(0), Progress())
  with pytest.raises(OSError, match='no maze'):
    found.wait()
  with pytest.raises(OSError, match='no maze'):
    found(rollouts.setup, _state(1), Progress())
  found.close()


def test_a_rollout_that_failed_is_saved_as_far_as_it_is_written(monkeypatch):
  """Tests the free schedule, in which others continue any rollout."""
  rollouts = _Rollouts(monkeypatch, 1, 'free')
  found = Ahead(rollouts.setup)
  found(rollouts.setup, _state(0), Progress())
  found.wait()
  found._begun[1].result = found._thread.submit(_fail)
  with pytest.raises(OSError, match='no maze'):
    found(rollouts.setup, _state(1), Progress())
  ((step, version, _, written, collected),) = encoding.decode(found.waiting(1))
  assert (step, version, collected) == (1, 0, None)
  assert len(written) == 2
  found.close()


def _fail():
  raise OSError('no maze')


def test_closing_ends_the_rollout_under_way(monkeypatch):
  rollouts = _Rollouts(monkeypatch, 2)
  rollouts.hold = threading.Semaphore(1)
  found = Ahead(rollouts.setup)
  found(rollouts.setup, _state(0), Progress())
  threading.Timer(0.2, rollouts.hold.release).start()
  found.close()
  assert [step for step, *_ in rollouts.begun] == [0]


# Whole runs.


def _no_room(*unused, **options):
  raise disk.WriteError('no room')


@pytest.fixture(scope='module', params=[0, pytest.param(1, marks=pytest.mark.slow), 2])
def run(request, tmp_path_factory):
  """Returns staleness and folder of a run with random pauses."""
  folder = tmp_path_factory.mktemp('whole')
  pauses = {'task__options__delay': 0.03, 'task__options__jitter': True}
  loop.train(_maze(rollout__ahead=request.param, **pauses), folder)
  return request.param, folder


def test_versions_and_ratios_are_as_scheduled(run):
  k, folder = run
  metrics = run_comparison.records(folder, 'metrics.jsonl')
  assert [line['step'] for line in metrics] == list(range(1, STEPS + 1))
  stale = [min(step, k) for step in range(STEPS)]
  assert [line.get('rollout/staleness', 0) for line in metrics] == stale
  for line, steps in zip(metrics, stale, strict=True):
    error = line['policy/ratio_first_minibatch_error_max']
    assert error > 1e-3 if steps else error < 1e-4
  for line in run_comparison.records(folder, 'transcripts.jsonl'):
    if line['label'] == 'train':
      step = line['step'] - 1
      versions = {message.get('version') for message in line['messages']}
      assert versions == {step - stale[step] if k else None}


def test_timing_changes_nothing(run, tmp_path):
  k, whole = run
  loop.train(_maze(rollout__ahead=k, task__options__delay=0.0), tmp_path)
  run_comparison.assert_same_run(tmp_path, whole, STEPS)


@pytest.mark.slow
def test_an_error_costs_no_finished_step(tmp_path, monkeypatch):
  """The error is reported unchanged even if no state can be saved."""
  act, config = SlowMaze.act, _maze(rollout__ahead=0, evaluation__every=0)

  def fail(*unused):
    monkeypatch.setattr(SlowMaze, 'act', lambda self, state, texts: texts['nobody'])

  for save in (Checkpoints.save, _no_room):
    monkeypatch.setattr(Checkpoints, 'save', save)
    with pytest.raises(Exception, match="'nobody'"):
      loop.train(config, tmp_path, on_step=fail)
    monkeypatch.setattr(SlowMaze, 'act', act)
    assert run_comparison.saved(tmp_path)[0] == 1


def test_the_error_of_an_environment_ends_the_run_with_its_own_words(tmp_path, monkeypatch):
  monkeypatch.setattr(SlowMaze, 'act', lambda self, state, texts: texts['nobody'])
  with pytest.raises(Exception, match="'nobody'") as raised:
    loop.train(_maze(rollout__ahead=1), tmp_path)
  text = ''.join(traceback.format_exception(raised.value))
  assert "texts['nobody']" in text
  assert 'act' in text


@pytest.mark.slow
def test_the_trainers_old_logprobs_are_of_the_newest_weights(tmp_path):
  """Ratios start at 1; truncated importance sampling corrects the rest."""
  config = _maze(rollout__ahead=1, learner__old_logprobs='trainer', steps=3)
  loop.train(config, tmp_path)
  first, *others = run_comparison.records(tmp_path, 'metrics.jsonl')
  assert abs(first['policy/tis_weight_mean'] - 1) < 1e-4
  for line in others:
    assert line['policy/ratio_first_minibatch_error_max'] < 1e-4
    assert line['policy/sampler_trainer_diff_mean'] > 1e-3
    assert abs(line['policy/tis_weight_mean'] - 1) > 1e-4


@pytest.mark.slow
def test_a_free_run_asks_what_a_fixed_one_asks(tmp_path, monkeypatch):
  """Stops the run as well; messages are at most as old as allowed."""
  make, beside = loop.RunEvaluations.make, []

  def seen(*arguments, **options):
    beside.extend(x.name for x in threading.enumerate() if x.name.startswith('rollout'))
    return make(*arguments, **options)

  monkeypatch.setattr(loop.RunEvaluations, 'make', seen)
  pauses = {'task__options__delay': 0.03, 'task__options__jitter': True}
  values = {'rollout__ahead': 2, 'logging__transcripts': 99, 'evaluation__every': 0}
  loop.train(_maze(**values), tmp_path / 'fixed')
  config = _maze(rollout__schedule='free', **values, **pauses)
  loop.train(config, tmp_path / 'free', on_step=lambda step, metrics: step == 2)
  loop.train(config, tmp_path / 'free')
  asked = []
  for name in ('fixed', 'free'):
    told = run_comparison.records(tmp_path / name, 'transcripts.jsonl')
    told = [record for record in told if record['label'] == 'train']
    asked.append([(record['step'], record['question_id'], record['sample']) for record in told])
  assert asked[0] == asked[1]
  assert not beside
  for record in told:
    versions = [message['version'] for message in record['messages']]
    assert versions == sorted(versions)
    assert record['step'] - 3 <= versions[0] <= versions[-1] < record['step']


def test_a_free_schedule_needs_rollouts_ahead():
  with pytest.raises(ValueError, match=r"rollout.schedule='free' with rollout.ahead=0: .* Set"):
    config_lib.check(micro_run.changed(rollout__schedule='free'))


_TOLD = {
  'rollout__ahead': 2,
  'steps': 6,
  'sft__steps': 0,
  'evaluation__every': 0,
  'evaluation__questions': 1,
  'evaluation__seen_questions': 0,
  'checkpoint__every': 4,
  'selection__name': 'spo',
  'selection__resample': 1,
  'rollout__must_speak': 1,
  'budget__mode': 'conditioned',
  'budget__lambda_max': 0.05,
  'budget__told_words': ('nothing', 'little', 'much'),
  'team__roles__informant__opening': '{price} : {question} note : {note}',
}


@pytest.mark.slow
def test_a_run_stopped_at_every_step_ends_where_it_would_have_ended(tmp_path, monkeypatch):
  """With draws by posterior, resampling, prices for each question and forced speech."""
  config = micro_run.changed(**_TOLD)
  whole, cut = tmp_path / 'whole', tmp_path / 'cut'
  loop.train(config, whole)
  for stop in (1, 2):
    loop.train(config, cut, on_step=lambda step, metrics, stop=stop: step == stop)

  def interrupted(owner, name: str):
    """Stops the next run with a signal at the first call of a function in its main thread."""
    real = getattr(owner, name)

    def signaled(*arguments, **options):
      if threading.current_thread() is threading.main_thread():
        monkeypatch.setattr(owner, name, real)
        signal.raise_signal(signal.SIGINT)
      return real(*arguments, **options)

    monkeypatch.setattr(owner, name, signaled)
    with pytest.raises(KeyboardInterrupt):
      loop.train(config, cut)

  interrupted(Programs, 'optimizer_step')  # after which step 3 is whole
  assert run_comparison.saved(cut)[0] == 3
  interrupted(Ahead, '_begin')  # while the learner waits
  assert run_comparison.saved(cut)[0] == 3
  _kill_after(4, config, cut, monkeypatch)
  loop.train(config, cut)
  for name in ('metrics.jsonl', 'transcripts.jsonl'):
    lines = (run_comparison.records(folder, name) for folder in (cut, whole))
    left, right = ([x for x in some if x.get('label', 'train') == 'train'] for some in lines)
    assert left == right
  (_, left), (_, right) = run_comparison.saved(cut), run_comparison.saved(whole)
  assert left.keys() == right.keys()
  for name, array in left.items():
    np.testing.assert_array_equal(array, right[name], err_msg=name)


def _kill_after(step: int, config, folder: pathlib.Path, monkeypatch) -> None:
  """Ends a run as a kill would, without saving."""

  def killed(done, metrics):
    if done == step + 1:
      raise SystemExit('killed')

  with pytest.raises(SystemExit):
    loop.train(config, folder, on_step=killed)
  assert run_comparison.saved(folder)[0] == step


def test_several_devices_are_refused_before_a_model_is_loaded(monkeypatch):
  two = types.SimpleNamespace(devices=2, row_shards=1)
  monkeypatch.setattr(setup_lib, 'make_placement', lambda *_: two)
  monkeypatch.setattr(setup_lib, 'open_model', lambda *_, **__: pytest.fail('loaded a model'))
  message = r'rollout.ahead=1 on 2 devices: .* Set mesh.actors .*, or rollout.ahead=0, or use one'
  with pytest.raises(ValueError, match=message):
    setup_lib.build(config_lib.check(micro_run.changed(rollout__ahead=1)))


@pytest.mark.parametrize(
  ('ahead', 'processes', 'message'),
  [
    (0, 1, r'mesh.actors=1 with rollout.ahead=0: .* Set rollout.ahead=1 or more, or mesh.actors=0'),
    (1, 2, r'mesh.actors=1 must leave each process a device that learns, of 1 .*mesh.actors=0'),
    (1, 1, r'mesh.actors=1 must leave each process a device that learns, of 1 .*mesh.actors=0'),
  ],
)
def test_actors_that_cannot_be_are_refused(monkeypatch, ahead, processes, message):
  monkeypatch.setattr(setup_lib, 'open_model', lambda *_, **__: pytest.fail('loaded a model'))
  monkeypatch.setattr(jax, 'process_count', lambda: processes)
  parts = config_lib.check(micro_run.changed(rollout__ahead=ahead, mesh__actors=1))
  with pytest.raises(ValueError, match=message):
    setup_lib.build(parts)
