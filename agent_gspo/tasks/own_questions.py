"""Makes a task of the user's own questions, from a JSONL or CSV file."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_gspo import plugins
from agent_gspo.options import check_choice
from agent_gspo.tasks import base
from agent_gspo.tasks.data import draws
from agent_gspo.tasks.grading import answer_marks, choice_grader, graders
from agent_gspo.tasks.options import SPLITS
from agent_gspo.types import Question
from agent_gspo.values import shown

_HELD_OUT = 0.1  # share of the questions in each of validation and test, if the file names no split


def _text(text: str) -> str:
  """Returns an answer without case, spaces around and a closing full stop."""
  return answer_marks.passage(text).strip().rstrip('.').casefold()


GRADERS: Mapping[str, graders.Grader] = {
  'number': graders.NUMBER['strict'],
  'equation': graders.NUMBER['equation'],
  'maths': graders.MATHS['strict'],
  'letter': graders.Grader(choice_grader.extract_choice, choice_grader.grade_choice),
  'text': graders.Grader(_text, lambda text, gold: float(_text(text) == _text(gold))),
}


@dataclasses.dataclass(eq=False, kw_only=True)
class OwnQuestions(base.Task):
  """Questions of a file: a line of JSONL is an object, a row of CSV is read by the header.

  question: Text that every agent sees.
  answer: Gold answer, as the grader reads it.
  notes: Private notes of the first agents, a list; in CSV one column each: note1, note2, ...
    Optional.
  relevant: Whether each note is needed, a list of true and false; in CSV relevant1, ... with 1 and
    0. Optional; without it silence rates are not told apart.
  split: train, validation or test. Without it a tenth of the questions each is for validation and
    test, drawn by their text.
  id: Name of the question; else its line.
  """

  name = 'questions'

  file: str = ''
  question: str = 'question'  # the fields' own names
  answer: str = 'answer'
  # A key of GRADERS, or 'module:function' of your own: (question, answer) -> score in [0, 1].
  grader: str = 'number'

  def __post_init__(self):
    if plugins.is_plugin(self.grader):
      self._grade = plugins.load_function(self.grader, 'task.options.grader')
    else:
      check_choice('task.options.grader', self.grader, tuple(GRADERS))
    self._splits = self._read()

  def score(self, question: Question, answer_text: str) -> float:
    """Returns the grader's score."""
    if plugins.is_plugin(self.grader):
      return plugins.call('task.options.grader', self.grader, self._grade, question, answer_text)
    return GRADERS[self.grader].grade(answer_text, question.answer)

  def canonical(self, answer_text: str) -> str | None:
    """Returns the answer as the grader extracts it."""
    if plugins.is_plugin(self.grader):
      return super().canonical(answer_text)
    return GRADERS[self.grader].extract(answer_text) or None

  def demonstration(
    self,
    question: Question,
    agent: int,
    delivered: Sequence[str],
    rng: random.Random,
    *,
    silence_probability: float,
    **unused_probabilities: float,
  ) -> str:
    """Returns an agent's note, '' for some irrelevant ones; the gold answer of the others."""
    del delivered
    if agent >= len(question.notes):
      return question.answer
    note = question.notes[agent]
    needed = question.relevant[agent] if question.relevant else True
    return note if needed or rng.random() >= silence_probability else ''

  def vocabulary(self) -> list[str]:
    """Returns all words of the file, for a model without a tokenizer of its own."""
    every = [q for split in SPLITS for q in self._splits[split]]
    return sorted({w for q in every for text in (q.text, q.answer, *q.notes) for w in text.split()})

  def _split(self, split: str) -> Sequence[Question]:
    return self._splits[split]

  def _empty_remedy(self, split: str) -> str:
    return f'add questions with "split": "{split}" to {self.file}'

  def _read(self) -> dict[str, list[Question]]:
    """Returns the questions by split.

    Raises:
      FileNotFoundError: No such file.
      ValueError: Names the line, the field and its value.
    """
    if not self.file:
      raise ValueError("task.options.file='' must name a JSONL or CSV file of questions.")
    path = pathlib.Path(self.file).expanduser()
    if not path.is_file():
      raise FileNotFoundError(f'task.options.file={self.file!r}: no such file.')
    found: dict[str, list[Question]] = {split: [] for split in SPLITS}
    ids: set[str] = set()
    home: dict[tuple[str, tuple[str, ...]], str] = {}  # of equal questions
    for line, fields in _records(path):
      where = f'{self.file}, line {line}'
      question = self._question(where, str(line), fields)
      if question.id in ids:
        raise ValueError(f'{where}: id={question.id!r} is that of another question.')
      ids.add(question.id)
      split = fields.get('split') or _drawn(question)
      check_choice(f'{where}: split', split, SPLITS)
      first = home.setdefault((question.text, question.notes), split)
      if first != split:
        raise ValueError(f'{where}: split={split!r}, but the same question is in {first!r}.')
      found[split].append(question)
    return found

  def _question(self, where: str, line: str, fields: Mapping[str, Any]) -> Question:
    text = functools.partial(_required, where, fields)
    notes = _numbered(fields, 'note') if 'notes' not in fields else fields['notes']
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
      raise ValueError(f'{where}: notes={shown(notes)} must be a list of texts.')
    flags = fields.get('relevant', [x in ('1', 'true') for x in _numbered(fields, 'relevant')])
    if not isinstance(flags, list) or not all(isinstance(flag, bool) for flag in flags):
      raise ValueError(f'{where}: relevant={shown(flags)} must be a list of true and false.')
    if flags and len(flags) != len(notes):
      raise ValueError(f'{where}: relevant={shown(flags)} must have one entry for each note.')
    return Question(
      id=line if fields.get('id') in (None, '') else str(fields['id']),
      text=text(self.question),
      answer=text(self.answer),
      notes=tuple(notes),
      relevant=tuple(flags),
    )


def _records(path: pathlib.Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """Yields line numbers and fields."""
  with path.open(encoding='utf-8-sig', newline='') as file:
    if path.suffix.lower() == '.csv':
      reader = csv.DictReader(file)
      for row in reader:
        yield reader.line_num, {k: v for k, v in row.items() if k is not None}
      return
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      try:
        fields = json.loads(line)
      except ValueError as error:
        raise ValueError(f'{path}, line {number}: no JSON ({error}).') from error
      if not isinstance(fields, dict):
        raise ValueError(f'{path}, line {number}: {shown(fields)} must be an object.')
      yield number, fields


def _required(where: str, fields: Mapping[str, Any], name: str) -> str:
  value = fields.get(name)
  if isinstance(value, int | float) and not isinstance(value, bool):
    value = str(value)
  if not isinstance(value, str) or not value.strip():
    raise ValueError(
      f'{where}: {name}={shown(value)} must be a text; there are {", ".join(fields)}. If the field '
      'has another name, set task.options.question or task.options.answer.'
    )
  return value.strip()


def _numbered(fields: Mapping[str, Any], name: str) -> list[str]:
  """Returns the columns name1, name2, ... of a CSV file."""
  found: list[str] = []
  while fields.get(column := f'{name}{len(found) + 1}') is not None:
    found.append(fields[column].strip())
  return found


def _drawn(question: Question) -> str:
  """Returns the split of a question, the same for equal texts in all runs."""
  place = draws.rng('own questions', question.text, *question.notes).random()
  return 'test' if place < _HELD_OUT else 'validation' if place < 2 * _HELD_OUT else 'train'
