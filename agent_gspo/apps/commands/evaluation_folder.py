"""Reads and writes the folder of an evaluation.

`evaluation.json` has the fingerprint of the evaluation, `results.jsonl` one object per episode
and team (its transcript with all counts, and a checksum), `learnt.json` the edge rankings learned
on training questions, `result.json` the figures.
"""

from __future__ import annotations

import json
import os
import pathlib
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_gspo import provenance
from agent_gspo.evaluation import harness
from agent_gspo.models.io import fields
from agent_gspo.values import flatten
from agent_gspo.workdir import disk, json_lines
from agent_gspo.workdir.records import ANSWERS, FINGERPRINT, LINES, METRICS, RESULT

LEARNT = 'learnt.json'
_CHECKSUM = 'checksum'


class Folder(harness.Answers):
  """Answers stored in a folder on disk."""

  def __init__(self, path: str | pathlib.Path, fingerprint: Mapping[str, Any]):
    """Opens a folder, or creates it; `fingerprint` has everything that the answers depend on.

    Damaged answers are skipped with a warning, so that their questions are sampled again.

    Raises:
      ValueError: The folder is of another evaluation; names the field. Or a file is damaged.
    """
    super().__init__()
    self._path = pathlib.Path(path)
    self._path.mkdir(parents=True, exist_ok=True)
    self._check(json.loads(json.dumps(fingerprint)))
    json_lines.drop_half_line(self._path / ANSWERS)
    super().add(list(_answers(self._path / ANSWERS)))
    if (self._path / LEARNT).exists():
      self.learnt = _object(self._path / LEARNT)

  def _check(self, ours: dict[str, Any]) -> None:
    file = self._path / FINGERPRINT
    if not file.exists():
      if (self._path / ANSWERS).exists():
        raise ValueError(f'{self._path} holds results without {FINGERPRINT}. Take another --out.')
      if any((self._path / name).exists() for name in LINES):
        raise ValueError(
          f'--out={self._path} is the folder of a run; must be another one, such as '
          f'{self._path / "evaluation"}.'
        )
      _write(file, ours)
      return
    before, now = flatten(_object(file)), flatten(ours)
    for field in sorted(before.keys() | now.keys()):
      if before.get(field) != now.get(field):
        there, here = (textwrap.shorten(repr(x.get(field)), 80) for x in (before, now))
        raise ValueError(
          f'{self._path} holds another evaluation ({field}: {there} there, {here} now). Take '
          'another --out.'
        )

  def add(self, records: Sequence[Mapping[str, Any]]) -> None:
    """Adds records; they are on the disk when this returns."""
    # Round trip through JSON, so that a resumed run computes from the same data.
    plain = [json.loads(json.dumps(json_lines.to_plain(record, {}))) for record in records]
    super().add(plain)
    lines = [json.dumps(sealed(record)) for record in plain]
    path = self._path / ANSWERS
    with disk.writing(path), path.open('a', encoding='utf-8') as file:
      file.write(''.join(line + '\n' for line in lines))
      file.flush()
      os.fsync(file.fileno())

  def learn(self, name: str, what: Any) -> None:
    """Saves a learned result; it is on the disk when this returns."""
    super().learn(name, json.loads(json.dumps(what)))
    _write(self._path / LEARNT, self.learnt)

  def finish(self, result: Mapping[str, Any]) -> None:
    """Writes the figures, with the versions of packages and code, host and command."""
    whole = json_lines.to_plain({**result, 'software': provenance.start()}, {})
    _write(self._path / RESULT, sealed(json.loads(json.dumps(whole))))


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a record of plain data with its checksum added."""
  return {**record, _CHECKSUM: harness.digest(record)}


def _opened(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
  """Returns the record without its checksum, None if the checksum is wrong."""
  found = dict(record or {})
  checksum = found.pop(_CHECKSUM, None)
  return found if checksum == harness.digest(found) else None


def read_result(path: str | pathlib.Path) -> dict[str, Any]:
  """Returns all figures of the finished evaluation in a folder.

  Raises:
    FileNotFoundError: The folder has no finished evaluation.
    ValueError: The file is damaged.
  """
  file = pathlib.Path(path) / RESULT
  if not file.is_file():
    made = f'--out={path}'
    if (pathlib.Path(path) / METRICS).is_file():
      made = f'--workdir={path} --out=OTHER_FOLDER'
    raise FileNotFoundError(f'{path} holds no {RESULT}: run launch/evaluate.py {made} first.')
  result = _opened(json_lines.parse_line(file.read_bytes()))
  if result is None:
    raise ValueError(f'{file} is damaged. Evaluate again with another --out.')
  return result


def read(path: str | pathlib.Path, label: str = '') -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """Reads one finished evaluation of a folder, by default the first one, of the team itself.

  Returns:
    Its figures, with the ids of the questions that `failed`, and the records of the others'
    samples in question order.

  Raises:
    FileNotFoundError: The folder has no finished evaluation.
    ValueError: The label is unknown or has no records (a constant answer), or a file is damaged.
  """
  path, result = pathlib.Path(path), read_result(path)
  evaluations = [e for e in result['evaluations'] if 'variant' in e]  # a constant answer has none
  chosen = [e for e in evaluations if not label or e['label'] == label]
  if not chosen:
    known = ', '.join(repr(e['label']) for e in evaluations) or 'none'
    raise ValueError(f'{path} holds no evaluation {label!r}; it holds {known}.')
  failed = list(chosen[0].get('failed', ()))
  figures = {**chosen[0], 'task': result['evaluation']['task'], 'failed': failed}
  answers, samples = harness.Answers(), figures.get('samples_per_question', 1)
  answers.add([r for r in _answers(path / ANSWERS) if r['variant'] == figures['variant']])
  records: list[dict[str, Any]] = []
  for question_id in (i for i in result['question_ids'] if i not in failed):
    found = answers.get(figures['variant'], question_id, samples)
    if len(found) < samples:
      raise ValueError(
        f'{path / ANSWERS} holds no whole answer to question {question_id!r}, which {RESULT} '
        'counts: it is damaged. Evaluate again with another --out.'
      )
    records += map(dict, found)
  return figures, records


def _answers(file: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the records of a file whose checksum is right; warns of the others."""
  for number, record in json_lines.numbered(file):
    if (found := _opened(record)) is not None:
      yield found
    else:
      warnings.warn(f'{file}, line {number} is no whole answer: left out', stacklevel=2)


def _object(file: pathlib.Path) -> dict[str, Any]:
  try:
    return fields.read_object(file)
  except ValueError as error:
    raise ValueError(f'{error} If there is no copy of it, take another --out.') from error


def _write(file: pathlib.Path, data: Any) -> None:
  text = json.dumps(json_lines.to_plain(data, {}), indent=2) + '\n'
  json_lines.replace(file, [text.encode()])
