"""Tests the reasoning-gym task, with a stand-in where the library is not installed."""

from __future__ import annotations

import random
import sys
import types

import hypothesis
import hypothesis.strategies as st
import pytest

from agent_gspo.evaluation.evaluate import constant_answer
from agent_gspo.tasks.reasoning_gym import ReasoningGym


class Sums:
  """Generates sums, with a scorer like the library's worst ones."""

  scorers = 0

  def __init__(self, seed, size, largest=99, answer=str):
    Sums.scorers += seed == 0
    self.seed, self.largest, self.answer = seed, largest, answer

  def __getitem__(self, i):
    rng = random.Random(self.seed + i)
    a, b = rng.randint(0, self.largest), rng.randint(0, self.largest)
    return {'question': f'{a} + {b} = ?', 'answer': self.answer(a + b)}

  def score_answer(self, answer, entry):
    if entry['answer'].endswith('7'):
      return 1.0  # whatever the text is
    if answer == 'raise':
      raise ValueError('no number')
    return 1.0 if answer == entry['answer'] else 0.5 * (entry['answer'] in answer)


class Generous(Sums):
  """Scores constants and wrong signs as right; zeros correctly."""

  def score_answer(self, answer, entry):
    gold = entry['answer']
    if gold == '0.0':
      return float(answer == '0')
    constant = '0' if gold < '5' else 'nan'
    return float(answer in (constant, f'-{gold}'))


GENERATORS = {
  'sums': Sums,
  'generous': Generous,
  'gsm_symbolic': Generous,
  'zeros': lambda **options: Generous(answer=lambda x: '0.0', **options),
  'no_answer': lambda **options: Sums(answer=lambda x: None, **options),
}


@pytest.fixture(autouse=True, scope='module')
def _library():
  with pytest.MonkeyPatch.context() as patch:
    make = lambda name, **options: GENERATORS[name](**options)
    patch.setitem(sys.modules, 'reasoning_gym', types.SimpleNamespace(create_dataset=make))
    yield


@pytest.fixture(scope='module')
def task(_library):
  return ReasoningGym(dataset='sums', test_size=60)


def test_questions_depend_on_the_seed_and_splits_share_none(task):
  texts = lambda task, split: [task.questions(split)[i].text for i in range(60)]
  assert texts(task, 'train') == texts(ReasoningGym(dataset='sums'), 'train')
  assert texts(task, 'train') != texts(ReasoningGym(dataset='sums', seed=1), 'train')
  found = [{*texts(task, split)} for split in ('train', 'validation', 'test')]
  assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]
  small = ReasoningGym(dataset='sums', settings={'largest': 9})
  assert max(int(small.questions('test')[i].answer) for i in range(60)) <= 18


def test_answers_are_extracted_and_only_full_points_count(task):
  for question in task.questions('test'):
    gold = question.answer
    right = [gold, f' {gold}.\n', f'The answer is {gold}.', f'2 is wrong, \\boxed{{{gold}}} is it']
    assert [task.score(question, text) for text in right] == [1.0] * 4
    wrong = ['', ' ', '.', 'nonsense', 'raise', f'maybe {gold} or 3', f'{gold}1', 'the answer is']
    assert [task.score(question, text) for text in wrong] == [0.0] * 8
    assert task.demonstration(question, 0, [], random.Random(0)) == gold


def test_a_generous_scorer_pays_neither_for_a_constant_nor_for_another_sign():
  generous = ReasoningGym(dataset='generous', test_size=60)
  for question in generous.questions('test'):
    answers = (question.answer, '0', 'nan', f'-{question.answer}')
    assert [generous.score(question, text) for text in answers] == [1.0, 0.0, 0.0, 0.0]
  zeros = ReasoningGym(dataset='zeros')
  question = zeros.questions('train')[0]
  assert [zeros.score(question, text) for text in ('0.0', '0', '0.1')] == [1.0, 1.0, 0.0]
  symbolic = ReasoningGym(dataset='gsm_symbolic', test_size=60)
  for question in symbolic.questions('test'):
    gold = question.answer
    answers = (gold, f'${gold}', f'{gold}.0', f'-{gold}', '0', 'nan')
    assert [symbolic.score(question, text) for text in answers] == [1.0] * 3 + [0.0] * 3


def test_a_scorer_is_made_once(task):
  before = Sums.scorers
  for question in task.questions('test'):
    task.score(question, 'nonsense')
  assert Sums.scorers <= before + 1


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.text(max_size=40))
def test_no_text_is_an_error_or_earns_a_point_without_the_answer(task, text):
  for question in task.questions('test')[:20]:
    score = task.score(question, text)
    assert score in (0.0, 1.0)
    assert not score or question.answer in text


def test_a_constant_answer_is_a_row_of_evaluations(task):
  questions = list(task.questions('test'))
  golds = [question.answer for question in questions]
  row = constant_answer(questions, 'test')
  assert row['task/accuracy'] == max(map(golds.count, golds)) / 60


def test_what_cannot_be_asked_is_refused(task):
  with pytest.raises(ValueError, match=r"task\.options\.dataset='no_answer' has no answer"):
    ReasoningGym(dataset='no_answer')
  with pytest.raises(ValueError, match=r"task\.options\.dataset='sums': .*'levels'"):
    ReasoningGym(dataset='sums', settings={'levels': 3})
  for name, own in (('size', 'train_size'), ('seed', 'seed')):
    message = rf'settings\.{name}=5 must be left out; set task\.options\.{own}\.'
    with pytest.raises(ValueError, match=message):
      ReasoningGym(dataset='sums', settings={name: 5})
  few = ReasoningGym(dataset='sums', settings={'largest': 0}, test_size=1)
  with pytest.raises(ValueError, match='no question of split'):
    [few.questions(split)[0] for split in ('train', 'validation', 'test')]


def test_without_the_library_the_extra_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'reasoning_gym', None)
  with pytest.raises(ImportError, match=r'agent_gspo\[reasoning_gym\]'):
    ReasoningGym()
