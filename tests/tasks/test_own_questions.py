"""Tests questions from a user's own file."""

from __future__ import annotations

import json
import random
import sys

import micro_run
import pytest

from agent_gspo.config import check as config_lib
from agent_gspo.tasks.options import SPLITS
from agent_gspo.tasks.registry import make_task
from agent_gspo.training import run_evaluations, sft
from agent_gspo.training import setup as setup_lib

ROWS = [
  {'question': f'How many has {name} ?', 'answer': n, 'notes': [f'{name} {n}', 'Bob 1']}
  | {'relevant': [True, False]}
  for n, name in enumerate(['Ann', 'Carl', 'Dora', 'Emil', 'Fred', 'Gina', 'Hugo', 'Ines'] * 8)
]


def _file(folder, rows=ROWS, name='own.jsonl'):
  path = folder / name
  path.write_text(rows if isinstance(rows, str) else '\n'.join(map(json.dumps, rows)))
  return str(path)


def test_the_fields_of_a_line(tmp_path):
  task = make_task('questions', file=_file(tmp_path))
  every = [question for split in SPLITS for question in task.questions(split)]
  assert len({question.id for question in every}) == len(ROWS)
  first = next(question for question in every if question.id == '1')
  assert (first.text, first.answer) == ('How many has Ann ?', '0')
  assert (first.notes, first.relevant) == (('Ann 0', 'Bob 1'), (True, False))
  assert task.score(first, 'The answer is 0.') == 1.0
  assert task.score(first, '3') == 0.0
  assert task.canonical('it is 0') == '0'
  again = make_task('questions', file=_file(tmp_path, ROWS[::-1]))  # a split is drawn by text
  texts = lambda task, split: {(q.text, q.notes) for q in task.questions(split)}
  assert all(texts(again, split) == texts(task, split) for split in SPLITS)


def test_who_has_no_note_of_a_question_writes_none(tmp_path):
  notes = [['a', 'b'], ['a', 'b', 'c', '']]
  rows = [
    {**ROWS[0], 'notes': own, 'relevant': [], 'split': 'train', 'id': str(len(own))}
    for own in notes
  ]
  task = make_task('questions', file=_file(tmp_path, rows))
  for question, last in zip(task.questions('train'), ('', 'c'), strict=True):
    said = [
      task.demonstration(question, agent, (), random.Random(0), silence_probability=0.0)
      for agent in range(4)
    ]
    assert said == ['a', 'b', last, question.answer]


def test_a_table_with_names_of_its_own(tmp_path):
  rows = 'prompt,gold,note1,note2,relevant1,relevant2,split,id\n'
  rows += ''.join(f'"Q, {s}?",Yes,a,b,1,0,{s},{s}\n' for s in SPLITS)
  file = _file(tmp_path, rows, 'own.csv')
  options = {'question': 'prompt', 'answer': 'gold', 'grader': 'text'}
  task = make_task('questions', file=file, **options)
  (question,) = task.questions('validation')
  assert (question.id, question.text, question.notes) == (
    'validation',
    'Q, validation?',
    ('a', 'b'),
  )
  assert question.relevant == (True, False)
  assert [task.score(question, text) for text in ('yes.', 'no')] == [1.0, 0.0]


def test_relevance_in_a_table_is_written_by_pandas_or_a_spreadsheet(tmp_path):
  header = 'question,answer,split,note1,note2,note3,relevant1,relevant2,relevant3\n'
  for row in ('True,False,', 'TRUE,FALSE,0', 'true,false,', '1,0,False'):
    task = make_task('questions', file=_file(tmp_path, f'{header}q,1,test,a,b,c,{row}\n', 'o.csv'))
    assert task.questions('test')[0].relevant == (True, False, False)
  file = _file(tmp_path, f'{header}q,1,test,a,b,c,1,yes,\n', 'o.csv')
  message = r"o.csv, line 2: relevant2='yes' must be 1, 0, true or false\."
  with pytest.raises(ValueError, match=message):
    make_task('questions', file=file)


def test_optional_fields_may_be_null(tmp_path):
  optional = dict.fromkeys(('id', 'split', 'notes', 'relevant', 'documents'))
  task = make_task('questions', file=_file(tmp_path, [{**row, **optional} for row in ROWS]))
  question = task.questions('train')[0]
  assert (question.notes, question.relevant, question.documents) == ((), (), ())


