"""Tests word problems with redrawn numbers."""

from __future__ import annotations

import random
import re

import pytest
from official_files import DATA, needs_data

from agent_gspo.tasks.data.near_duplicates import shingles
from agent_gspo.tasks.dealt.redrawn import redrawn
from agent_gspo.tasks.grading import equations
from agent_gspo.tasks.registry import make_task
from agent_gspo.types import Question


def _problem(text: str, derivation: str, answer: str = '') -> Question:
  return Question('p', text, answer, derivation=derivation)


def _some(problem: Question, count: int = 50) -> list[Question]:
  found = [redrawn(problem, random.Random(seed)) for seed in range(count)]
  return [question for question in found if question is not None]


def test_text_equation_and_answer_change_together():
  problem = _problem('Ann has 42 pens in 7 bags. She lost 3 bags.', '( ( 42 / 7 ) * ( 7 - 3 ) )')
  found = _some(problem)
  assert len({question.text for question in found}) > 40
  for question in found:
    pens, bags, lost = map(int, re.findall('[0-9]+', question.text))
    assert question.text == f'Ann has {pens} pens in {bags} bags. She lost {lost} bags.'
    assert question.derivation == f'( ( {pens} / {bags} ) * ( {bags} - {lost} ) )'
    assert question.answer == str(pens // bags * (bags - lost))
    assert 10 <= pens <= 99
    assert 2 <= lost < bags <= 9  # what remains is positive, as it was
    assert pens % bags == 0  # and whole


@pytest.mark.parametrize(
  'kept',
  ['1 pen', 'the 3rd day', '20% of them', '20 percent', '1/2', '2.5 kg', '5:30', 'two', '07'],
)
def test_what_is_no_number_of_things_stays(kept):
  problem = _problem(f'He took {kept} and 34 figs, then 2 more.', '( 34 - 2 )')
  for question in _some(problem):
    assert f'He took {kept} and ' in question.text


def test_a_number_that_is_also_spelled_out_stays():
  problem = _problem('Two men have 2 hats and 34 figs.', '( 34 - 2 )')
  assert {q.derivation.split()[3] for q in _some(problem)} == {'2'}
  assert len({q.derivation.split()[1] for q in _some(problem)}) > 10


def test_constants_of_the_equation_stay():
  problem = _problem('She reads 12 pages a day. How many a week?', '( 12 * 7 )')
  for question in _some(problem):
    pages = int(re.findall('[0-9]+', question.text)[0])
    assert question.derivation == f'( {pages} * 7 )'
    assert question.answer == str(7 * pages)


@pytest.mark.parametrize(
  ('text', 'derivation'),
  [
    ('He has 5 figs and 6 pens.', ''),
    ('He has 5 figs and 6 pens.', 'a rationale of 5 + 6'),
    ('He has five figs and six pens.', '( 5 + 6 )'),
    ('He has 5 figs.', '( 5 / 0 )'),
  ],
)
def test_nothing_to_redraw(text, derivation):
  assert _some(_problem(text, derivation)) == []


@needs_data
@pytest.mark.parametrize(('name', 'share'), [('svamp', 0.85), ('multiarith', 0.95)])
def test_copies_of_the_official_training_questions(name, share):
  """Their stories are the originals', so what is far from a test stays far; all can be solved."""
  copies = 2
  plain, more = (
    make_task('dealt', benchmark=name, whole_problem=True, redrawn_copies=n, data_dir=DATA)
    for n in (0, copies)
  )
  originals = {question.id: question for question in plain.questions('train')}
  asked = more.questions('train')
  assert asked[: len(originals)] == plain.questions('train')
  added = asked[len(originals) :]
  assert len(added) > share * copies * len(originals)
  assert len({question.id for question in asked}) == len(asked)
  shown = 0
  for question in added:
    original = originals[question.story]
    assert shingles(question.text) == shingles(original.text)
    tree = equations.from_infix(question.derivation)
    assert tree is not None
    if chain := equations.chain(tree, question.answer):
      assert more.score(question, chain) == 1.0
      shown += 1
  assert shown > 0.97 * len(added)
  for split in ('validation', 'test'):
    assert more.questions(split) == plain.questions(split)
