"""Defines and reads the records in a run's workdir.

A workdir holds `config.json`, `metrics.jsonl` (one object per step), `eval.jsonl` (one object
per evaluation), `transcripts.jsonl` (one object per saved episode), `sft.jsonl` (one object per
SFT step, if any), `starts.jsonl` (one object per start of the command: step, packages, code and
devices), `report.html`, `checkpoints/` and `tensorboard/`; and `done` once the run
has ended.

Files may come from another version, another program or a damaged disk. Lines that cannot be
displayed are left out, see `odd_field`.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
import types
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from agent_gspo.types import Terms
from agent_gspo.values import finite, is_real
from agent_gspo.workdir import json_lines

CONFIG = 'config.json'
METRICS = 'metrics.jsonl'
EVALUATIONS = 'eval.jsonl'
TRANSCRIPTS = 'transcripts.jsonl'
SFT = 'sft.jsonl'
STARTS = 'starts.jsonl'
# Of launch/evaluate.py --out.
ANSWERS, RESULT, FINGERPRINT = 'results.jsonl', 'result.json', 'evaluation.json'
TEAM = 'team.json'  # of an exported team
# Files of folders that are not workdirs; a run would overwrite the config.json of a model.
OTHERS = {
  'an evaluation': (FINGERPRINT, ANSWERS),
  'an exported team or a model': (TEAM, '*.safetensors'),
}
LINES = (METRICS, EVALUATIONS, TRANSCRIPTS, SFT, STARTS)  # files of JSON lines
# File with the steps of a finished run; absent before its end.
DONE = 'done'
# Prefix of accuracy by another grader, before its name.
GRADED = 'task/accuracy_by_'
# Prefix of accuracy on one kind of question, before its name.
KIND = 'task/accuracy_of_'
# Prefix of pass@k and pass^k.
PASS = 'task/pass'
# Label of the evaluation of the initial team.
UNTRAINED = 'untrained'
# Label of an evaluation between training steps.
DURING = 'during'
# Label of the trained team's evaluation on questions of the training split.
SEEN = 'trained, training split'
# Beginning of a line of episodes.
_HEAD = re.compile(rb'\{"step": (\d+), "split": "[^"\\]*", "label": "([^"\\]*)"')
_TOLD = re.compile(r'(.+), (?:price|budget) (\d+(?:\.\d+)?(?:e[+-]\d+)?)')

PathLike = json_lines.PathLike

_DEPTH = 8  # greatest nesting of lists and dicts


def _number(value: Any) -> bool:
  """Returns whether a value is a number that a browser can represent."""
  return is_real(value) and finite(value) is not None


def _number_or_none(value: Any) -> bool:
  return value is None or _number(value)


def _plain(value: Any, depth: int = _DEPTH) -> bool:
  if isinstance(value, dict | list):
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_plain(x, depth - 1) for x in inner)
  return isinstance(value, str | bool) or _number_or_none(value)


# Fields that readers of a line need, by file: a type or a predicate, a list of these (or None), a
# list of fixed length as a tuple, or an object with its fields. Others must be plain.
_STEP = {'step': _number}
_EDGE = {
  **dict.fromkeys(('author', 'reader'), str),
  **dict.fromkeys(('turns', 'said', 'told', 'tokens'), _number),
}
_MESSAGE = {
  'agent': str,
  'read_from': [(str, _number)],  # (author, round)
  'tokens': [(str, _number_or_none)],  # (text, log-prob)
  'observed': [str],
  **dict.fromkeys(('text', 'note', 'prompt', 'side'), str | None),
  **dict.fromkeys(('round', 'written', 'read', 'reward', 'earned', 'advantage'), _number_or_none),
  **dict.fromkeys(('silent', 'ended', 'relevant', 'taken'), bool | None),
}
SCHEMA: Mapping[str, Mapping[str, Any]] = {
  CONFIG: {},
  METRICS: _STEP,
  SFT: _STEP,
  EVALUATIONS: {
    **dict.fromkeys(('label', 'split'), str | None),
    **dict.fromkeys(('step', 'questions', 'temperature'), _number_or_none),
    'agents': [{'name': str}],
    'edges': [_EDGE],
  },
  TRANSCRIPTS: {
    **dict.fromkeys(('split', 'label', 'question_id', 'question'), str | None),
    **dict.fromkeys(('gold', 'answer'), str | None),
    **dict.fromkeys(('step', 'task_score', 'reward'), _number_or_none),
    'messages': [_MESSAGE],
  },
}


def odd_field(file: str, record: Mapping[str, Any]) -> str:
  """Returns the first field of a record that violates the schema, '' if there is none."""
  fields = SCHEMA[file]
  fits = lambda name: _fits(record.get(name), fields.get(name, _plain))
  return next((name for name in {**fields, **record} if not fits(name)), '')


def _fits(value: Any, shape: Any) -> bool:
  if isinstance(shape, list):
    whole = isinstance(value, list) and all(_fits(x, shape[0]) for x in value)
    return value is None or whole
  if isinstance(shape, tuple):
    return isinstance(value, list) and len(value) == len(shape) and all(map(_fits, value, shape))
  if isinstance(shape, dict):
    fields = isinstance(value, dict) and all(_fits(value.get(k), s) for k, s in shape.items())
    return fields and _plain(value)
  if isinstance(shape, type | types.UnionType):
    return isinstance(value, shape)
  return shape(value)


def as_text(transcript: Mapping[str, Any]) -> str:
  """Returns an episode as lines of text: its question, each message, its answer."""
  lines = [f'[{transcript.get("label")}] {transcript.get("question")}']
  for message in transcript.get('messages', ()):
    note = f' (note: {message["note"]})' if message.get('note') else ''
    text = 'is silent' if message.get('silent') else message.get('text')
    lines += [f'  (observes: {seen})' for seen in message.get('observed', ())]
    side = f' ({message["side"]})' if message.get('side') else ''
    other = ' (not taken)' if message.get('taken') is False else ''
    lines.append(f'  {message["agent"]}{side}{note}{other}: {text}')
  score = finite(transcript.get('task_score'))
  lines.append(
    f'  answer {transcript.get("answer")}; gold {transcript.get("gold")}; '
    f'score {"-" if score is None else round(score, 2)}'
  )
  return '\n'.join(lines)


def told(terms: Terms | None, label: str = 'trained') -> str:
  """Returns the label of an evaluation, with the price or budget if `terms` has one."""
  return f'{label}, {terms.kind} {terms.value:g}' if terms else label


def told_value(evaluation: Mapping[str, Any]) -> float | None:
  """Returns the price or budget in a label made by `told`, None for other labels."""
  found = _TOLD.fullmatch(str(evaluation.get('label')))
  return float(found[2]) if found else None


def asks_alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
  """Returns whether two evaluations have the same questions, samples and temperature."""
  fields = ('split', 'questions', 'samples_per_question', 'temperature', 'spread')
  return all(a.get(field) == b.get(field) for field in fields)


@dataclasses.dataclass(frozen=True)
class Run:
  """Records of one workdir."""

  name: str  # short and unique among the runs loaded together
  workdir: pathlib.Path
  config: dict[str, Any]  # empty if there is no `config.json`
  metrics: list[dict[str, Any]]  # one per step, in order; the later one of duplicates
  evaluations: list[dict[str, Any]]  # in the order of the file
  sft: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # SFT steps


def with_edges(evaluations: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
  """Returns the evaluation whose edges are the graph of a run; None if none has edges.

  That is the newest one of the trained team, else of those between steps, else of the untrained
  team. The last record of the file may be another: the trained team under other prices or on the
  training split, or the untrained team.
  """
  newest = {str(e.get('label') or DURING): e for e in evaluations if e.get('edges')}
  labels = ('trained', DURING, UNTRAINED)
  return next((newest[label] for label in labels if label in newest), None)


def is_run(folder: pathlib.Path) -> bool:
  """Returns whether a folder holds metrics, evaluations or SFT steps."""
  return any((folder / name).is_file() for name in (METRICS, EVALUATIONS, SFT))


def load_run(workdir: PathLike, name: str | None = None) -> Run:
  """Reads the configuration, metrics, evaluations and SFT steps of one workdir.

  Raises:
    FileNotFoundError: The folder holds neither metrics nor evaluations nor SFT steps.
  """
  workdir = pathlib.Path(workdir)
  if not is_run(workdir):
    raise FileNotFoundError(
      f'{workdir} holds neither {METRICS} nor {EVALUATIONS} nor {SFT}: give the workdir of a run'
    )
  by_step = {record['step']: record for record in _read(workdir, METRICS)}
  return Run(
    name=name or workdir.resolve().name,
    workdir=workdir,
    config=_config(workdir / CONFIG),
    metrics=[by_step[step] for step in sorted(by_step)],
    evaluations=evaluations(workdir),
    sft=supervised(workdir),
  )


def evaluations(workdir: PathLike) -> list[dict[str, Any]]:
  """Returns the evaluations of a run in file order."""
  return list(_read(workdir, EVALUATIONS))


def supervised(workdir: PathLike) -> list[dict[str, Any]]:
  """Returns the SFT steps in file order."""
  return list(_read(workdir, SFT))


def numbered_transcripts(
  workdir: PathLike, file: str = TRANSCRIPTS, lines: Collection[int] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields line number, from 1, and episode of some lines of a file, by default of all."""
  for number, record in _numbered(workdir, file, TRANSCRIPTS, lines):
    yield number, {**record, 'messages': record.get('messages') or []}


