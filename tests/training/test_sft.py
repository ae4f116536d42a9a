"""Tests SFT: targets, stopping, resuming."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import shutil
import types

import flax.traverse_util
import jax
import micro_run
import numpy as np
import pytest

from agent_gspo.config import check as config_lib
from agent_gspo.models.io import hf
from agent_gspo.tasks import base
from agent_gspo.teams import addressing
from agent_gspo.training import setup as setup_lib
from agent_gspo.training import sft
from agent_gspo.training.demonstrations import Demonstrations
from agent_gspo.training.interruption import Interruption
from agent_gspo.training.options import SFTOptions
from agent_gspo.training.progress import Progress
from agent_gspo.types import Question, Terms
from agent_gspo.workdir import records
from agent_gspo.workdir.checkpoints import Checkpoints
from agent_gspo.workdir.writers import RunWriter, SilentWriter

ROUNDS = {
  'team__topology': 'complete',
  'team__rounds': 2,
  'team__roles__informant__incoming': ' {sender} : {message}',
  'learner__pack_length': 128,
}
"""Anybody can hear anybody, in two rounds."""


def build(**values) -> setup_lib.Setup:
  return setup_lib.build(config_lib.check(micro_run.changed(**values)))


def demonstrations(setup: setup_lib.Setup) -> Demonstrations:
  return Demonstrations(setup.task, setup.team, setup.tokenizer, setup.config, setup.term_sheet)


def go(setup, workdir, meet=lambda: None, progress=None):
  """Runs SFT from the newest checkpoint in a workdir to its end."""
  saves, interruption = Checkpoints(workdir / 'sft', setup.config), Interruption()
  interruption.meet = meet
  try:
    with contextlib.closing(RunWriter(workdir)) as writer:
      return sft.Stage(setup, saves, writer, interruption, progress or Seen()).imitate()[0]
  finally:
    saves.wait()


def stage_of(setup, folder) -> sft.Stage:
  saves = Checkpoints(folder, setup.config)
  return sft.Stage(setup, saves, SilentWriter(), Interruption(), Progress())


class Seen(Progress):
  """Records finished steps and notes."""

  def __init__(self):
    self.steps, self.notes = [], []

  def phase(self, name, done=None, total=None):
    self.steps.append((done, total))

  def note(self, text):
    self.notes.append(text)


def same(a, b) -> bool:
  flat = map(flax.traverse_util.flatten_dict, (a, b))
  return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, flat), strict=True))


def test_what_is_held_back_from_demonstrations_is_what_rl_asks():
  setup = build(sft__held_back=0.4, task__options__train_size=20)
  demonstrated = {q.id for q in demonstrations(setup).questions}
  asked = {q.id for q in setup.questions}
  assert demonstrated
  assert asked
  assert not demonstrated & asked
  assert demonstrated | asked == {q.id for q in setup.task.questions('train')}
  again = build(sft__held_back=0.4, task__options__train_size=20, seed=3)
  assert {q.id for q in again.questions} == asked


def test_the_decision_to_speak_weighs_more(tmp_path):
  """The first token of each informant's message, and of no other, has the weight."""

  def packed(setup):
    stage = stage_of(setup, tmp_path)
    return stage._micro_batches(stage.learner, stage.demonstrations.of_step(0)[0])

  heavy = build(sft__decision_weight=5.0)
  batch, before = packed(heavy)[0], packed(build())[0]
  assert before.token_weights is None
  shown, _ = demonstrations(heavy).shown(0)
  firsts = sorted(int(m.token_ids[0]) for m in shown if m.agent < 2)
  heavy_ids = batch.loss_target[(batch.token_weights == 5) & (batch.loss_mask > 0)]
  assert sorted(heavy_ids.tolist()) == firsts
  assert set(np.unique(batch.token_weights)) == {1.0, 5.0}


