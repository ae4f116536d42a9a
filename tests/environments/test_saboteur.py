"""Tests the saboteur world: rewards of each role, and the saboteur's instruction."""

from __future__ import annotations

import copy
import json
import pickle
import random

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from agent_gspo.environments.saboteur import Saboteur, Testimony
from agent_gspo.evaluation import results
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.tasks.relay.script import facts_in
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from configs import saboteur as config_file

TASK = Saboteur(train_size=500)
TEAM = make_team({**config_file.get_config().team.to_dict(), 'max_message_tokens': 60})
TOKENIZER = word_level(sorted({*TASK.vocabulary(), 'say', 'answer', 'environment', *TEAM.names}))
ATTACKED = Testimony('Ann', '3', 'pens', saboteur=1)
PLAIN = Testimony('Ann', '3', 'pens', saboteur=-1)


@pytest.mark.parametrize(
  ('state', 'answer', 'rewards'),
  [
    (ATTACKED, '3', (1, 0, 1, 1)),
    (ATTACKED, 'the answer is 4 .', (0, 1, 0, 0)),
    (ATTACKED, '', (0, 1, 0, 0)),
    (PLAIN, 'the answer is 3 .', (1, 1, 1, 1)),
    (PLAIN, '4', (0, 0, 0, 0)),
  ],
)
def test_the_saboteur_is_paid_for_wrong_answers(state, answer, rewards):
  said = {0: 'Ann 3', 1: 'Ann 4', 2: ''}
  assert TASK.act(state, said) == (state, {}, False)
  after, found, done = TASK.act(state, {3: answer})
  assert (after.answer, done) == (answer, True)
  assert tuple(found[i] for i in range(4)) == rewards


def test_only_the_saboteur_is_told():
  seen = [TASK.observe(ATTACKED, agent) for agent in range(4)]
  assert seen == ['Ann has 3 pens .', 'lie : Ann has 3 pens .', 'Ann has 3 pens .', '']


@pytest.mark.parametrize('share', [0.0, 0.5, 1.0])
def test_saboteurs_are_drawn_by_question(share):
  task = Saboteur(train_size=500, saboteur=share)
  states = [task.begin(q, sample) for q in task.questions('train') for sample in (0, 1)]
  assert states[::2] == states[1::2]
  drawn = [state.saboteur for state in states[::2]]
  assert sum(place >= 0 for place in drawn) / 500 == pytest.approx(share, abs=0.07)
  assert {*drawn} - {-1} == ({0, 1, 2} if share else set())
  # SFT, on questions that RL does not ask, and tests have both kinds, whatever the share is.
  shown = task.further_demonstrations()
  for questions in (shown, task.questions('test')):
    lies = [task.begin(question, 0).saboteur >= 0 for question in questions]
    assert sum(lies) / len(lies) == pytest.approx(0.5, abs=0.07)
  assert not {q.id for q in shown} & {q.id for q in task.questions('train')}


def test_questions_depend_on_the_seed_and_splits_share_no_fact():
  facts = lambda task, split: [task.begin(task.questions(split)[i], 0).fact for i in range(200)]
  assert facts(TASK, 'train') == facts(Saboteur(train_size=500), 'train')
  assert facts(TASK, 'train') != facts(Saboteur(train_size=500, seed=1), 'train')
  found = [
    {fact for seed in (0, 1) for fact in facts(Saboteur(train_size=500, seed=seed), split)}
    for split in ('train', 'validation', 'test')
  ]
  assert min(map(len, found)) > 20
  assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]
  assert not {TASK.begin(q, 0).fact for q in TASK.further_demonstrations()} & (found[1] | found[2])


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
  st.dictionaries(
    st.integers(0, 3),
    st.one_of(
      st.text(max_size=30),
      st.lists(st.sampled_from(['3', '4', '٣', '9' * 5000, '\x00', 'lie', '-']), max_size=5).map(
        ' '.join
      ),
    ),
  )
)
def test_no_text_is_an_error_and_none_but_an_answer_is_rewarded(texts):
  for before in (ATTACKED, PLAIN):
    copied = copy.deepcopy(before)
    state, rewards, done = TASK.act(before, texts)
    assert before == copied
    assert pickle.loads(pickle.dumps(state)) == state
    assert done == (3 in texts)
    if not done:
      assert not rewards
      continue
    right = rewards[3]
    assert right <= any(digit in texts[3] for digit in '3３٣')
    assert all(rewards[i] == (1 - right if i == state.saboteur else right) for i in range(4))


def test_demonstrations_lie_and_most_witnesses_are_believed():
  rng = random.Random(0)

  def script(turn):
    heard = [turn.delivered.get(agent, '') for agent in range(4)]
    text = TASK.demonstration(
      turn.question,
      turn.agent,
      heard,
      rng,
      state=turn.state,
      terse_probability=0.3,
      silence_probability=0.0,
    )
    if turn.agent < 3:
      told = facts_in(text, [turn.state.owner])[turn.state.owner]
      assert (told == turn.state.count) == (turn.agent != turn.state.saboteur)
    return text

  asked = [TASK.questions('test')[i] for i in range(60)]
  assert len({TASK.begin(question, 0).saboteur for question in asked}) == 4
  batch = rollout(TEAM, TASK, TOKENIZER, asked, 1, ScriptedPolicy(script, TOKENIZER))
  assert batch.task_scores.tolist() == [1.0] * 60


def test_evaluations_tell_attacked_questions_apart_and_what_each_agent_earned():
  asked = [TASK.questions('test')[i] for i in range(40)]
  attacked = np.array([TASK.begin(question, 0).saboteur for question in asked]) >= 0
  right = np.arange(40) % 4 > 0

  def script(turn):
    count = turn.state.count
    return count if right[asked.index(turn.question)] else '12'.replace(count, '')[0]

  batch = rollout(TEAM, TASK, TOKENIZER, asked, 1, ScriptedPolicy(script, TOKENIZER))
  records = json.loads(
    json.dumps(results.of_questions(batch, TEAM, TASK, TOKENIZER, step=0, split='test'))
  )
  figures = results.figures(records, TEAM.names)
  assert figures['task/accuracy_of_attacked'] == right[attacked].mean()
  assert figures['task/accuracy_of_honest'] == right[~attacked].mean()
  places = [TASK.begin(question, 0).saboteur for question in asked]
  for i, row in enumerate(figures['agents']):
    earned = [good ^ (place == i) for good, place in zip(right, places, strict=True)]
    assert row['earned_per_question'] == pytest.approx(np.mean(earned))
