"""Tests who plays whom: assignment, masks, the pool, what a checkpoint keeps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import run_comparison
import small_checkpoints

from agent_gspo.config import check as config_lib
from agent_gspo.rewards import communication
from agent_gspo.sharding import hosts
from agent_gspo.training import loop, opponents
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.advantages import message_advantages
from agent_gspo.training.collect import collect
from agent_gspo.training.progress import Progress
from agent_gspo.workdir.checkpoints import Checkpoints
from configs import kuhn

STEPS = 5


def config(**values):
  """Returns a small config of Kuhn poker; `a__b` is field `a.b`."""
  small = {
    'steps': STEPS,
    'rollout.group_size': 4,
    'rollout.opponents': 'pool',
    'rollout.pool_every': 2,
    'rollout.pool_size': 2,
    'sft.steps': 2,
    'sft.questions': 4,
    'evaluation.questions': 6,
    'evaluation.every': 0,
    'checkpoint.every': 1,
    'learner.schedule': 'constant',  # a run may be prolonged
  }
  found = kuhn.get_config()
  with found.unlocked():
    for field, value in (small | {k.replace('__', '.'): v for k, v in values.items()}).items():
      found.update_from_flattened_dict({field: value})
  return found.to_dict()


@pytest.fixture(scope='module')
def setup():
  return setup_lib.build(config_lib.check(config()))


def test_sides_learn_in_turn_and_a_question_has_one_match(setup):
  questions = setup.questions[:12]
  seen = []
  for step in range(30):
    found = opponents.matches(setup, step, questions, 0, step)
    assert found == opponents.matches(setup, step, questions, 0, step)
    learns = [found[question.id].side for question in questions]
    assert sorted(learns) == ['first'] * 6 + ['second'] * 6
    members = {match.member for match in found.values()}
    assert members <= {0, 1}
    assert (members == {0}) == (step < 2)  # the first copy comes after the second step
    seen.append(learns)
    early = opponents.matches(setup, step, questions, 0, min(step, 1))
    assert {match.member for match in early.values()} == {0}  # the weights have no copy yet
  assert all(len(set(of_question)) == 2 for of_question in zip(*seen, strict=True))


def test_resampled_questions_have_their_share_of_opponents():
  setup = setup_lib.build(config_lib.check(config(rollout__opponent_share=0.25)))
  played, sides, asked = [], set(), 0
  for count in (4, 1, 1, 1, 1, 2, 2):
    found = opponents.matches(setup, 0, setup.questions[asked : asked + count], asked, 0)
    played += [match.member is not None for match in found.values()]
    sides |= {match.side for match in found.values() if match.member is not None}
    asked += count
  assert sum(played) == 3  # of 12
  assert sides == {'first', 'second'}


def test_without_an_opponent_all_sides_learn():
  setup = setup_lib.build(config_lib.check(config(rollout__opponent_share=0.5)))
  state = setup_lib.init_state(setup, setup.params)
  for step in range(3):
    state = dataclasses.replace(state, step=np.int32(step))
    rollout, *_ = collect(setup, state, Progress())
    found = opponents.matches(setup, step, rollout.questions, 0, step)
    played = [match for match in found.values() if match.member is not None]
    assert sorted(match.side for match in played) == ['first'] * 3 + ['second'] * 3
    for message, question in zip(rollout.messages, rollout.question, strict=True):
      side, member = found[rollout.questions[question].id]
      assert message.learns == (member is None or setup.team.sides[message.agent] == side)


def test_the_pool_takes_a_copy_every_n_steps_and_forgets_the_oldest(setup):
  state = setup_lib.init_state(setup, setup.params)
  name = next(iter(state.trainable))
  options, held = setup.config.rollout, []
  for step in range(6):
    trained = {**state.trainable, name: np.full_like(state.trainable[name], step + 1)}
    state = dataclasses.replace(state, trainable=trained, step=np.int32(step))
    state = dataclasses.replace(state, pool=opponents.kept(options, state))
    held.append([float(np.ravel(member[name])[0]) for member in state.pool])
  start = held[0][0]
  assert held == [[start, start], [start, 2], [start, 2], [4, 2], [4, 2], [4, 6]]


@pytest.fixture(scope='module')
def played(setup):
  """Returns a rollout against an opponent with other weights, which writes other moves."""
  state = setup_lib.init_state(setup, setup.params)
  other = {k: v + 0.1 * np.sign(np.sin(np.arange(v.size).reshape(v.shape)))
           for k, v in state.trainable.items()}  # fmt: skip
  state = dataclasses.replace(state, pool=(other, other))
  rollout, _, after = collect(setup, state, Progress())
  return state, rollout, after


def test_opponents_write_with_their_own_parameters(setup, played):
  state, rollout, _ = played
  found = opponents.matches(setup, 0, rollout.questions, 0, 0)
  learner = setup_lib.make_learner(setup)
  for owner, trainable in ((True, state.trainable), (False, state.pool[0])):
    own = [m for m in rollout.messages if m.learns == owner]
    assert own
    scored = learner.score(dataclasses.replace(state, trainable=trainable), own)
    for message, logprobs in zip(own, scored, strict=True):
      np.testing.assert_allclose(message.logprobs, logprobs, rtol=1e-3, atol=1e-4)
  for message, question in zip(rollout.messages, rollout.question, strict=True):
    side = found[rollout.questions[question].id].side
    assert message.version == (0 if message.learns else -1)
    assert message.learns == (setup.team.sides[message.agent] == side)


@pytest.mark.parametrize('name', ['group_mean', 'rae', 'gigpo'])
def test_opponents_carry_no_loss_and_enter_no_baseline(setup, played, name):
  _, rollout, after = played
  found = config_lib.check(config(advantage__name=name, advantage__grouping='question')).config
  baselines = np.zeros(2, np.float32)
  task = np.random.default_rng(0).normal(size=len(rollout.messages))

  def advantages(values):
    terms = communication.reward_terms(found.reward, rollout, 0.0, returns=values)
    return message_advantages(found, rollout, terms, after, baselines)

  own, before = rollout.learns, advantages(task)
  assert 0 < own.sum() < len(own)
  assert not before.kept[~own].any()
  assert not before.values[~own].any()
  assert before.kept[own].all()
  assert before.values[own].any()
  other = advantages(np.where(own, task, task + 100))
  np.testing.assert_array_equal(before.values, other.values)
  np.testing.assert_array_equal(before.baselines, other.baselines)
  # Nothing of an opponent is packed.
  packed = setup_lib.make_learner(setup).pack(rollout, before, 0)
  slots = [b.message[b.message_mask > 0] for batch in packed for b in batch]
  assert sorted(np.concatenate(slots)) == np.flatnonzero(own).tolist()


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp('whole')
  loop.train(config(advantage__name='rae'), folder)
  return folder


@pytest.mark.slow
def test_a_resumed_run_meets_the_same_opponents(tmp_path, whole):
  """Stops a run with one copy in the pool, and with two."""
  for steps in (1, 3, STEPS):
    loop.train(config(advantage__name='rae', steps=steps), tmp_path)
  metrics = [run_comparison.records(folder, 'metrics.jsonl') for folder in (tmp_path, whole)]
  assert metrics[0] == metrics[1]
  _, arrays = run_comparison.saved(whole)
  _, resumed = run_comparison.saved(tmp_path)
  assert arrays.keys() == resumed.keys()
  for name, array in arrays.items():
    np.testing.assert_array_equal(array, resumed[name], err_msg=name)
  pool = [name for name in arrays if '.pool[' in name]
  trained = [name for name in arrays if name.startswith('params/')]
  assert len(pool) == 2 * len(trained)
  baselines = next(value for name, value in arrays.items() if 'baselines' in name)
  assert baselines.shape == (2,)
  assert baselines.any()


def test_transcripts_name_sides_and_opponents(whole):
  lines = run_comparison.records(whole, 'transcripts.jsonl')
  training = [line for line in lines if line['label'] == 'train']
  assert training
  for line in lines:
    seen = {message['agent']: message['side'] for message in line['messages']}
    of_episode = [seen[agent].partition(', ') for agent in sorted(seen)]
    assert [side for side, _, _ in of_episode] == ['first', 'second'][: len(seen)]
    opponents_seen = sum(role == 'opponent' for _, _, role in of_episode)
    assert opponents_seen == (line['label'] == 'train') or len(seen) == 1
  found = {message['side'] for line in training for message in line['messages']}
  assert any('opponent' in side for side in found)


@pytest.mark.slow
def test_frozen_opponents_are_the_newest_checkpoint_of_another_run(tmp_path, whole):
  """Opponents are saved in the checkpoint, as the other run may be deleted before a resume."""
  frozen = tmp_path / 'other'
  frozen.symlink_to(whole)
  given = config(rollout__opponents=f'frozen:{frozen}', sft__steps=0)
  loop.train({**given, 'steps': 1}, tmp_path / 'run')
  frozen.unlink()
  loop.train({**given, 'steps': 2}, tmp_path / 'run')
  _, arrays = run_comparison.saved(tmp_path / 'run')
  _, theirs = run_comparison.saved(whole)
  params = sorted(name for name in theirs if name.startswith('params/'))
  pool = sorted(name for name in arrays if '.pool[0]' in name)
  assert len(pool) == len(params)
  values = {name: value for name, value in arrays.items() if name in pool}
  for name in params:
    assert any(np.array_equal(theirs[name], value) for value in values.values())
  assert not all(np.array_equal(theirs[name], arrays[name]) for name in params)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'rollout__opponents': 'past'}, "rollout.opponents='past' is unknown; use one of self, pool"),
    ({'team__sides': {}}, "rollout.opponents='pool' with team.sides={}"),
    (
      {'team__sides': {}, 'rollout__opponents': 'self', 'advantage__grouping': 'question_side'},
      "advantage.grouping='question_side' with team.sides={}",
    ),
    (
      {'advantage__name': 'advantage_alignment', 'advantage__costs': 'inside'},
      "rollout.opponents='pool' with advantage.name='advantage_alignment', which compares both",
    ),
    ({'reward__payers': ('player3',)}, 'reward.payers=.* must be names of agents: player1'),
    ({'team__sides': {'a': ('player1',)}}, 'leaves player2 without a side'),
    ({'team__sides': {'a': ('player1', 'player2')}}, 'leaves nobody without a side; give two'),
    ({'team__sides': {'a': ('player1',), 'b': ('x',)}}, "team.sides.b names 'x'; the agents are"),
    (
      {'team__sides': {'a': ('player1', 'player2'), 'b': ('player1',)}},
      "team.sides.b names 'player1', which is on side 'a' too",
    ),
    ({'team__sides': {'a': 'player1', 'b': ('player2',)}}, "team.sides.a='player1' must be"),
  ],
)
def test_faulty_options_are_named(values, message):
  given = config()
  for field, value in values.items():
    section, name = field.split('__')
    given[section][name] = value
  with pytest.raises(ValueError, match=message):
    config_lib.check(given)


def test_a_missing_opponent_is_named_before_a_model_is_loaded(tmp_path):
  given = config(rollout__opponents=f'frozen:{tmp_path}/none')
  with pytest.raises(FileNotFoundError, match=r"rollout.opponents='frozen:.*holds no checkpoint"):
    loop.train(given, tmp_path / 'run')
  given = config(rollout__opponents='frozen:gs://bucket/run')
  with pytest.raises(ValueError, match=r"opponents='frozen:gs://bucket/run': must be a folder"):
    loop.train(given, tmp_path / 'run')


def test_all_processes_take_the_opponents_that_the_first_one_finds(tmp_path, monkeypatch):
  """The opponents' run is in the home folder, and saves meanwhile."""
  monkeypatch.setenv('HOME', str(tmp_path))
  given = config_lib.resolve(config(rollout__opponents='frozen:~/other'))
  saves = Checkpoints(tmp_path / 'other' / 'checkpoints', given, keep=2)
  for step in (1, 2):
    saves.save(small_checkpoints.state(0.0, step))
  saves.wait()
  assert opponents.frozen_checkpoint(given).step == 2
  monkeypatch.setattr(hosts, 'agreed', lambda decide: 1)
  assert opponents.frozen_checkpoint(given).step == 1