def test_copies_of_a_story_are_held_back_together():
  copies = [
    Question(id=f'{i}-{copy}' if copy else str(i), text='', answer='', story=str(i) if copy else '')
    for copy in range(3)
    for i in range(40)
  ]
  task = types.SimpleNamespace(questions=lambda split: copies, further_demonstrations=lambda: ())
  task.story = lambda question: base.Task.story(task, question)
  asked = base.asked(task, 0.5)
  stories = collections.Counter(q.id.split('-')[0] for q in asked)
  assert 8 < len(stories) < 32
  assert set(stories.values()) == {3}


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'sft__steps': 0, 'sft__held_back': 0.2}, 'needs SFT: set sft.epochs'),
    ({'sft__held_back': 0.001, 'task__options__train_size': 20}, 'that sft.held_back leaves to RL'),
    ({'sft__held_back': 0.999999, 'task__options__train_size': 20}, 'leaves no training question'),
  ],
)
def test_parts_of_the_training_split_that_are_too_small_are_refused(values, message):
  with pytest.raises(ValueError, match=message):
    config_lib.check(micro_run.changed(**values))


def test_an_epoch_shows_every_question_once_and_the_next_in_another_order():
  setup = build(sft__steps=0, sft__epochs=2.0, sft__questions=5, task__options__train_size=20)
  shown = demonstrations(setup)
  assert shown.steps == 8
  order = [shown._drawn(place) for place in range(40)]
  assert sorted(order[:20]) == sorted(order[20:]) == list(range(20))
  assert order[:20] != order[20:]
  part = {'sft__steps': 0, 'sft__epochs': 0.3, 'task__options__train_size': 20}
  assert demonstrations(build(**part, sft__questions=5)).steps == 2  # of 1.2


@pytest.mark.slow
def test_a_seed_of_its_own_shows_the_same_in_runs_of_any_seed():
  def shown(**seeds):
    messages, _ = demonstrations(build(sft__questions=50, **seeds)).of_step(0)
    return [m.path.tolist() for m in messages]

  assert shown(seed=0, sft__seed=3) == shown(seed=1, sft__seed=3) == shown(seed=3)
  assert shown(seed=0, sft__seed=3) != shown(seed=0)


@pytest.mark.slow
@pytest.mark.parametrize('share', [0.0, 0.25, 1.0])
def test_the_share_of_a_role_is_how_much_of_it_is_trained(share):
  setup = build(sft__questions=200, sft__role_shares={'informant': share})
  messages, left_out = demonstrations(setup).of_step(0)
  assert left_out == 0
  assert abs(len(messages) - (200 + share * 400)) <= (60 if 0 < share < 1 else 0)


def test_questions_with_unusable_demonstrations_are_left_out(monkeypatch):
  setup = build(sft__questions=8)
  task, real = setup.task, setup.task.demonstration
  odd = {setup.questions[demonstrations(setup)._drawn(i)].id: i for i in range(8)}

  def demonstration(question, agent, *arguments, **options):
    place = odd[question.id]
    if place < 2 and agent == 0:
      return 'has ' * 9  # the cap is 4
    if place == 2 and agent == 2:
      return None
    return real(question, agent, *arguments, **options)

  monkeypatch.setattr(task, 'demonstration', demonstration)
  messages, left_out = demonstrations(setup).of_step(0)
  assert len(messages) == 24 - 2 * 3 - 1
  assert left_out == pytest.approx(7 / 24)


def test_conversations_about_a_question_that_comes_twice_are_apart(monkeypatch):
  """Tests SFT of fewer questions than a step, and the end of an epoch."""
  setup = build(sft__questions=8)
  calls, heard = [], []

  def demonstration(question, agent, delivered, *_, **__):
    if agent < 2:
      calls.append(agent)
      return 'has' if calls.count(agent) == 1 else ''
    heard.append(tuple(delivered[:2]))
    return 'has'

  monkeypatch.setattr(setup.task, 'demonstration', demonstration)
  shown, _ = demonstrations(setup)._messages([setup.questions[0]] * 2, random.Random(0))
  assert heard == [('has', 'has'), ('', '')]  # not what was said in the first conversation
  assert [m.episode for m in shown].count(1) == 3


def test_under_a_cap_of_the_whole_episode_those_that_fit_are_shown(monkeypatch):
  setup = build(
    team__max_message_tokens=32,
    team__max_episode_tokens=12,
    learner__pack_length=128,
    sft__questions=30,
    sft__terse_probability=0.5,
  )
  drawn = random.Random(0)
  # Informants share the cap evenly: six tokens, the one that ends the message included.
  script = lambda *_, **__: 'has ' * drawn.choice([5, 6, 7, 8, 9])
  monkeypatch.setattr(setup.task, 'demonstration', script)
  shown, left_out = demonstrations(setup)._messages(setup.questions[:30], random.Random(0))
  informants = [m for m in shown if m.agent < 2]
  # Of eight draws none fits one in six times, and of two agents' for one question in three.
  assert {len(m.token_ids) for m in informants} == {6}
  assert 0 < left_out < 0.6


