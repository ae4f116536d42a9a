"""Defines a task of the user's own questions: a JSONL or CSV file, or a Hugging Face dataset."""

from __future__ import annotations

import csv
import dataclasses
import difflib
import functools
import json
import os
import pathlib
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from agent_gspo import plugins
from agent_gspo.options import check_choice, check_fields
from agent_gspo.tasks import base
from agent_gspo.tasks.data import draws
from agent_gspo.tasks.grading import answer_marks, choice_grader, graders
from agent_gspo.tasks.options import SPLITS
from agent_gspo.types import Question
from agent_gspo.values import is_text, shown

_HELD_OUT = 0.1  # share of the questions in each of validation and test, if the file names no split
_MISSPELLED = 0.85  # similarity of a field's name, of difflib
_FLAGS = {'1': True, 'true': True, '0': False, 'false': False, '': False}


def _text(text: str) -> str:
  """Returns an answer without case, spaces around and a closing full stop."""
  return answer_marks.passage(text).strip().rstrip('.').casefold()


GRADERS: Mapping[str, graders.Grader] = {
  'number': graders.NUMBER['strict'],
  'equation': graders.NUMBER['equation'],
  'maths': graders.MATH['strict'],
  'letter': graders.Grader(choice_grader.extract_choice, choice_grader.grade_choice),
  'text': graders.Grader(_text, lambda text, gold: float(_text(text) == _text(gold))),
}


@dataclasses.dataclass(eq=False, kw_only=True)
class OwnQuestions(base.Task):
  """Questions of a file or data set: a line of JSONL is an object, CSV is read by its header.

  question: Text that every agent sees.
  answer: Gold answer, as the grader reads it.
  notes: Private notes of the first agents, a list; in CSV one column each: note1, note2, ...
    Optional.
  relevant: Relevance of each note, a list of true and false; in CSV relevant1, ... with 1 and
    0. Optional; without it there are no silence rates by relevance.
  documents: Texts that the tool `retriever` searches, a list; not in CSV. Optional.
  split: train, validation or test. Without it a tenth of the questions each is for validation and
    test, by a hash of text and notes.
  id: Name of the question; by default the number of its line or row.
  """

  name = 'questions'

  file: str = ''  # see `records`
  question: str = 'question'  # the fields' own names
  answer: str = 'answer'
  # A key of GRADERS, or 'module:function' of your own: (question, answer) -> score in [0, 1].
  grader: str = 'number'

  def __post_init__(self):
    check_fields(self, 'task.options')
    if plugins.is_plugin(self.grader):
      self._grade = plugins.load_function(self.grader, 'task.options.grader')
    else:
      check_choice('task.options.grader', self.grader, tuple(GRADERS))
    self._splits = self._read()
    self._every = [q for of in self._splits.values() for q in of]
    holders = (i + 1 for q in self._every for i, note in enumerate(q.notes) if note)
    self._holders = max(holders, default=0)

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
    """Returns the note of an informant, '' for a share of irrelevant ones; else the gold answer."""
    del delivered
    if agent >= self._holders:
      return question.answer
    note = question.note(agent)
    needed = question.relevant[agent] if note and question.relevant else True
    return note if needed or rng.random() >= silence_probability else ''

  def vocabulary(self) -> list[str]:
    """Returns all words of the questions, for a model without a tokenizer of its own."""
    texts = [text for q in self._every for text in (q.text, q.answer, *q.notes, *q.documents)]
    return sorted({word for text in texts for word in text.split()})

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
      raise ValueError("task.options.file='' must name a JSONL or CSV file, or hf:OWNER/NAME.")
    found: dict[str, list[Question]] = {split: [] for split in SPLITS}
    ids: set[str] = set()
    home: dict[tuple[str | tuple[str, ...], ...], str] = {}  # of equal questions
    for where, line, fields in records(self.file, 'task.options.file'):
      question = self._question(where, line, fields)
      if question.id in ids:
        raise ValueError(f'{where}: id={question.id!r} is that of another question.')
      ids.add(question.id)
      split = fields.get('split') or _drawn(question)
      check_choice(f'{where}: split', split, SPLITS)
      first = home.setdefault((question.text, question.notes, question.documents), split)
      if first != split:
        raise ValueError(f'{where}: split={split!r}, but the same question is in {first!r}.')
      found[split].append(question)
    return found

  def _question(self, where: str, line: str, fields: Mapping[str, Any]) -> Question:
    text = functools.partial(_required, where, fields)
    dealt, documents = notes(fields), fields.get('documents') or []
    try:
      check_names(fields, (self.question, self.answer))
    except ValueError as error:
      raise ValueError(f'{where}: {error}') from error
    for name, texts in (('notes', dealt), ('documents', documents)):
      if not isinstance(texts, list) or not all(map(is_text, texts)):
        raise ValueError(f'{where}: {name}={shown(texts)} must be a list of texts.')
    flags = fields.get('relevant') or _flags(where, _numbered(fields, 'relevant'))
    if not isinstance(flags, list) or not all(isinstance(flag, bool) for flag in flags):
      raise ValueError(f'{where}: relevant={shown(flags)} must be a list of true and false.')
    if flags and len(flags) != len(dealt):
      raise ValueError(f'{where}: relevant={shown(flags)} must have one entry for each note.')
    gold = text(self.answer)
    if not plugins.is_plugin(self.grader):
      try:
        GRADERS[self.grader].grade('', gold)
      except ValueError as error:
        raise ValueError(f'{where}: {self.answer}: {error}') from error
    return Question(
      id=line if fields.get('id') in (None, '') else str(fields['id']),
      text=text(self.question),
      answer=gold,
      notes=tuple(dealt),
      relevant=tuple(flags),
      documents=tuple(documents),
    )


