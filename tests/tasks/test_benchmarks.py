"""Tests benchmarks with official files: counts, splits, golds, near-duplicates."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from fractions import Fraction

import pytest
from loopback_server import serve
from official_files import DATA, digest, needs_data

from agent_gspo.tasks import base
from agent_gspo.tasks.benchmarks.competition_math import Math, Math500
from agent_gspo.tasks.benchmarks.multiple_choice import MMLU, AQuA
from agent_gspo.tasks.benchmarks.word_problems import (
  GSM8K,
  SVAMP,
  MultiArith,
  WordProblems,
  _number_text,
  _put_back,
)
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.draws import masked
from agent_gspo.tasks.data.near_duplicates import far_from
from agent_gspo.tasks.grading import answer_marks
from agent_gspo.tasks.registry import make_task
from agent_gspo.types import Question

TASKS = {task.name: task for task in (GSM8K, SVAMP, MultiArith, AQuA, MMLU, Math500, Math)}
# Questions in train, validation and test, and how many near-duplicates of the test were removed.
# They are part of every reported number: they must not move.
SIZES = {
  'gsm8k': (6934, 537, 1319, 2),
  'svamp': (2819, 306, 1000, 13),
  'multiarith': (280, 26, 175, 119),
  'aqua': (204, 50, 254, 0),
  'mmlu': (220, 54, 14042, 11),
  'math500': (8347, 469, 500, 71),
  'math': (4964, 294, 5000, 327),
}
DIGESTS = {
  'gsm8k': '6b75c0df58ad',
  'svamp': 'de6799979e1d',
  'multiarith': 'cc027f8993a2',
  'aqua': '17d03956d626',
  'mmlu': '28ce3e836f18',
  'math500': 'cd718dc41ee8',
  'math': '897c4f64c13b',
}


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
  cache = tmp_path_factory.mktemp('cache')
  return {name: make_task(name, data_dir=DATA, cache_dir=cache) for name in TASKS}


@pytest.fixture(scope='module')
def read():
  """Returns all questions of the official files with their splits, by task."""
  return {
    name: list(task.read(*(DATA / source.path for source in task.SOURCES)))
    for name, task in TASKS.items()
  }


def question(name, text, answer='1'):
  return Question(id=name, text=text, answer=answer)


# Near-duplicates.


def test_near_duplicates_by_hand():
  test = [question('t0', 'Ann has 3 pens and buys 4 more. How many pens has she now?')]
  train = [
    question('same', 'Ann has 3 pens and buys 4 more. How many pens has she now?'),
    question('numbers', 'ann has 31 pens, and buys 1,004 more: how many pens has she now'),
    # 14 tokens with the numbers as "#", 12 shingles, of which this word is in two: J = 10 / 14.
    question('a word', 'Ann has 3 pens and buys 4 more. How many pens has Ann now?'),
    question('half', 'Ann has 3 pens and gives away 4 of them to Bob and Tim. How many are left?'),
    question('none', 'What is the capital of France?'),
    question('empty', ''),
  ]
  assert [q.id for q in far_from(train, test)] == ['a word', 'half', 'none', 'empty']


def test_near_duplicates_see_through_the_looks_of_formulas():
  train = [question('a', r'Compute $\left( \dfrac{1}{2} \right)^2 + x.$')]
  assert far_from(train, [question('b', r'Compute \(( \frac{3}{4})^{5}+x.\)')]) == []
  assert far_from(train, [question('c', 'Compute $x.$')]) == train


# Counts and splits.


@needs_data
@pytest.mark.parametrize('name', TASKS)
def test_splits(name, tasks, read):
  """Checks sizes and overlap, and that only near-duplicates are removed."""
  found = {split: tasks[name].questions(split) for split in base.SPLITS}
  held_in = [q for split, q in read[name] if split != 'test']
  far = {q.id for q in far_from(held_in, [q for split, q in read[name] if split == 'test'])}
  assert (*map(len, found.values()), len(held_in) - len(far)) == SIZES[name]
  ids = {split: {q.id for q in questions} for split, questions in found.items()}
  assert ids['train'] | ids['validation'] == far
  assert len(set().union(*ids.values())) == sum(map(len, found.values()))
  seen = masked if issubclass(TASKS[name], WordProblems) else str
  texts = {split: {seen(q.text) for q in questions} for split, questions in found.items()}
  for one, other in itertools.combinations(base.SPLITS, 2):
    assert not texts[one] & texts[other]


# Questions and golds.


@needs_data
@pytest.mark.parametrize('name', TASKS)
def test_gold_is_right_by_its_own_grader(name, tasks):
  task = tasks[name]
  for split in base.SPLITS:
    for q in task.questions(split):
      assert task.score(q, q.answer) == 1, q
      assert q.text
      assert not re.search('number[0-9]', q.text)
  for q in task.questions('test')[:300]:
    assert task.score(q, f'So \\boxed{{{q.answer}}} it is.') == 1
    assert task.score(q, f'The answer is ${q.answer}$. That took 3 steps.') == 1
    assert task.score(q, '') == 0
    if issubclass(TASKS[name], WordProblems):
      assert task.score(q, str(Fraction(q.answer) + 1)) == 0
      assert ',' not in q.answer


@needs_data
def test_official_solutions_are_right(tasks):
  """Grades the worked solutions of MATH-500 as if a model had written them."""
  path = DATA / Math500.SOURCES[1].path
  solutions = [json.loads(line)['solution'] for line in path.read_text().splitlines()]
  found = tasks['math500'].questions('test')
  assert all(
    tasks['math500'].score(q, solution) == 1
    for q, solution in zip(found, solutions, strict=True)
    if next(answer_marks.boxed(solution), None)
  )


@needs_data
@pytest.mark.parametrize('name', TASKS)
def test_questions_stay_the_same_across_versions(name, tasks):
  assert digest(q for split in base.SPLITS for q in tasks[name].questions(split)) == DIGESTS[name]


def test_number_text():
  for written, number in (
    (39.0, '39'),
    ('25000.0', '25000'),
    ('2.5', '2.5'),
    ('387.85', '387.85'),
    ('0.8333333333333334', '5/6'),
    ('3.33333', '10/3'),
    ('16.153846153846153', '210/13'),
    ('-4.0', '-4'),
  ):
    assert _number_text(written) == number


def test_put_back():
  text = "Bo did n't pay $ number1 for number10 bite - size cakes , but Sue ’ s mom did ."
  numbers = ['0', '2.5', *'23456789', '11.0']
  assert _put_back(text, numbers) == (
    "Bo didn't pay $2.5 for 11 bite-size cakes, but Sue’s mom did."
  )


@needs_data
def test_svamp_training_file_holds_multiarith(tasks, read):
  """Counts what SVAMP's docstring warns about."""
  seen = {
    masked(q.text) for split in ('train', 'validation') for q in tasks['svamp'].questions(split)
  }
  assert sum(masked(q.text) in seen for _, q in read['multiarith']) >= 590