def test_its_moments_take_as_much_memory_as_those_of_training(tmp_path):
  setup = build(learner__b1_dtype='bfloat16')
  state = stage_of(setup, tmp_path).state
  dtypes = {x.dtype for x in jax.tree.leaves(state.opt_state) if x.ndim}
  assert dtypes == {np.dtype('float32'), jax.numpy.dtype('bfloat16')}


def test_small_shares_leave_no_step_empty_and_are_no_reason_to_refuse():
  setup = build(sft__questions=1, sft__role_shares={'solver': 1e-9, 'informant': 0})
  for step in range(3):
    messages, _ = demonstrations(setup).of_step(step)
    assert len(messages) == 1


@pytest.mark.slow
@pytest.mark.parametrize('share', [0.0, 0.5, 1.0])
def test_in_outspoken_conversations_idle_notes_are_heard_and_not_imitated(share):
  notes = {'num_informants': 2, 'num_irrelevant': 1}
  options = {f'task__options__{name}': value for name, value in notes.items()}
  options |= {'sft__silence_probability': 1.0, 'sft__outspoken_probability': share}
  messages, left_out = demonstrations(build(sft__questions=200, **options)).of_step(0)
  assert left_out == 0
  assert abs(len(messages) - (600 - share * 200)) <= (40 if 0 < share < 1 else 0)

  def longest_prompt(**values):
    solver_alone = {**options, 'sft__role_shares': {'informant': 0.0}, **values}
    messages, _ = demonstrations(build(sft__questions=50, **solver_alone)).of_step(0)
    return max(len(m.prompt_ids) for m in messages)

  heard = longest_prompt() - longest_prompt(sft__outspoken_probability=0.0)
  assert heard > 0 if share else heard == 0


@pytest.mark.parametrize('share', [0.0, 1.0])
def test_demonstrations_follow_the_price_that_is_told(share):
  words = ('nothing', 'little', 'much')
  told = {
    'budget__mode': 'conditioned',
    'budget__lambda_max': 0.01,
    'budget__told_words': words,
    'team__roles__informant__opening': '{price} : {question} note : {note}',
    'team__max_message_tokens': 16,
    'sft__terse_probability': 0.0,
    'sft__follows_terms': share,
  }
  shown = demonstrations(build(sft__questions=300, **told))
  lengths = []
  for price in words:
    priced = [
      dataclasses.replace(q, terms=Terms('price', 0.0, price)) for q in shown.questions[:300]
    ]
    messages, _ = shown._messages(priced, random.Random(0))
    lengths.append(np.mean([m.written for m in messages if m.agent < 2]))
  if share:
    assert lengths[0] > 1.2 * lengths[1] > 1.4 * lengths[2]
  else:
    assert len(set(lengths)) == 1


def test_sft_lowers_the_loss_and_records_it(tmp_path):
  setup = build(sft__steps=30, sft__save_every=10, sft__validation_questions=20)
  seen = Seen()
  go(setup, tmp_path, progress=seen)
  assert seen.steps == [(i, 30) for i in range(1, 31)]
  told = records.supervised(tmp_path)
  losses = [record['sft/loss_nats'] for record in told]
  assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
  validated = {record['step']: record for record in told if sft.VALIDATION in record}
  assert list(validated) == [10, 20, 30]
  assert validated[30][sft.VALIDATION] < validated[10][sft.VALIDATION]
  for role in ('informant', 'solver'):
    assert 0 < validated[30][f'{sft.VALIDATION}_{role}'] < 10


@pytest.mark.slow
def test_the_loss_of_a_frozen_role_is_measured_too(tmp_path):
  whole = build()
  hf.export_hf(whole.model.config, whole.params, tmp_path / 'm', whole.tokenizer)
  setup = build(
    model__source=f'hf:{tmp_path / "m"}',
    model__lora_rank=2,
    policy__sharing='mix',
    policy__frozen=('solver',),
    sft__steps=1,
    sft__validation_questions=4,
  )
  go(setup, tmp_path)
  (record,) = records.supervised(tmp_path)
  assert 0 < record[f'{sft.VALIDATION}_solver'] < 10