def records(file: str, field: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
  """Yields place, id and fields of each question.

  Args:
    file: A JSONL or CSV file; or `hf:OWNER/NAME[:CONFIGURATION]` or `hf:FOLDER`, a Hugging Face
      dataset. If it has several splits, these are the splits of the questions.
    field: Name of the setting, for messages.

  Raises:
    FileNotFoundError: There is no such file or data set.
    ValueError: A line is no JSON object or CSV row, or the file is not UTF-8.
  """
  if file.startswith('hf:'):
    yield from _of_data_set(file, field)
    return
  path = pathlib.Path(os.path.expanduser(file))
  if not path.is_file():
    raise FileNotFoundError(f'{field}={file!r}: no such file; must be JSONL or CSV of questions.')
  try:
    with path.open(encoding='utf-8-sig', newline='') as lines:
      if path.suffix.lower() == '.csv':
        rows = csv.DictReader(lines)
        _check_numbered(file, rows.fieldnames or ())
        for row in rows:
          where = f'{file}, line {rows.line_num}'
          if any(beyond := row.pop(None, ())):  # cells that the header does not name
            raise ValueError(
              f'{where}: {shown(beyond)} is beyond the columns; put texts with commas in quotes.'
            )
          yield where, str(rows.line_num), row
        return
      for number, line in enumerate(lines, 1):
        text, where = line.lstrip('\ufeff'), f'{file}, line {number}'
        if text.strip():
          yield where, str(number), _object(where, text)
  except UnicodeDecodeError as error:
    raise ValueError(f'{file} is not UTF-8 ({error}); save it as UTF-8.') from error
  except csv.Error as error:  # such as a field of more than 131,072 characters
    raise ValueError(f'{file}, line {rows.line_num}: {error}; save it as JSONL.') from error


def _object(where: str, line: str) -> Mapping[str, Any]:
  try:
    fields = json.loads(line)
  except (ValueError, RecursionError) as error:  # RecursionError: thousands of brackets
    raise ValueError(f'{where}: no JSON ({error}).') from error
  if not isinstance(fields, dict):
    raise ValueError(f'{where}: {shown(fields)} must be an object.')
  return fields


def _of_data_set(file: str, field: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
  try:
    import datasets
  except ImportError as error:
    raise ImportError(f'{field}={file!r}: {error}: pip install "agent_gspo[datasets]"') from error
  _, name, *configuration = file.split(':')
  try:
    found = datasets.load_dataset(name, *configuration)
  except (OSError, ValueError) as error:
    raise FileNotFoundError(
      f'{field}={file!r}: the data set was not loaded ({error}); must be hf:OWNER/NAME, with '
      ':CONFIGURATION after it if it has several.'
    ) from error
  for split, rows in found.items():
    for number, row in enumerate(rows):
      fields = {**row, 'split': split} if len(found) > 1 else row
      yield f'{file}, row {number} of {split}', f'{split}-{number}', fields


def _required(where: str, fields: Mapping[str, Any], name: str) -> str:
  value = fields.get(name)
  if isinstance(value, int | float) and not isinstance(value, bool):
    value = str(value)
  if not is_text(value) or not value.strip():
    raise ValueError(
      f'{where}: {name}={shown(value)} must be a text; there are {", ".join(fields)}. If the field '
      'has another name, set task.options.question or task.options.answer.'
    )
  return value.strip()


def check_names(fields: Mapping[str, Any], known: Collection[str]) -> None:
  """Raises ValueError if a field but those `known` is a misspelled one; others are not read."""
  absent = {'notes', 'relevant', 'documents'} - fields.keys()
  for name in fields.keys() - set(known):
    plain = re.sub('[_ ]', '', name.lower())
    is_column = re.fullmatch(r'(note|relevant)\d+', plain)
    meant = [plain] if is_column else difflib.get_close_matches(plain, absent, 1, _MISSPELLED)
    if meant and meant[0] != name:
      raise ValueError(f'field {name!r} is not read; must be {meant[0]!r}. Rename it.')


def notes(fields: Mapping[str, Any]) -> Any:
  """Returns the field `notes`, unchecked; in CSV the columns note1, note2, ..."""
  return fields.get('notes') or _numbered(fields, 'note')


def _numbered(fields: Mapping[str, Any], name: str) -> list[str]:
  """Returns the columns name1, name2, ... of a CSV file."""
  found: list[str] = []
  while fields.get(column := f'{name}{len(found) + 1}') is not None:
    found.append(str(fields[column]).strip())
  return found


def _check_numbered(file: str, columns: Sequence[str]) -> None:
  """Raises ValueError if a column is skipped, as with note3 but no note2."""
  for name in ('note', 'relevant'):
    numbers = {int(x.removeprefix(name)) for x in columns if re.fullmatch(rf'{name}[1-9]\d*', x)}
    if missing := set(range(1, len(numbers) + 1)) - numbers:
      raise ValueError(
        f'{file}: a column {name}{max(numbers)}, but none {name}{min(missing)}; number from 1 on.'
      )


def _flags(where: str, texts: Sequence[str]) -> list[bool]:
  """Reads the columns relevant1, relevant2, ... of a CSV file."""
  for number, text in enumerate(texts, 1):
    if text.casefold() not in _FLAGS:
      raise ValueError(f'{where}: relevant{number}={shown(text)} must be 1, 0, true or false.')
  return [_FLAGS[text.casefold()] for text in texts]


def _drawn(question: Question) -> str:
  """Returns the split of a question by a hash of its text and notes, the same in all runs."""
  place = draws.rng('own questions', question.text, *question.notes).random()
  return 'test' if place < _HELD_OUT else 'validation' if place < 2 * _HELD_OUT else 'train'
