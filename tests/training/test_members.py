"""Tests teams of several models: vocabularies, frozen members, prices, errors."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import jax
import micro_models
import micro_run
import numpy as np
import pytest
import tiny
from raw_endpoint import reply, replying

from agent_gspo.algorithms.advantages.inputs import Advantage
from agent_gspo.config import check as config_lib
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.rewards.communication import message_costs
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.roles import Role
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.collect import collect
from agent_gspo.training.demonstrations import Demonstrations
from agent_gspo.training.progress import Progress
from agent_gspo.training.train_step import train_step


def built(solver: str = '', **values) -> setup_lib.Setup:
  """Returns the micro run's setup with a separate model for its solver."""
  config = micro_run.changed(**values)
  config['team']['roles']['solver']['model'] = solver
  return setup_lib.build(config_lib.check(config))


@pytest.fixture(scope='module')
def permuted() -> str:
  return micro_models.source(permuted=True)


def test_the_same_model_in_another_vocabulary_writes_the_same_team_talk(permuted):
  talks = []
  for solver in ('', permuted):
    setup = built(solver, rollout__temperature=1e-6)
    state = setup_lib.init_state(setup, setup.params)
    talks.append(collect(setup, state, Progress())[0])
  alone, mixed = talks
  assert mixed.text == alone.text
  assert len({*mixed.text}) > 2
  pairs = zip(mixed.messages, alone.messages, strict=True)
  of_solver = [(m, a) for m, a in pairs if m.agent == 2]
  assert any(not np.array_equal(m.prompt_ids, a.prompt_ids) for m, a in of_solver)
  assert all(m.learns == (m.agent < 2) for m in mixed.messages)
  assert mixed.read.tolist() == alone.read.tolist()


def test_a_step_trains_the_others_alone_and_begins_at_ratio_one(permuted):
  setup = built(permuted, learner__minibatches=1)
  learner, state = setup_lib.make_learner(setup), setup_lib.init_state(setup, setup.params)
  before = jax.tree.map(np.asarray, state.trainable)
  result = train_step(setup, learner, state, Progress())
  solver = result.rollout.agent == 2
  assert not result.advantages[solver].any()
  # No id of the other vocabulary is scored.
  assert result.metrics['policy/sampler_trainer_diff_max'] < 1e-3
  assert result.metrics['policy/ratio_first_minibatch_error_max'] < 1e-3
  changed = jax.tree.map(
    lambda a, b: not np.array_equal(a, b), before, dict(result.state.trainable)
  )
  assert any(jax.tree.leaves(changed))
  ones = np.ones(len(solver), np.float32)
  minibatches = learner.pack(result.rollout, Advantage(values=ones, kept=ones), 0)
  packed = list(itertools.chain(*minibatches))
  slots = {int(m) for b in packed for m in b.message[b.message_mask > 0]}
  assert slots == {m for m, agent in enumerate(result.rollout.agent) if agent < 2}


def test_demonstrations_are_read_in_the_readers_vocabulary_and_only_own_ones_imitated(permuted):
  setup = built(permuted)
  parts = (setup.task, setup.team, setup.tokenizer, setup.config, setup.term_sheet)
  shown, left_out = Demonstrations(*parts).shown(0)
  assert {m.agent for m in shown} == {0, 1}
  assert left_out == 0


def _message(ids, text):
  return dataclasses.replace(tiny.message([0], [*ids]), text=text, ended=False)


def test_a_word_that_the_reader_lacks_is_left_out_and_a_long_text_cut():
  ours, theirs = word_level(['red', 'blue', 'two']), word_level(['two', 'red'])
  author, reader = (PromptWriter(Role('x'), tokenizer) for tokenizer in (ours, theirs))
  ids = ours.encode('red blue two')
  said = _message(ids, 'red blue two')
  assert theirs.decode(author.said(said, 4, reader)) == 'red two'
  assert author.said(said, 4, author).tolist() == ids
  long = _message(ours.encode('two ' * 9), 'two ' * 9)
  assert len(author.said(long, 2, reader)) == author.longest_said(2, reader) == 4


def test_a_member_behind_an_endpoint_answers_and_carries_no_loss():
  with replying(lambda prompt: (200, reply('2'))) as (address, prompts):
    setup = built(f'endpoint:{address}#dear')
    state = setup_lib.init_state(setup, setup.params)
    batch = collect(setup, state, Progress())[0]
  assert {a.strip() for a in batch.answers} == {'2'}
  assert all('answer :' in prompt for prompt in prompts)
  assert all(m.learns == (m.agent < 2) for m in batch.messages)


def test_tokens_of_a_dearer_agent_cost_more():
  setup = built()
  batch = collect(setup, setup_lib.init_state(setup, setup.params), Progress())[0]
  plain, dear = (
    message_costs(RewardOptions(prices=prices), batch) for prices in ({}, {'solver': 3.5})
  )
  np.testing.assert_allclose(dear, np.where(batch.agent == 2, 3.5, 1.0) * plain)


@pytest.mark.parametrize(
  ('solver', 'values', 'message'),
  [
    ('random:micro', {}, r"roles\.solver\.model='random:micro' has no weights"),
    ('micro', {}, r"roles\.solver\.model='micro' is not of the form"),
    ('endpoint:http://h/v1', {}, r'names no model; write endpoint:http://h/v1#<its name>'),
    ('endpoint:http://a:b@h/v1#m', {}, r'roles\.solver\.model holds a user, a password'),
    (
      'endpoint:http://h/v1#m',
      {'advantage__name': 'worth', 'advantage__costs': 'inside'},
      r"model='endpoint:http://h/v1#m': endpoints cannot score gold answers",
    ),
    (
      'hf:x',
      {
        'advantage__name': 'worth',
        'advantage__costs': 'inside',
        'advantage__options': {'imitation': 0.1},
      },
      r"imitation=0.1: 'solver' imitates gold answers, but does not learn",
    ),
    ('', {'reward__prices': {'solver': -1}}, r'reward\.prices holds -1; must be numbers, 0 or'),
    (
      '',
      {'reward__prices': {'judge': 2}},
      r"reward\.prices=\{'judge': 2\} must be names of agents",
    ),
  ],
)
def test_refusals(solver, values, message):
  with pytest.raises(ValueError, match=message):
    built(solver, **values)


def test_a_team_of_frozen_models_alone_is_refused(tmp_path: pathlib.Path):
  config = micro_run.changed()
  for role in config['team']['roles'].values():
    role['model'] = f'hf:{tmp_path}'
  with pytest.raises(ValueError, match='is set for every agent'):
    config_lib.check(config)