@needs_data
def test_the_grader_is_an_option(tmp_path):
  legacy = make_task('aqua', grader='legacy', data_dir=DATA, cache_dir=tmp_path)
  strict = make_task('aqua', data_dir=DATA, cache_dir=tmp_path)
  asked = question('q', 'What?', 'B')
  assert (strict.score(asked, 'B) 150 Km'), legacy.score(asked, 'B) 150 Km')) == (1, 0)
  assert (strict.canonical('B) 150 Km'), legacy.canonical('B) 150 Km')) == ('B', 'K')
  with pytest.raises(ValueError, match=r"options\.grader='loose' is unknown; use one of strict, "):
    make_task('aqua', grader='loose', data_dir=DATA, cache_dir=tmp_path)


# Files.


class FewSubjects(MMLU):
  SOURCES = (*MMLU.SOURCES[:2], *MMLU.SOURCES[57:59])


@needs_data
@pytest.mark.parametrize('task', [MultiArith, AQuA, FewSubjects])
def test_download_gives_the_same_task(task, tmp_path, monkeypatch):
  """MMLU's addresses hold another layout, which is rewritten before its hash is compared."""
  for source in task.SOURCES:
    content = (DATA / source.path).read_bytes()
    if source.rewrite is not None:
      content = with_header_and_indices(content)
    path = tmp_path / 'www' / source.urls('')[0].lstrip('/')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  local = task(data_dir=DATA, cache_dir=tmp_path / 'local')
  monkeypatch.delenv(sources.DATA_DIR_VARIABLE, raising=False)
  with serve(tmp_path / 'www') as address:
    fetched = task(cache_dir=tmp_path / 'cache', base_url=address)
  stored = task(cache_dir=tmp_path / 'cache', base_url='http://127.0.0.1:9')
  for split in base.SPLITS:
    for again in (fetched, stored):
      assert list(again.questions(split)) == list(local.questions(split))


def with_header_and_indices(content):
  rows = csv.reader(io.StringIO(content.decode(), newline=''))
  written = io.StringIO(newline='')
  csv.writer(written, lineterminator='\n').writerows(
    [
      ['question', 'choice0', 'choice1', 'choice2', 'choice3', 'answer'],
      *([*row[:5], 'ABCD'.index(row[5])] for row in rows),
    ]
  )
  return written.getvalue().encode()


@pytest.mark.parametrize('name', ['multiarith', 'mmlu'])
def test_a_task_without_its_files(name, tmp_path):
  (tmp_path / 'data').mkdir()
  options = {'cache_dir': tmp_path / 'cache', 'base_url': 'http://127.0.0.1:9'}
  for _ in range(2):  # nothing is left that a second try would take for finished
    with pytest.raises(FileNotFoundError, match=r'cannot get .*Remedy: put the file at <folder>'):
      make_task(name, data_dir=tmp_path / 'data', **options)
  path = tmp_path / 'data' / TASKS[name].SOURCES[0].path
  path.parent.mkdir(parents=True)
  path.write_bytes(b'[]')
  with pytest.raises(ValueError, match='but the official file'):
    make_task(name, data_dir=tmp_path / 'data', **options)
