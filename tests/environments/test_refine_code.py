"""Tests code refinement: results and rewards of programs, and trees of them."""

from __future__ import annotations

import types

import micro_run
import numpy as np
import pytest

from agent_gspo.config import check as config_lib
from agent_gspo.environments.refine_code import Program, RefineCode
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.train_step import train_step

TASK = RefineCode(train_size=40)
START = Program('x * 2 + 3', ('3', '5', '7', '9', '11'))
CONFIG = {
  'algorithm': 'grpo',
  'advantage__name': 'mars2',
  'task__name': 'refine_code',
  'task__options': {},
  'team__agents': ('solver',),
  'team__topology': 'single',
  'team__rounds': 2,
  'team__max_message_tokens': 8,
  'rollout__branches': 3,
  'reward__discount': 0.0,
  'learner__pack_length': 128,
}


@pytest.mark.parametrize(
  ('code', 'share', 'seen'),
  [
    ('x * 2 + 3', 1.0, '3 5 7'),
    ('2 * x + 3 # easy', 1.0, '3 5 7'),
    ('x * x + 3', 0.4, '3 4 7'),
    ('str ( x * 2 + 3 )', 0.0, 'error error error'),
    ('x * 2 + 3 if x < 3 else 1 / 0', 0.6, '3 5 7'),
    ('x *', 0.0, 'error error error'),
    ('print ( 3 , 5 , 7 )', 0.0, 'error error error'),
    ('__import__ ( "os" ) . _exit ( 0 )', 0.0, 'error error error'),
    ('x ** 9 ** 9', 0.0, '0 1 error'),
    ('0 ) ; f = lambda x : ( 2 * x + 3', 1.0, '3 5 7'),
  ],
)
def test_a_program_earns_the_share_of_its_tests(code, share, seen):
  state, earned, done = TASK.act(START, {0: code})
  assert (earned, done) == (share, share == 1)
  assert TASK.observe(START, 0) == '0 : 3 1 : 5 2 : 7'
  assert TASK.observe(state, 0) == f'0 : 3 1 : 5 2 : 7 ; {code} : {seen}'
  assert TASK.score(TASK.questions('test')[0], TASK.outcome(state)) == float(done)


def test_a_worse_program_costs_what_it_loses():
  state, *_ = TASK.act(START, {0: 'x * 2 + 3 if x < 3 else 1 / 0'})
  assert TASK.act(state, {0: 'x'})[1:] == (-0.6, False)
  assert TASK.act(state, {0: state.code})[1:] == (0.0, False)


def test_demonstrations_pass_and_splits_share_no_function():
  rng = np.random.default_rng(0)
  drawn = {split: {TASK.begin(q, 0) for q in TASK.questions(split)} for split in ('train', 'test')}
  assert not drawn['train'] & drawn['test']
  for state in sorted(drawn['train'])[:4]:
    written = TASK.demonstration(None, 0, (), rng, state=state, silence_probability=0.0)
    assert TASK.act(state, {0: written})[1:] == (1.0, True)
    assert set(written.split()) <= {*TASK.vocabulary()}


def test_the_better_program_is_refined():
  parts = config_lib.check(micro_run.changed(**CONFIG))
  tokenizer = word_level([*TASK.vocabulary(), 'answer', 'environment', 'solver'])
  question = TASK.questions('train')[0]
  state = TASK.begin(question, 0)
  says = [['x', 'x * x', state.gold.split()[-1]], ['x', state.gold, 'x +']]
  policy = ScriptedPolicy(lambda turn: says[turn.round][turn.branch], tokenizer)
  batch = rollout(parts.team, TASK, tokenizer, [question], 1, policy, branches=3)
  taken = [m for m in batch.messages if m.taken]
  assert (taken[1].text, batch.task_scores.tolist()) == (state.gold, [1.0])
  best = max(TASK.act(state, {0: text})[1] for text in says[0])
  assert best > 0
  assert [m.reward for m in taken] == [best, 1 - best]  # the rise, so that haste pays as well
  assert taken[1].told[0].startswith(f'{TASK.observe(state, 0)} ; {taken[0].text} :')


@pytest.mark.slow
def test_a_step_learns_from_a_tree_of_programs():
  setup = setup_lib.build(config_lib.check(micro_run.changed(**CONFIG)))
  learner = setup_lib.make_learner(setup)
  state = setup_lib.init_state(setup, setup.params)
  result = train_step(setup, learner, state, types.SimpleNamespace(phase=lambda *args: None))
  assert len(result.rollout.messages) > result.rollout.taken.sum() > 0
  assert np.isfinite(result.advantages).all()
