"""The folder of an evaluation: what was answered so far, and of which evaluation.

`evaluation.json` says whose answers these are, `results.jsonl` holds one object a question and
team (its transcript with all counts), `learnt.json` the rankings of edges that were learnt on
training questions, `result.json` the figures.
"""

from __future__ import annotations

import json
import os
import pathlib
import textwrap
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from agent_gspo import provenance
from agent_gspo.apps.reporting import report_data
from agent_gspo.evaluation import harness
from agent_gspo.models.io import fields
from agent_gspo.workdir import disk, json_lines

FINGERPRINT, RESULTS, LEARNT, RESULT = (
  'evaluation.json',
  'results.jsonl',
  'learnt.json',
  'result.json',
)
# Of a message: what figures are computed from, beside `relevant`, which may be null.
_COUNTS = ('written', 'read', 'readers', 'text_written', 'text_read', 'round', 'layer')
_COUNTED = {
  'agent': str,
  **dict.fromkeys(_COUNTS, int),
  **dict.fromkeys(('silent', 'ended'), bool),
  'read_from': list,
}
_TOO_MANY = 2**31  # for any count of a conversation


class Folder(harness.Answers):
  """Answers that are kept on the disk."""

  def __init__(self, path: str | pathlib.Path, fingerprint: Mapping[str, Any]):
    """Opens a folder, which need not exist.

    Args:
      path: of the folder.
      fingerprint: what the answers depend on, as nested plain data.

    Raises:
      ValueError: the folder is of another evaluation; names the field. Or a file is damaged;
        damaged answers are left out with a warning, so that those questions are asked again.
    """
    super().__init__()
    self._path = pathlib.Path(path)
    self._path.mkdir(parents=True, exist_ok=True)
    self._check(json.loads(json.dumps(fingerprint)))
    json_lines.drop_half_line(self._path / RESULTS)
    super().add(list(_answers(self._path / RESULTS, fingerprint.get('team', {}))))
    if (self._path / LEARNT).exists():
      self.learnt = _object(self._path / LEARNT)

  def _check(self, ours: dict[str, Any]) -> None:
    file = self._path / FINGERPRINT
    if not file.exists():
      if (self._path / RESULTS).exists():
        raise ValueError(f'{self._path} holds results without {FINGERPRINT}. Take another --out.')
      _write(file, ours)
      return
    before, now = report_data.flatten(_object(file)), report_data.flatten(ours)
    for field in sorted(before.keys() | now.keys()):
      if before.get(field) != now.get(field):
        there, here = (textwrap.shorten(repr(x.get(field)), 80) for x in (before, now))
        raise ValueError(
          f'{self._path} holds another evaluation ({field}: {there} there, {here} now). Take '
          'another --out.'
        )

  def add(self, records: Sequence[Mapping[str, Any]]) -> None:
    """Keeps records; they are on the disk when this returns."""
    # As they will be read again: a run that goes on computes from the very same data.
    lines = [json.dumps(json_lines.to_plain(record, {})) for record in records]
    super().add([json.loads(line) for line in lines])
    path = self._path / RESULTS
    with disk.writing(path), path.open('a', encoding='utf-8') as file:
      file.write(''.join(line + '\n' for line in lines))
      file.flush()
      os.fsync(file.fileno())

  def learn(self, name: str, what: Any) -> None:
    """Keeps what was learnt; it is on the disk when this returns."""
    super().learn(name, json.loads(json.dumps(what)))
    _write(self._path / LEARNT, self.learnt)

  def finish(self, result: Mapping[str, Any]) -> None:
    """Writes the figures, and the packages and code that they were made with."""
    _write(self._path / RESULT, {**result, 'software': provenance.software()})


def read_result(path: str | pathlib.Path) -> dict[str, Any]:
  """All figures of the finished evaluation in a folder.

  Raises:
    FileNotFoundError: the folder holds no finished evaluation.
    ValueError: the file is damaged.
  """
  file = pathlib.Path(path) / RESULT
  if not file.is_file():
    raise FileNotFoundError(f'{path} holds no {RESULT}: run launch/evaluate.py --out={path} first.')
  result = fields.Fields(fields.read_object(file), str(file))
  for field in ('evaluations', 'question_ids'):
    if not isinstance(result.get(field), list):
      raise result.wrong(field, 'a list')
  result.section('evaluation').get('task')
  return dict(result.values)