def heads(path: PathLike) -> Iterator[tuple[int, str, str]]:
  """Yields line number, label and step of the episodes in a file, parsing only these fields."""
  path = pathlib.Path(path)
  if not path.is_file():
    return
  with path.open('rb') as file:
    for number, line in enumerate(file, start=1):
      if (head := _HEAD.match(line)) and line.endswith(b'}\n'):
        yield number, head[2].decode(errors='replace'), head[1].decode()
      elif (record := json_lines.parse_line(line)) is not None:  # of another program
        yield number, str(record.get('label', 'train')), str(record.get('step'))


def evaluations_off_frontier(workdir: PathLike) -> int:
  """Counts the evaluations during training since the last one on the Pareto frontier.

  One is on the frontier of accuracy and written tokens unless an earlier one has at least its
  accuracy with at most its tokens. Only those on the newest one's questions count (`asks_alike`).
  """
  during, since = _during(workdir), 0
  alike = [e for e in during if asks_alike(e, during[-1])]
  points = [_accuracy_and_brevity(e) for e in sorted(alike, key=lambda e: e['step'])]
  for i, (accuracy, brevity) in enumerate(points):
    adds = not any(a >= accuracy and b >= brevity for a, b in points[:i])
    since = 0 if adds else since + 1
  return since


