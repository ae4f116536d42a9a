"""Reads the records in a run's workdir.

A workdir holds `config.json`, `metrics.jsonl` (one object per step), `eval.jsonl` (one object
per evaluation), `transcripts.jsonl` (one object per saved episode), `sft.jsonl` (one object per
SFT step, if any), `starts.jsonl` (one object per start of the command: step, packages, code and
devices), `report.html`, `checkpoints/` and `tensorboard/`; and `done` once the run has ended.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agent_gspo.types import Terms
from agent_gspo.workdir import cleaning, json_lines

CONFIG = 'config.json'
METRICS = 'metrics.jsonl'
EVALUATIONS = 'eval.jsonl'
TRANSCRIPTS = 'transcripts.jsonl'
SFT = 'sft.jsonl'
STARTS = 'starts.jsonl'
LINES = (METRICS, EVALUATIONS, TRANSCRIPTS, SFT, STARTS)  # files of JSON lines
# Holds the steps of a finished run; absent while it runs.
DONE = 'done'
# Prefix of accuracy by another grader, before its name.
GRADED = 'task/accuracy_by_'
# Label of the evaluation of the initial team.
UNTRAINED = 'untrained'
# Label of an evaluation between training steps.
DURING = 'during'
# Label of the trained team's evaluation on questions of the training split.
SEEN = 'trained, training split'
_TOLD = re.compile(r'(.+), (?:price|budget) (\d+(?:\.\d+)?(?:e[+-]\d+)?)')

PathLike = json_lines.PathLike

_MOST_WARNINGS = 5  # per file


def told(terms: Terms | None, label: str = 'trained') -> str:
  """Returns the label of an evaluation under a price or a budget; `label` is the team's own."""
  return f'{label}, {terms.kind} {terms.value:g}' if terms else label


def told_value(evaluation: Mapping[str, Any]) -> float | None:
  """Returns the price or budget in a label made by `told`, None for other labels."""
  found = _TOLD.fullmatch(str(evaluation.get('label')))
  return float(found[2]) if found else None


def told_team(label: str) -> str:
  """Returns the team's own label in a label made by `told`, '' for other labels."""
  found = _TOLD.fullmatch(label)
  return found[1] if found else ''


def asks_alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
  """Returns whether two evaluations have the same questions and temperature."""
  fields = ('split', 'questions', 'temperature', 'spread')
  return all(a.get(field) == b.get(field) for field in fields)


@dataclasses.dataclass(frozen=True)
class Run:
  """Holds the records of one workdir."""

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


def load_run(workdir: PathLike, name: str | None = None) -> Run:
  """Reads the configuration, metrics and evaluations of one workdir.

  Raises:
    FileNotFoundError: The folder holds neither metrics nor evaluations nor SFT steps.
  """
  workdir = pathlib.Path(workdir)
  if not _is_run(workdir):
    raise FileNotFoundError(
      f'{workdir} holds neither {METRICS} nor {EVALUATIONS} nor {SFT}: give the workdir of a run'
    )
  by_step = {record['step']: record for record in _read(workdir / METRICS, cleaning.metrics)}
  return Run(
    name=name or workdir.resolve().name,
    workdir=workdir,
    config=_config(workdir / CONFIG),
    metrics=[by_step[step] for step in sorted(by_step)],
    evaluations=evaluations(workdir),
    sft=supervised(workdir),
  )


def has_ended(workdir: PathLike) -> bool:
  """Returns whether a run has finished."""
  return (pathlib.Path(workdir) / DONE).is_file()


def evaluations(workdir: PathLike) -> list[dict[str, Any]]:
  """Returns the evaluations of a run in file order, without invalid fields (see `cleaning`)."""
  return list(_read(pathlib.Path(workdir) / EVALUATIONS, cleaning.evaluation))


def supervised(workdir: PathLike) -> list[dict[str, Any]]:
  """Returns the SFT steps in file order, without invalid fields."""
  return list(_read(pathlib.Path(workdir) / SFT, cleaning.metrics))


def transcripts(workdir: PathLike, file: str = TRANSCRIPTS) -> Iterator[dict[str, Any]]:
  """Returns the saved episodes of a run in file order, without invalid fields."""
  return _read(pathlib.Path(workdir) / file, cleaning.transcript)


def load_runs(folders: Iterable[PathLike]) -> list[Run]:
  """Reads several runs and gives them unique names.

  Raises:
    FileNotFoundError: A folder holds no run.
  """
  workdirs = find_workdirs(folders)
  return [load_run(w, name) for w, name in zip(workdirs, _names(workdirs), strict=True)]


def find_workdirs(folders: Iterable[PathLike]) -> list[pathlib.Path]:
  """Returns the workdirs among `folders` and directly below them, each once, in order."""
  found: dict[pathlib.Path, pathlib.Path] = {}
  for folder in map(pathlib.Path, folders):
    children = sorted(folder.iterdir()) if folder.is_dir() else []
    runs = [folder] if _is_run(folder) else [child for child in children if _is_run(child)]
    if not runs:
      raise FileNotFoundError(
        f'{folder} holds no run: give a folder with {METRICS}, {EVALUATIONS} or {SFT} in it, '
        'or the folder above such folders'
      )
    for run in runs:
      found.setdefault(run.resolve(), run)
  return list(found.values())


def _read(
  path: pathlib.Path, clean: Callable[[dict[str, Any]], cleaning.Cleaned]
) -> Iterator[dict[str, Any]]:
  """Yields the cleaned records of a file; warns about the first few lines with invalid fields."""
  odd_lines = 0
  for number, record in json_lines.numbered(path):
    kept, odd = (None, ['what is no JSON object']) if record is None else clean(record)
    odd_lines += bool(odd)
    if odd and odd_lines <= _MOST_WARNINGS:
      left_out = ', '.join(odd[:5]) + (f' and {len(odd) - 5} more' if len(odd) > 5 else '')
      warnings.warn(f'{path}, line {number}: left out {left_out}', stacklevel=2)
    if kept is not None:
      yield kept
  if odd_lines > _MOST_WARNINGS:
    more = odd_lines - _MOST_WARNINGS
    warnings.warn(f'{path}: left out something odd in {more} more lines', stacklevel=2)


def _config(path: pathlib.Path) -> dict[str, Any]:
  if not path.is_file():
    return {}
  record = json_lines.parse_line(path.read_bytes())
  kept, odd = ({}, ['what is no JSON object']) if record is None else cleaning.config(record)
  if odd:
    warnings.warn(f'{path}: left out {", ".join(odd[:5])}', stacklevel=2)
  return kept


def _is_run(folder: pathlib.Path) -> bool:
  return any((folder / name).is_file() for name in (METRICS, EVALUATIONS, SFT))


def _names(workdirs: list[pathlib.Path]) -> list[str]:
  parts = [workdir.resolve().parts for workdir in workdirs]
  for depth in range(1, max(map(len, parts), default=1) + 1):
    names = ['/'.join(p[-depth:]) for p in parts]
    if len(set(names)) == len(names):
      break
  return names if parts else []
