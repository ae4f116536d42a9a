"""Tests the memory world: visits, notes, search, rewards."""

from __future__ import annotations

import copy
import pickle
import random
import re

import hypothesis
import hypothesis.strategies as st
import pytest

from agent_gspo.environments.memory import Memory, Visits
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from agent_gspo.types import Question
from configs import memory as config_file

TASK = Memory(facts=3, asked=2, chatter=2)
OWN = Memory(rewards='own', asked=2)
BEGUN = Visits(
  visits=('Ann has 3 pens .', 'It is cold .', 'Kim has 4 pens .'),
  facts={'Ann': '3', 'Kim': '4', 'Bob': '1'},
  asked=('Ann', 'Kim'),
)


def play(task: Memory, state: Visits, texts: list[str]):
  """Returns state, rewards and `done` after these texts."""
  for text in texts:
    assert [i for i in range(3) if task.observe(state, i) is not None] == [state.agent]
    state, rewards, done = task.act(state, {state.agent: text})
  return state, rewards, done


@pytest.mark.parametrize(
  ('texts', 'found', 'shared', 'own'),
  [
    # Silence keeps no note; a search finds the notes that name an owner.
    (['Ann 3', '', 'Kim 4', 'Ann Kim', '7'], 'Ann 3 ; Kim 4', 1.0, (1.0, 1.0, 1.0)),
    (['Ann 3', 'cold', 'Kim 4', 'look for Ann', '7'], 'Ann 3', 1.0, (1.0, 0.5, 1.0)),
    (['Ann 3', 'cold', '', 'Ann Kim', '5'], 'Ann 3', 0.0, (0.5, 1.0, 0.0)),
    (['Ann 3', '', 'and Kim has 4 .', 'Bob', ''], '', 0.0, (1.0, 0.0, 0.0)),
    # The last number after a name counts, so that naming all of them earns nothing.
    (['Ann 3', '', 'Kim 1 2 3 4 5', 'Kim', '5'], 'Kim 1 2 3 4 5', 0.0, (0.5, 0.0, 0.0)),
    (['Ann 3 Ann 2', '', '3 4', 'Ann 3', '3 4'], 'Ann 3 Ann 2', 0.0, (0.0, 0.0, 0.0)),
    (['Ann 3', 'floor 2', 'Kim 4', 'Kim Ann', '7'], 'Ann 3 ; Kim 4', 1.0, (1.0, 1.0, 1.0)),
    # Names are read with any punctuation, as facts are.
    (
      ['Ann: 3', '', 'Kim - 4', 'Who knows of "Ann"? And Kim?', '7'],
      'Ann: 3 ; Kim - 4',
      1.0,
      (1.0, 1.0, 1.0),
    ),
    (['', '', '', '', ''], '', 0.0, (0.0, 0.0, 0.0)),
  ],
)
def test_notes_are_kept_found_and_paid_for(texts, found, shared, own):
  state, rewards, done = play(OWN, BEGUN, texts)
  assert (done, ' ; '.join(state.found), OWN.outcome(state)) == (True, found, texts[-1])
  assert tuple(rewards[i] for i in range(3)) == own
  assert play(TASK, BEGUN, texts) == (state, shared, True)
  before, *_ = play(TASK, BEGUN, texts[:-1])
  assert TASK.observe(before, 2) == found


def test_questions_depend_on_the_seed_and_splits_share_none():
  drawn = lambda task, split: [
    task.begin(task.questions(split)[i], sample) for i in range(100) for sample in (0, 1)
  ]
  first = drawn(TASK, 'train')
  assert first == drawn(Memory(facts=3, asked=2, chatter=2), 'train')
  assert first[::2] == first[1::2]
  assert first != drawn(Memory(facts=3, asked=2, chatter=2, seed=1), 'train')
  content = lambda state: (frozenset(state.facts.items()), frozenset(state.asked))
  found = [
    {content(state) for seed in (0, 1) for state in drawn(Memory(seed=seed), split)}
    for split in ('train', 'validation', 'test')
  ]
  assert min(map(len, found)) > 50
  assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]


def test_the_answer_is_in_the_visits_and_not_in_what_the_finder_reads():
  for question in (TASK.questions('test')[i] for i in range(50)):
    state = TASK.begin(question, 0)
    assert len(state.visits) == 5
    facts = {visit.split()[0]: visit.split()[2] for visit in state.visits if ' has ' in visit}
    assert state.facts.items() <= facts.items()
    assert sum(int(facts[owner]) for owner in state.asked) == int(question.answer)
    assert all(owner in question.text.split() for owner in state.asked)
    assert not question.notes
    assert not {*question.text.split()} & {*facts.values()}


_WORDS = st.sampled_from(['Ann', 'Kim', '3', '4', '7', '٣', '²', '9' * 5000, '\x00', 'has', '.'])
_TEXTS = st.one_of(st.text(max_size=30), st.lists(_WORDS, max_size=8).map(' '.join))


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.lists(st.tuples(st.integers(0, 3), _TEXTS), min_size=5, max_size=5))
def test_no_text_is_an_error_and_only_the_facts_are_rewarded(turns):
  for task in (TASK, OWN):
    state = BEGUN
    for agent, text in turns:  # often not the agent whose turn it is
      before = pickle.dumps(state)
      now, rewards, done = task.act(state, {agent: text})
      assert pickle.dumps(state) == before
      state = pickle.loads(pickle.dumps(now))
      assert state == now == copy.deepcopy(now)
    assert done
    assert {*state.found} <= {*state.notes}
    right = task.score(Question('', '', '7'), state.answer)
    if task is TASK:
      assert rewards == right
      continue
    words = [word for note in state.notes for word in re.findall(r'\w+', note)]
    known = [owner for owner in 'Ann Kim'.split() if owner in words]
    assert rewards[0] <= len(known) / 2
    assert rewards[1] <= (rewards[0] > 0)
    assert rewards[2] == right


@pytest.mark.parametrize('options', [{}, {'asked': 2}, {'facts': 6, 'asked': 3}])
def test_demonstrations_solve_it(options):
  task = Memory(rewards='own', **options)
  config = config_file.get_config().team.to_dict()
  team = make_team({**config, 'rounds': task.facts + 1, 'max_message_tokens': 60})
  rng = random.Random(0)

  def script(turn):
    text = task.demonstration(
      turn.question,
      turn.agent,
      [],
      rng,
      state=turn.state,
      terse_probability=0.3,
      silence_probability=0.5,
    )
    assert not tokenizer.unknown_words(text)
    return text

  words = {*task.vocabulary(), 'note', 'find', 'answer', ':', 'environment', *team.names}
  tokenizer = word_level(sorted(words))
  asked = [task.questions('test')[i] for i in range(50)]
  batch = rollout(team, task, tokenizer, asked, 1, ScriptedPolicy(script, tokenizer))
  assert batch.task_scores.tolist() == [1.0] * 50
  assert sum(m.reward for m in batch.messages) == 150
  assert any(m.silent for m in batch.messages)


def test_what_is_not_drawn_is_refused():
  with pytest.raises(ValueError, match="question 'asked-1' has no world"):
    TASK.begin(Question('asked-1', 'How many ?', ''), 0)
  with pytest.raises(ValueError, match=r'task\.options\.asked=3 must be at most .*facts=2'):
    Memory(facts=2, asked=3)
  with pytest.raises(ValueError, match=r'task\.options\.facts=11 '):
    Memory(facts=11)
