"""Tests word problems with misleading numbers."""

from __future__ import annotations

import random
import re

import pytest
from official_files import DATA, needs_data

from agent_gspo.tasks.dealt.misleading import misled, thing_asked, things_asked
from agent_gspo.tasks.grading import equations
from agent_gspo.tasks.registry import make_task
from agent_gspo.types import Question

MARBLES = (
  'Dan has 64 violet marbles. He gave Mary 14 of the marbles. How many marbles does Dan have now?'
)


def _problem(text: str, derivation: str = '', answer: str = '') -> Question:
  return Question('p', text, answer, derivation=derivation)


def _some(text: str, things=('pears',), derivation: str = '', count: int = 60) -> list[str]:
  problem = _problem(text, derivation, '50')
  found = [misled(problem, things, random.Random(seed)) for seed in range(count)]
  assert {(q.derivation, q.answer) for q in found if q} <= {(derivation, '50')}
  return [question.text for question in found if question is not None]


def test_another_thing_stands_beside_the_one_asked_for_or_in_a_sentence_of_its_own():
  asked = 'How many marbles does Dan have now?'
  kinds = set()
  for text in _some(MARBLES):
    others = [int(number) for number in re.findall(r'(\d+) pears', text)]
    assert others
    assert all(10 <= n <= 99 and n not in (14, 64) for n in others)  # of as many digits
    assert len(set(others)) == len(others)
    kinds.add(re.sub(r'\d+ pears', 'N pears', text))
  beside_first = ('64 violet marbles and N pears', 'N pears and 64 violet marbles')
  beside_second = ('14 of the marbles and N pears', 'N pears and 14 of the marbles')
  first, second = '64 violet marbles', '14 of the marbles'
  assert kinds <= {
    f'Dan has {a}. He gave Mary {b}. {asked}'
    for a in (first, *beside_first)
    for b in (second, *beside_second)
  } | {
    f'Dan has {first}. Dan has N pears. He gave Mary {second}. {asked}',
    f'Dan has {first}. He gave Mary {second}. He gave Mary N pears. {asked}',
  }
  assert len(kinds) > 6


@pytest.mark.parametrize(
  ('question', 'thing'),
  [
    ('How many marbles does Dan have now?', 'marbles'),
    ('How many more green marbles has he?', 'marbles'),
    ('If he lost 3, how many apples are left?', 'apples'),
    ('How many Skittles, in all, has she?', 'skittles'),
    ('How many dollars has he?', None),
    ('How many cups of flour does she need?', None),
    ('How many sheep are there?', None),
    ('How much does he weigh?', None),
    ('How many are left?', None),
    ('How many does he have?', None),
    ('How many?', None),
  ],
)
def test_the_thing_that_a_question_asks_for(question, thing):
  assert thing_asked(f'There are 12 hats. {question}') == thing


@pytest.mark.parametrize(
  'text',
  [
    'Dan has 64 marbles. He gave 14 to Mary. How many marbles does Dan have?',  # 14 of which?
    'Dan has 64 marbles. Then he found 5 more. How many marbles does Dan have?',
    'Dan has 64 hats. How many marbles does Dan have?',
    'Dan has sixty marbles. How many marbles does Dan have?',
    'Dan has 64 marbles. How many pounds do they weigh?',
    'Dan paid $64 for marbles. How many marbles did he get?',
  ],
)
def test_a_problem_in_which_another_thing_would_be_in_doubt_stays(text):
  assert _some(text) == []


def test_a_thing_that_the_problem_names_is_no_other_thing():
  assert _some(MARBLES, things=('marbles', 'violet')) == []
  texts = _some('Dan has 4 pears and 6 figs. How many figs are there?', ('pears', 'kites'))
  assert texts
  assert all(len(re.findall(r'\d pears', text)) == 1 for text in texts)


def test_a_constant_of_the_equation_is_never_the_number_of_another_thing():
  text = 'They sold 9 pies every day for a week. How many pies were sold?'
  numbers = {n for t in _some(text, derivation='( 9 * 7 )') for n in re.findall(r'(\d) pears', t)}
  assert numbers == set('234568')


def test_where_all_numbers_of_a_digit_are_taken_one_of_two_digits_is():
  text = 'Dan has ' + ' and '.join(f'{n} figs' for n in range(2, 10)) + '. How many figs are there?'
  for changed in _some(text):
    others = re.findall(r'(\d+) pears', changed)
    assert others
    assert all(len(number) == 2 for number in others)


def test_things_that_questions_ask_for():
  texts = (
    'He has 3 red kites and 5 figs. How many kites are there?',  # no number directly before kites
    'He has 5 figs and eats 2 figs. How many figs are left?',
    'He had 9 dollars. How many dollars are left?',
    'He has 7 cups. How many hats are there?',
  )
  assert things_asked(texts) == ['figs']


@needs_data
def test_misleading_copies_of_the_official_training_questions():
  """A sixth of SVAMP's copies at a share of 0.7, with what is said of other things for nothing."""
  plain, misleading = (
    make_task(
      'dealt',
      benchmark='svamp',
      whole_problem=True,
      redrawn_copies=1,
      misleading_share=s,
      data_dir=DATA,
    )
    for s in (0.0, 0.7)
  )
  pairs = list(zip(plain.questions('train'), misleading.questions('train'), strict=True))
  changed = [(a, b) for a, b in pairs if a.text != b.text]
  copies = sum(bool(a.story) for a, _ in pairs)
  assert 0.14 * copies < len(changed) < 0.28 * copies
  for a, b in changed:
    assert a.id == b.id
    assert b.story
    assert a.derivation == b.derivation
    said = lambda q: {int(n) for n in re.findall(r'(?<![\d.])\d+(?![\d.])', q.text)}
    tree = equations.from_infix(b.derivation)
    assert said(b) - said(a)
    assert tree is not None
    assert not (said(b) - said(a)) & equations.leaves(tree)
  for split in ('validation', 'test'):
    assert plain.questions(split) == misleading.questions(split)