def test_it_goes_on_where_it_was_stopped(tmp_path):
  setup = build(sft__steps=6, sft__save_every=2)
  whole, cut, seen = go(setup, tmp_path / 'whole'), tmp_path / 'cut', Seen()

  def meet():
    if len(records.supervised(cut)) == 3:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    go(setup, cut, meet)
  with (cut / records.SFT).open('a') as file:  # of a step that was not saved
    file.write('{"step": 4}\nbroken\n')
  again = go(setup, cut, progress=seen)
  assert seen.notes == [
    f'{cut / records.SFT}: dropped 1 lines that held no whole record',
    'resumed from step 3 of SFT',
  ]
  assert [record['step'] for record in records.supervised(cut)] == [1, 2, 3, 4, 5, 6]
  assert same(whole, again)


class Patient:
  """Runs SFT with losses 3, 1, 2, 2: patience 2 ends it after the fourth, with the second."""

  def __init__(self, folder, monkeypatch):
    self.workdir = folder
    self.at = {}  # step -> parameters
    self.setup = build(
      sft__steps=40, sft__save_every=2, sft__validation_questions=4, sft__patience=2
    )
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.0}

    def validate(stage):
      step = int(stage.state.step)
      self.at[step] = jax.tree.map(np.asarray, stage.state.trainable)
      return {sft.VALIDATION: losses[step]}

    monkeypatch.setattr(sft.Stage, '_validate', validate)

  def go(self, stop: int | None = None):
    """Runs to the end, or until it is interrupted after a step."""

    def meet():
      if records.supervised(self.workdir)[-1]['step'] == stop:
        raise KeyboardInterrupt

    return go(self.setup, self.workdir, meet)


@pytest.mark.parametrize(
  'stops',
  [
    (),
    (5, 7),
    range(1, 9),
    *(pytest.param(stops, marks=pytest.mark.slow) for stops in ((7,), (4, 5, 6, 7, 8))),
  ],
)
def test_sft_ends_with_the_best_step_on_a_plateau(tmp_path, monkeypatch, stops):
  stage = Patient(tmp_path, monkeypatch)
  for stop in stops:
    with pytest.raises(KeyboardInterrupt):
      stage.go(stop)
  params = stage.go()
  assert [record['step'] for record in records.supervised(tmp_path)] == list(range(1, 9))
  assert same(params, flax.traverse_util.unflatten_dict(stage.at[4]))
  assert not same(params, flax.traverse_util.unflatten_dict(stage.at[8]))


@pytest.mark.slow
def test_a_missing_best_checkpoint_names_the_remedy(tmp_path, monkeypatch):
  stage = Patient(tmp_path, monkeypatch)
  with pytest.raises(KeyboardInterrupt):
    stage.go(stop=7)
  shutil.rmtree(tmp_path / 'sft' / '4')
  with pytest.raises(
    ValueError, match=r'sft\.patience=2: .* best step, 4, .* gone .* Remove .*: the'
  ):
    stage.go()


def test_demonstrations_that_no_message_can_hold(monkeypatch):
  parts = config_lib.check(micro_run.changed())
  monkeypatch.setattr(parts.task, 'demonstration', lambda *_, **__: 'has ' * 9)
  with pytest.raises(
    ValueError, match=r'sft: none of 4 questions .* Raise team\.max_message_tokens, team\.roles'
  ):
    setup_lib.build(parts)


def test_an_episode_without_turns_has_no_demonstration(monkeypatch):
  parts = config_lib.check(micro_run.changed())

  def nobody(talk):
    return ''
    yield

  monkeypatch.setattr(parts.task, 'converse', nobody)
  with pytest.raises(ValueError, match="task 'relay': no agent takes a turn"):
    setup_lib.build(parts)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'sft__epochs': 1.0}, r'sft\.steps=2 and sft\.epochs=1\.0 both set'),
    (
      {'sft__role_shares': {'judge': 1.0}},
      r'sft\.role_shares\.judge: role must be one of informant, solver',
    ),
    ({'sft__role_shares': {'solver': 2}}, r'sft\.role_shares\.solver=2 must be a number from 0'),
    ({'sft__role_shares': {'solver': 0, 'informant': 0}}, r'trains no role'),
    (
      {'sft__role_shares': {'informant': 0}, 'team__roles__solver__model': 'hf:frozen'},
      r"role_shares=\{'informant': 0\} trains no role",
    ),
    ({'sft__patience': 1}, r'sft\.patience=1 needs a validation loss: set sft\.validation_q'),
    ({'evaluation__untrained': 'last'}, r"untrained='last' with sft\.steps=2: the team"),
    (
      {'sft__validation_questions': 4, 'task__options__validation_size': 0},
      r"split 'validation' of task relay is empty",
    ),
  ],
)
def test_bad_options(values, message):
  with pytest.raises(ValueError, match=message):
    config_lib.check(micro_run.changed(**values))