def test_an_id_of_zero_and_an_empty_note(tmp_path):
  """Ids may be counted from 0; who has an empty note says nothing, not the answer."""
  rows = [{'id': n, 'question': f'q{n}', 'answer': '1', 'notes': ['', 'b']} for n in range(2)]
  task = make_task('questions', file=_file(tmp_path, [r | {'split': 'test'} for r in rows]))
  assert [question.id for question in task.questions('test')] == ['0', '1']
  said = lambda agent: task.demonstration(
    task.questions('test')[0], agent, (), random.Random(0), silence_probability=0.0
  )
  assert [said(agent) for agent in range(3)] == ['', 'b', '1']


def test_a_grader_of_ones_own(tmp_path, monkeypatch):
  (tmp_path / 'my_grader.py').write_text(
    'def score(question, answer):\n  return float(question.answer in answer)\n'
    'def broken(question, answer):\n  return 1 / 0\n'
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  file = _file(tmp_path)
  task = make_task('questions', file=file, grader='my_grader:score')
  question = task.questions('train')[0]
  assert task.score_all([question] * 2, [f'so {question.answer}!', 'x']) == [1.0, 0.0]
  broken = make_task('questions', file=file, grader='my_grader:broken')
  with pytest.raises(ValueError, match=r"task.options.grader='my_grader:broken': ZeroDivision"):
    broken.score(question, 'x')
  with pytest.raises(ValueError, match='my_grader'):
    make_task('questions', file=file, grader='my_grader:missing')


class _Datasets:
  """Stands for the library `datasets`; records what is loaded."""

  def __init__(self, **splits):
    self.splits, self.loaded = splits, []

  def load_dataset(self, *names):
    self.loaded.append(names)
    if not self.splits:
      raise FileNotFoundError("Couldn't find any data file")
    return self.splits


def test_a_data_set_of_hugging_face(monkeypatch):
  rows = {split: [{**ROWS[i], 'question': f'{split} ?'}] for i, split in enumerate(SPLITS)}
  library = _Datasets(**rows)
  monkeypatch.setitem(sys.modules, 'datasets', library)
  task = make_task('questions', file='hf:owner/sums:main')
  assert library.loaded == [('owner/sums', 'main')]
  assert [(q.id, q.text) for q in task.questions('test')] == [('test-0', 'test ?')]
  assert task.questions('test')[0].notes == ('Dora 2', 'Bob 1')
  # A single split, as of a folder of one file, is drawn as a file is.
  monkeypatch.setitem(sys.modules, 'datasets', _Datasets(train=ROWS))
  task = make_task('questions', file='hf:./folder')
  assert sum(len(task.questions(split)) for split in SPLITS) == len(ROWS)


def test_a_data_set_that_cannot_be_had(monkeypatch):
  monkeypatch.setitem(sys.modules, 'datasets', _Datasets())
  with pytest.raises(FileNotFoundError, match=r"file='hf:owner/none': the data set was not loaded"):
    make_task('questions', file='hf:owner/none')
  faulty = _Datasets(train=[{'question': 'q'}])
  monkeypatch.setitem(sys.modules, 'datasets', faulty)
  with pytest.raises(ValueError, match=r'hf:owner/x, row 0 of train: answer=None must be a text'):
    make_task('questions', file='hf:owner/x')
  monkeypatch.setitem(sys.modules, 'datasets', None)
  with pytest.raises(ImportError, match=r'pip install "agent_gspo\[datasets\]"'):
    make_task('questions', file='hf:owner/x')


@pytest.mark.parametrize(
  ('row', 'message'),
  [
    ('{"question": "q"', r'own.jsonl, line 1: no JSON'),
    ('[1]', r'line 1: .* must be an object'),
    ({'question': 'q'}, r'line 1: answer=None must be a text; there are question'),
    ({'question': '', 'answer': '1'}, r"line 1: question='' must be a text"),
    ({'question': 'q', 'answer': '1', 'notes': 'n'}, r"notes='n' must be a list of texts"),
    ({'question': 'q\ud800', 'answer': '1'}, r"question='q\\ud800' must be a text"),
    ({'question': 'q', 'answer': '1', 'notes': ['\ud800']}, r'must be a list of texts'),
    ({'question': 'q', 'answer': 'n/a'}, r"line 1: answer: gold answer 'n/a' holds no number"),
    ({'question': 'q', 'answer': '1', 'documents': [1]}, r'documents=\[1\] must be a list'),
    ({'question': 'q', 'answer': '1', 'relevant': [1]}, r'relevant=\[1\] must be a list of true'),
    ({'question': 'q', 'answer': '1', 'relevant': [True]}, r'must have one entry for each note'),
    (
      {'question': 'q', 'answer': '1', 'note': ['n']},
      r"line 1: field 'note' is not read; must be 'notes'\. Rename it\.",
    ),
    ({'question': 'q', 'answer': '1', 'relevent': [1]}, r"field 'relevent' is not .* 'relevant'"),
    (
      {'question': 'q', 'answer': '1', 'Notes': ['n']},
      r"field 'Notes' is not read; must be 'notes'",
    ),
    (
      {'question': 'q', 'answer': '1', 'Note_1': 'n'},
      r"field 'Note_1' is not read; must be 'note1'",
    ),
    ({'question': 'q', 'answer': '1', 'split': 'dev'}, r"line 1: split='dev' is unknown"),
  ],
)
def test_a_faulty_line_is_named(row, message, tmp_path):
  text = row if isinstance(row, str) else json.dumps(row)
  with pytest.raises(ValueError, match=message):
    make_task('questions', file=_file(tmp_path, text))


def test_faulty_files(tmp_path):
  with pytest.raises(ValueError, match=r"task.options.file='' must name"):
    make_task('questions')
  with pytest.raises(FileNotFoundError, match='no such file'):
    make_task('questions', file='none.jsonl')
  with pytest.raises(ValueError, match='grader'):
    make_task('questions', file=_file(tmp_path), grader='numbr')
  letter = [{'question': 'q', 'answer': 'c'}]
  with pytest.raises(ValueError, match=r"line 1: answer: gold answer 'c' is not one of .* ABCDE"):
    make_task('questions', file=_file(tmp_path, letter), grader='letter')
  for name in ('file', 'question', 'answer', 'grader'):
    with pytest.raises(ValueError, match=rf'task\.options\.{name}=3 must be text'):
      make_task('questions', **{'file': _file(tmp_path), name: 3})
  long = _file(tmp_path, f'question,answer\nq,1\n{"q" * 200_000},2\n', 'long.csv')
  with pytest.raises(ValueError, match=r'long.csv, line \d: field larger .*; save it as JSONL\.'):
    make_task('questions', file=long)
  wide = _file(tmp_path, 'question,answer\nWhat is 2,000 + 1?,2001\n', 'wide.csv')
  with pytest.raises(ValueError, match=r"wide.csv, line 2: \['2001'\] is beyond the columns; put"):
    make_task('questions', file=wide)
  (gap := tmp_path / 'gap.csv').write_text('question,answer,note1,note3\nq,1,a,b\n')
  with pytest.raises(ValueError, match=r'gap.csv: a column note3, but none note2; number from 1'):
    make_task('questions', file=str(gap))
  same = [{'question': 'q', 'answer': '1', 'split': split} for split in ('train', 'test')]
  with pytest.raises(
    ValueError, match=r"line 2: split='test', but the same question is in 'train'"
  ):
    make_task('questions', file=_file(tmp_path, same))
  twice = [{'question': q, 'answer': '1', 'id': 'x'} for q in 'ab']
  with pytest.raises(ValueError, match=r"line 2: id='x' is that of another question"):
    make_task('questions', file=_file(tmp_path, twice))


def test_a_team_trains_on_them(tmp_path):
  """From demonstrations to an evaluation; another file has another SFT."""
  file = _file(tmp_path)
  config = micro_run.changed(task__name='questions', sft__steps=2)
  config['task']['options'] = {'file': file, 'grader': 'number'}
  parts = config_lib.check(config)
  setup = setup_lib.build(parts)
  record, _ = run_evaluations.evaluate(
    setup, setup_lib.make_scorer(setup), setup.params, label='untrained', step=0, count=2
  )
  assert record['comm/silence_rate_relevant'] is not None
  found = lambda: sft.cache_file(parts.config, setup.sources, setup.tokenizer.fingerprint)
  before = found()
  _file(tmp_path, ROWS[:-1])
  assert found() != before