def best_first(workdir: PathLike) -> list[int]:
  """Returns the steps that were evaluated during training, the best first.

  Steps are ranked by accuracy (`task/accuracy` of the record labeled "during"), then by fewest
  tokens written per question, then by recency. If `evaluation` was changed mid-run, records on
  other questions than the newest record's come last.
  """
  during = _during(workdir)
  score = lambda e: (asks_alike(e, during[-1]), *_accuracy_and_brevity(e), e['step'])
  return [e['step'] for e in sorted(during, key=score, reverse=True)]


def _during(workdir: PathLike) -> list[dict[str, Any]]:
  """Returns the evaluations during training in file order; the later record of a repeated one."""
  found: dict[int, dict[str, Any]] = {}
  for record in evaluations(workdir):
    if record.get('label') == DURING and record.get('step') is not None:
      found.pop(record['step'], None)
      found[record['step']] = record
  return list(found.values())


def _accuracy_and_brevity(record: Mapping[str, Any]) -> tuple[float, float]:
  """Returns accuracy and minus the written tokens; minus infinity if missing."""
  accuracy, written = (
    finite(record.get(key)) for key in ('task/accuracy', 'tokens/written_per_question')
  )
  return (
    -math.inf if accuracy is None else accuracy,
    -math.inf if written is None else -written,
  )


def _read(workdir: PathLike, file: str) -> Iterator[dict[str, Any]]:
  """Yields the records of a file, see `_numbered`."""
  yield from (record for _, record in _numbered(workdir, file, file))


def _numbered(
  workdir: PathLike, file: str, schema: str, lines: Collection[int] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields the numbers and records of lines; warns about lines that violate the schema."""
  path = pathlib.Path(workdir) / file
  left_out: list[str] = []
  for number, record in json_lines.numbered(path, lines):
    if record is not None and not (field := odd_field(schema, record)):
      yield number, record
    else:
      left_out.append(f'line {number}: {"no JSON object" if record is None else repr(field[:60])}')
  if left_out:
    count = '1 line' if len(left_out) == 1 else f'{len(left_out)} lines'
    warnings.warn(f'{path}: left out {count} that no run writes ({left_out[0]})', stacklevel=2)


def _config(path: pathlib.Path) -> dict[str, Any]:
  record = json_lines.parse_line(path.read_bytes()) if path.is_file() else {}
  if record is None or odd_field(CONFIG, record):
    warnings.warn(f'{path}: left out whole, since no run writes it', stacklevel=2)
    return {}
  return record
