"""AQuA, MMLU, MATH, MATH-500: counts, splits, golds, fetching; near-duplicates."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import pathlib

import pytest
from loopback_server import serve

from agent_gspo.tasks import base
from agent_gspo.tasks.benchmarks.competition_maths import Math, Math500
from agent_gspo.tasks.benchmarks.multiple_choice import MMLU, AQuA, with_options
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.near_duplicates import near_duplicates, without_near_duplicates
from agent_gspo.tasks.grading import answer_marks
from agent_gspo.tasks.registry import make_task, task_options
from agent_gspo.types import Question

TASKS = {task.name: task for task in (AQuA, MMLU, Math500, Math)}
DATA = os.environ.get(sources.DATA_DIR_VARIABLE, '')
needs_data = pytest.mark.skipif(
  not DATA
  or not all((pathlib.Path(DATA) / s.path).is_file() for t in TASKS.values() for s in t.SOURCES),
  reason=f'set ${sources.DATA_DIR_VARIABLE} to a folder with the official files',
)


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
  cache = tmp_path_factory.mktemp('cache')
  return {name: make_task(name, data_dir=DATA, cache_dir=cache) for name in TASKS}


@pytest.fixture(scope='module')
def read():
  """All questions of the official files, by task and split."""
  return {
    name: task.read(*(pathlib.Path(DATA) / source.path for source in task.SOURCES))
    for name, task in TASKS.items()
  }


def sizes(splits):
  return tuple(len(splits[split]) for split in base.SPLITS)


def question(name, text, answer='1'):
  return Question(id=name, text=text, answer=answer)


# Near-duplicates.


def test_near_duplicates_by_hand():
  test = [question('t0', 'Ann has 3 pens and buys 4 more. How many pens has she now?')]
  train = [
    question('same', 'Ann has 3 pens and buys 4 more. How many pens has she now?'),
    question('numbers', 'ann has 31 pens, and buys 1,004 more: how many pens has she now'),
    question('a word', 'Ann has 3 pens and buys 4 more. How many pens has Ann now?'),
    question('half', 'Ann has 3 pens and gives away 4 of them to Bob and Tim. How many are left?'),
    question('none', 'What is the capital of France?'),
    question('empty', ''),
  ]
  # 14 tokens with the numbers as "#", 12 shingles; the word changed is in two of them.
  found = {pair[0].id: pair[2] for pair in near_duplicates(train, test, threshold=0.5)}
  assert found == {'same': 1.0, 'numbers': 1.0, 'a word': pytest.approx(10 / 14)}
  assert {pair[0].id for pair in near_duplicates(train, test)} == {'same', 'numbers'}
  splits = {'train': train[:2], 'validation': train[1:], 'test': test}
  left = without_near_duplicates(splits)
  assert {split: [q.id for q in found] for split, found in left.items()} == {
    'train': [],
    'validation': ['a word', 'half', 'none', 'empty'],
    'test': ['t0'],
  }


def test_near_duplicates_see_through_the_looks_of_formulas():
  pair = near_duplicates(
    [question('a', r'Compute $\left( \dfrac{1}{2} \right)^2 + x.$')],
    [question('b', r'Compute \(( \frac{3}{4})^{5}+x.\)'), question('c', 'Compute $x.$')],
  )
  assert [(a.id, b.id, j) for a, b, j in pair] == [('a', 'b', 1.0)]


@needs_data
@pytest.mark.parametrize(
  ('name', 'dropped'), [('aqua', 0), ('mmlu', 11), ('math500', 71), ('math', 327)]
)
def test_near_duplicates_are_taken_out_and_nothing_else(name, dropped, tasks, read):
  held_in = [*read[name]['train'], *read[name]['validation']]
  near = near_duplicates(held_in, read[name]['test'])
  assert len(near) == dropped
  kept = {q.id for split in ('train', 'validation') for q in tasks[name].questions(split)}
  assert kept == {q.id for q in held_in} - {q.id for q, _, _ in near}


# Counts and splits.


@needs_data
def test_counts_and_hashes_are_the_manifest_s(tasks, read):
  manifest = {
    entry['path']: entry for entry in json.loads((pathlib.Path(DATA) / 'MANIFEST.json').read_text())
  }
  for task in TASKS.values():
    for source in task.SOURCES:
      assert source.sha256 == manifest[source.path]['sha256']

  def records(task, part):
    return sum(manifest[s.path]['records'] for s in task.SOURCES if part in s.path)

  assert len(MMLU.SOURCES) == 114
  for task, held_in, test in ((AQuA, 'dev', 'test'), (MMLU, 'dev/', 'test/')):
    train, validation, tested = sizes(read[task.name])
    assert (train + validation, tested) == (records(task, held_in), records(task, test))
  train, validation, tested = sizes(read['math500'])
  # Two have no answer, one stands there twice.
  assert train + validation == records(Math500, 'train') - 3 == 8887
  assert tested == records(Math500, 'math500') == 500
  train, validation, tested = sizes(read['math'])
  assert (train + validation, tested) == (5585, records(Math, 'test'))
  # The cut is part of every reported number: it must not move.
  assert {
    name: sizes({s: task._split(s) for s in base.SPLITS}) for name, task in tasks.items()
  } == {
    'aqua': (204, 50, 254),
    'mmlu': (220, 54, 14042),
    'math500': (8347, 469, 500),
    'math': (4964, 294, 5000),
  }


@needs_data
@pytest.mark.parametrize('name', TASKS)
def test_splits_are_disjoint(name, tasks):
  ids = {s: {q.id for q in tasks[name].questions(s)} for s in base.SPLITS}
  assert [len(ids[s]) for s in base.SPLITS] == [len(tasks[name].questions(s)) for s in base.SPLITS]
  texts = {s: {q.text for q in tasks[name].questions(s)} for s in base.SPLITS}
  for one, other in itertools.combinations(base.SPLITS, 2):
    assert not ids[one] & ids[other]
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
  for q in task.questions('test')[:300]:
    assert task.score(q, f'So \\boxed{{{q.answer}}} it is.') == 1
    assert task.score(q, f'The answer is ${q.answer}$. That took 3 steps.') == 1
    assert task.score(q, '') == 0


@needs_data
def test_official_solutions_are_right(tasks):
  """The worked solutions of MATH-500, graded as if a model had written them."""
  path = pathlib.Path(DATA) / Math500.SOURCES[1].path
  solutions = [json.loads(line)['solution'] for line in path.read_text().splitlines()]
  found = tasks['math500'].questions('test')
  assert all(
    tasks['math500'].score(q, solution) == 1
    for q, solution in zip(found, solutions, strict=True)
    if next(answer_marks.boxed(solution), None)
  )


@needs_data
def test_known_questions(tasks):
  first = tasks['aqua'].questions('test')[0]
  assert first.id == 'aqua-test-0'
  lines = first.text.split('\n')
  assert [line[:3] for line in lines[-5:]] == ['A) ', 'B) ', 'C) ', 'D) ', 'E) ']
  mmlu = tasks['mmlu'].questions('test')[0]
  assert (mmlu.id, mmlu.answer) == ('mmlu-abstract_algebra_test-0', 'B')
  assert mmlu.text.endswith('\nA) 0\nB) 4\nC) 2\nD) 6')
  assert tasks['math500'].questions('test')[0].id == 'math-test/precalculus/807'
  assert tasks['mmlu'].constant_answer_accuracy('test') == pytest.approx(0.2689, abs=1e-3)
  assert tasks['aqua'].constant_answer_accuracy('test') == pytest.approx(63 / 254)


def test_options_are_lettered():
  assert with_options('What?', ['x', 'y']) == 'What?\nA) x\nB) y'


# Graders as an option.


@needs_data
def test_the_grader_is_an_option(tmp_path):
  assert task_options('aqua')['grader'] == 'strict'
  legacy = make_task('aqua', grader='legacy', data_dir=DATA, cache_dir=tmp_path)
  strict = make_task('aqua', data_dir=DATA, cache_dir=tmp_path)
  asked = question('q', 'What?', 'B')
  assert (strict.score(asked, 'B) 150 Km'), legacy.score(asked, 'B) 150 Km')) == (1, 0)
  assert (strict.canonical('B) 150 Km'), legacy.canonical('B) 150 Km')) == ('B', 'K')
  with pytest.raises(ValueError, match=r"grader='loose' of task aqua is unknown; use \['strict'"):
    make_task('aqua', grader='loose', data_dir=DATA, cache_dir=tmp_path)


# Fetching.


def put(folder, path, content):
  (folder / path).parent.mkdir(parents=True, exist_ok=True)
  (folder / path).write_bytes(content)


class FewSubjects(MMLU):
  SOURCES = (*MMLU.SOURCES[:2], *MMLU.SOURCES[57:59])


@needs_data
@pytest.mark.parametrize('task', [AQuA, FewSubjects])
def test_download_gives_the_same_task(task, tmp_path, monkeypatch):
  """MMLU's addresses hold another layout, which is rewritten before its hash is compared."""
  for source in task.SOURCES:
    content = (pathlib.Path(DATA) / source.path).read_bytes()
    if source.rewrite is not None:
      content = with_header_and_indices(content)
    put(tmp_path / 'www', source.urls('')[0].lstrip('/'), content)
  local = task(data_dir=DATA, cache_dir=tmp_path / 'local')
  monkeypatch.delenv(sources.DATA_DIR_VARIABLE)
  with serve(tmp_path / 'www') as address:
    fetched = task(cache_dir=tmp_path / 'cache', base_url=address)
  for split in base.SPLITS:
    assert list(fetched.questions(split)) == list(local.questions(split))


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


@pytest.mark.parametrize('name', TASKS)
def test_a_task_without_its_files(name, tmp_path):
  (tmp_path / 'data').mkdir()
  with pytest.raises(FileNotFoundError, match=r'cannot get m?.*Remedy: put the file at <folder>/'):
    make_task(
      name, data_dir=tmp_path / 'data', cache_dir=tmp_path / 'c', base_url='http://127.0.0.1:9'
    )