@pytest.mark.parametrize(('epochs', 'steps'), [(1.1, 11), (1.11, 12), (1e-9, 1), (0.5, 5)])
def test_epochs_end_with_the_first_step_that_completes_them(epochs, steps):
  options = dataclasses.replace(SFTOptions(), epochs=epochs, questions=10)
  assert options.steps_of(100) == steps


@pytest.mark.parametrize('share', [0.0, 0.5, 1.0])
def test_demonstrations_call_some_of_those_who_could_hear_them(share):
  count = 40
  setup = build(
    **ROUNDS,
    team__addressing=True,
    team__max_message_tokens=8,
    sft__questions=count,
    sft__addressed_probability=share,
  )
  messages, left_out = demonstrations(setup).of_step(0)
  assert left_out == 0
  called = []
  for message in messages:
    names, body = addressing.split(setup.tokenizer.decode(message.token_ids.tolist()))
    assert body
    if hearers := setup.team.hearers(message.agent, message.round):
      called.append(names)
      assert set(names or ()) <= set(hearers)
    else:  # the solver in the last round
      assert names is None
  assert len(called) == 5 * count
  addressed = np.mean([names is not None for names in called])
  assert addressed == share if share in (0, 1) else 0.4 < addressed < 0.6
  assert {len(set(names)) for names in called if names} == ({1, 2} if share else set())


def test_addressed_demonstrations_need_a_team_that_addresses():
  with pytest.raises(
    ValueError, match=r'sft.addressed_probability=0.5 .* set team.addressing=True'
  ):
    build(sft__addressed_probability=0.5)


def test_who_answers_in_a_later_round_knows_what_it_was_told_before():
  setup = build(**ROUNDS)
  shown, heard = demonstrations(setup), {}

  def demonstration(question, agent, delivered, rng, **options):
    del rng, options
    turns = heard.setdefault((question.id, agent), [])
    turns.append(delivered[1])
    return '' if agent == 1 and len(turns) == 2 else 'has'

  setup.task.demonstration = demonstration
  shown.of_step(0)
  for (_, agent), told in heard.items():
    if agent == 2:
      assert told == ['has', 'has']  # though nothing was said in the second round


def test_who_is_told_what_is_left_of_a_budget_is_shown_messages_that_fit():
  told = {
    'budget__mode': 'target',
    'budget__lambda_tok': 0.0,
    'budget__budget_episode': 20.0,
    'budget__target_low': 5.0,
    'budget__target_high': 40.0,
    'budget__told_words': ('few', 'many'),
    'reward__length_reward': 'told_budget',
    'reward__length_reward_options': 'weight=0.9',
    'team__roles__informant__opening': '{budget} : {question} note : {note}',
    'team__max_message_tokens': 32,
    'learner__pack_length': 192,
    'sft__questions': 60,
    'sft__terse_probability': 0.3,
  }

  def missed(follows, cue):
    """Returns the mean distance of the last message from the tokens left."""
    setup = build(**told, sft__follows_terms=follows, team__roles__solver__cue=cue)
    messages, _ = demonstrations(setup).of_step(0)
    by_agent = np.zeros((3, 60))
    for message in messages:
      by_agent[message.agent, message.episode] = len(message.token_ids) - 1
    told_budgets = [q.terms.value for q in demonstrations(setup)._on_terms(setup.questions[:60], 0)]
    return np.abs(np.maximum(told_budgets - by_agent[:2].sum(axis=0), 0) - by_agent[2]).mean()

  assert missed(0.5, ' {left} answer :') < 0.7 * missed(0.5, ' answer :')