def read(path: str | pathlib.Path, label: str = '') -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """One finished evaluation of a folder.

  Args:
    path: of the folder.
    label: which evaluation; the first one, of the team itself, by default.

  Returns:
    Its figures, with the ids of the questions that `failed`, and the records of the others in the
    order in which they were asked.

  Raises:
    FileNotFoundError: the folder holds no finished evaluation.
    ValueError: there is none of that label, it has no records (a constant answer), or a file is
      damaged.
  """
  path, result = pathlib.Path(path), read_result(path)
  evaluations = [e for e in result['evaluations'] if _holds(e, label=str, variant=str, split=str)]
  chosen = [e for e in evaluations if not label or e['label'] == label]
  if not chosen:
    known = ', '.join(repr(e['label']) for e in evaluations) or 'none'
    raise ValueError(f'{path} holds no evaluation {label!r}; it holds {known}.')
  failed = list(chosen[0]['failed']) if _holds(chosen[0], failed=dict) else []
  figures = {**chosen[0], 'task': result['evaluation']['task'], 'failed': failed}
  records = {
    record['question_id']: record
    for record in json_lines.iterate(path / RESULTS)
    if record.get('variant') == figures['variant'] and _is_whole(record)
  }
  asked = [question_id for question_id in result['question_ids'] if question_id not in failed]
  for question_id in asked:
    if not isinstance(question_id, str) or question_id not in records:
      raise ValueError(
        f'{path / RESULTS} holds no whole answer to question {question_id!r}, which {RESULT} '
        'counts: it is damaged. Evaluate again with another --out.'
      )
  return figures, [records[question_id] for question_id in asked]


def _answers(file: pathlib.Path, team: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
  """The records of a file that an evaluation of a team (`harness.describe`) can go on with."""
  for number, record in json_lines.numbered(file):
    if record is not None and _can_be_counted(record, team):
      yield record
    else:
      warnings.warn(f'{file}, line {number} is no whole answer: asked again', stacklevel=2)


def _can_be_counted(record: Mapping[str, Any], team: Mapping[str, Any]) -> bool:
  """Whether a record has what the figures of an evaluation are computed from."""
  graded = record.get('graded', {})
  return (
    _holds(record, variant=str)
    and _is_whole(record)
    and isinstance(graded, Mapping)
    and all(score is None or _is_score(score) for score in graded.values())
    and all(_is_counted(message) for message in record['messages'])
    and _is_conversation(record['messages'], team)
  )


def _is_whole(record: Mapping[str, Any]) -> bool:
  """Whether a record has what two evaluations are compared by."""
  return (
    _holds(record, question_id=str, messages=list)
    and _is_score(record.get('task_score'))
    and all(
      _holds(message, written=int, read=int) and _are_counts(message['written'], message['read'])
      for message in record['messages']
    )
  )


def _is_counted(message: Any) -> bool:
  """Whether a message has all counts, each of which it can have."""
  return (
    _holds(message, **_COUNTED)
    and _are_counts(*(message[field] for field in _COUNTS))
    and message.get('relevant', '') in (None, True, False)
  )


def _is_conversation(messages: Sequence[Mapping[str, Any]], team: Mapping[str, Any]) -> bool:
  """Whether messages are of agents that there are, one a turn, and of each other.

  Systems that a team is compared with have some of its agents, or copies of the last one, each of
  which speaks once; a debate has two rounds at least.
  """
  names, rounds = list(team.get('roles', {})), max(team.get('rounds', 1), 2)
  authors = [message['agent'] for message in messages]
  copies = [f'{name}{i + 1}' for name in names[-1:] for i in range(len(messages))]
  known = set(copies if authors == copies else names)
  turns = {(message['agent'], message['round']) for message in messages}
  return (
    known.issuperset(authors)
    and len(turns) == len(messages)
    and all(round_ < rounds for _, round_ in turns)
    and all(_is_turn(x) and tuple(x) in turns for m in messages for x in m['read_from'])
    and all(_are_names(message.get('addressees'), known) for message in messages)
  )


def _is_turn(value: Any) -> bool:
  """Whether a value is `[author, round]`."""
  return isinstance(value, list) and list(map(type, value)) == [str, int]


def _are_names(value: Any, known: Collection[str]) -> bool:
  """Whether a value is a list of some of the known names, or null."""
  return value is None or (
    isinstance(value, list) and all(isinstance(name, str) and name in known for name in value)
  )


def _is_score(value: Any) -> bool:
  return isinstance(value, int | float) and 0 <= value <= 1  # NaN is not


def _are_counts(*values: int) -> bool:
  return all(0 <= value < _TOO_MANY for value in values)


def _holds(value: Any, **types: Any) -> bool:
  """Whether a value is an object with fields of these types."""
  return isinstance(value, Mapping) and all(
    isinstance(value.get(field), kind) for field, kind in types.items()
  )


def _object(file: pathlib.Path) -> dict[str, Any]:
  try:
    return fields.read_object(file)
  except ValueError as error:
    raise ValueError(f'{error} If there is no copy of it, take another --out.') from error


def _write(file: pathlib.Path, data: Any) -> None:
  text = json.dumps(json_lines.to_plain(data, {}), indent=2) + '\n'
  json_lines.replace(file, [text.encode()])
