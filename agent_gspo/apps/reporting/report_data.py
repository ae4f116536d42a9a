"""Collects the data of a report, small enough to open in a browser."""

from __future__ import annotations

import itertools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent_gspo.apps.reporting import formatting
from agent_gspo.config.defaults import default_config
from agent_gspo.values import flatten, is_real
from agent_gspo.workdir import json_lines, records

MAX_TRANSCRIPTS = 1000
_MAX_POINTS = 800
_MAX_TEXT = 4000
_MAX_CHARACTERS = 6_000_000  # of all transcripts together


def load(folders: Iterable[records.PathLike]) -> list[records.Run]:
  """Reads runs and evaluations, and gives them short and unique names.

  Args:
    folders: Workdirs of runs, folders of `launch/evaluate.py --out`, or folders of these.

  Raises:
    FileNotFoundError: A folder has neither.
  """
  paths = find(folders)
  above = os.path.commonpath([path.parent for path in paths])
  unique = len({path.name for path in paths}) == len(paths)
  names = [path.name if unique else path.relative_to(above).as_posix() for path in paths]
  return [
    _evaluation(path, name) if _is_evaluation(path) else records.load_run(path, name)
    for path, name in zip(paths, names, strict=True)
  ]


def find(folders: Iterable[records.PathLike]) -> list[pathlib.Path]:
  """Returns the folders of the runs and evaluations that `load` reads, each once."""
  return list(dict.fromkeys(p.resolve() for f in folders for p in _sources(pathlib.Path(f))))


def _sources(folder: pathlib.Path) -> list[pathlib.Path]:
  children = sorted(folder.iterdir()) if folder.is_dir() else []
  runs = [folder] if records.is_run(folder) else list(filter(records.is_run, children))
  found = [*runs, *filter(_is_evaluation, (folder, *children))]
  if not found:
    raise FileNotFoundError(
      f'{folder} holds no run: give a folder with {records.METRICS}, {records.EVALUATIONS} or '
      f'{records.SFT} in it, or with the {records.ANSWERS} of an evaluation, or the folder above '
      'such folders'
    )
  return found


def _is_evaluation(folder: pathlib.Path) -> bool:
  return (folder / records.ANSWERS).is_file()


def _evaluation(folder: pathlib.Path, name: str) -> records.Run:
  """Returns an evaluation as a run without steps; its team comes first, then the baselines."""
  result = _result(folder)
  found = [e for e in result.get('evaluations') or () if isinstance(e, dict)]
  systems = [e for e in found if not records.odd_field(records.EVALUATIONS, e)]
  # The team has a label of its own, such as "step 80", beside those of a run.
  systems[:1] = [{**team, 'team': True} for team in systems[:1]]
  return records.Run(name, folder, result.get('config') or {}, [], systems)


def _result(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the figures of an evaluation; empty before it has ended."""
  file = folder / records.RESULT
  return (json_lines.parse_line(file.read_bytes()) or {}) if file.is_file() else {}


def build(runs: Sequence[records.Run]) -> dict[str, Any]:
  """Collects the data of the page.

  Returns:
    Plain JSON data: `runs` (name, config, provenance, steps and series of RL and SFT, evaluations,
    edges and the evaluation they are from, number of transcripts in the file), `transcripts` (see
    `pick_transcripts`) and `defaults` of the config. An evaluation at a price or budget has it as
    `told`.
  """
  shown_runs, shown_transcripts = [], []
  share = max(1, MAX_TRANSCRIPTS // max(1, len(runs)))
  end, sft_end = _slices([run.metrics for run in runs]), _slices([run.sft for run in runs])
  for i, run in enumerate(runs):
    chosen, total = pick_transcripts(run.workdir, share)
    steps, series = thin_out(run.metrics, end)
    sft_steps, sft_series = thin_out(run.sft, sft_end)
    graph = records.with_edges(run.evaluations) or {}
    shown_runs.append(
      {
        'name': run.name,
        'config': _fields(run.config),
        'about': _about(run),
        'steps': steps,
        'series': series,
        'sft': {'steps': sft_steps, 'series': sft_series},
        'evaluations': [_with_terms(e) for e in run.evaluations],
        'edges': _rounded(sorted(graph.get('edges') or (), key=lambda e: -e['tokens'])),
        'edges_of': {key: graph.get(key) for key in ('label', 'step', 'split')},
        'transcripts': total,
      }
    )
    room = _MAX_CHARACTERS // len(runs)
    for transcript in chosen:
      small = _clip_transcript(transcript)
      size = len(json.dumps(small))
      if size > room:
        continue
      room -= size
      shown_transcripts.append({**small, 'run': i})
  defaults = _fields(default_config().to_dict())
  return {'runs': shown_runs, 'transcripts': shown_transcripts, 'defaults': defaults}


def pick_transcripts(workdir: pathlib.Path, most: int) -> tuple[list[dict[str, Any]], int]:
  """Returns at most `most` episodes of a run or an evaluation, and the number in its file.

  Up to half are of evaluations: the first question of each, then the second of each, and so on, so
  that a question appears before and after training. Those of the trained team come first. The
  others are of training steps, from new to old: two thirds are the newest, the rest is spread over
  earlier ones, to show how the team changed. Both alternate, as a report may cut the end.
  """
  name = records.ANSWERS if _is_evaluation(workdir) else records.TRANSCRIPTS
  evaluated: dict[tuple[str, str], list[int]] = {}
  training: list[int] = []
  for line, label, step in records.heads(workdir / name):
    (training if label == 'train' else evaluated.setdefault((label, step), [])).append(line)
  total = len(training) + sum(map(len, evaluated.values()))
  groups = sorted(evaluated.items(), key=lambda group: group[0][0] != 'trained')
  keep = _in_turns([lines for _, lines in groups])[: most - min(len(training), most // 2)]
  room = most - len(keep)
  if len(training) > room:
    early = room // 3
    older = len(training) - (room - early)
    training = [training[i * older // early] for i in range(early)] + training[older:]
  chosen = _in_turns([keep, training[::-1]])
  found = dict(records.numbered_transcripts(workdir, name, {*chosen}))
  return [found[line] for line in chosen if line in found], total


def _in_turns(lists: Sequence[Sequence[int]]) -> list[int]:
  """Returns the first item of each list, then the second of each, and so on."""
  return [x for turn in itertools.zip_longest(*lists) for x in turn if x is not None]


def _slices(runs: Sequence[Sequence[Mapping[str, Any]]]) -> Callable[[float], float]:
  """Returns a function from a step to the last step of its slice.

  A slice is one step, or if a run has more than `_MAX_POINTS`, as many as that needs. All runs have
  the same slices, so that those of several seeds can be averaged.
  """
  last = max((record['step'] for run in runs for record in run), default=0)
  is_long = max(map(len, runs)) > _MAX_POINTS
  width = math.ceil(last / _MAX_POINTS) if is_long else 1
  return lambda step: min(last, -(-step // width) * width)


def thin_out(
  metrics: Sequence[Mapping[str, Any]], end: Callable[[float], float]
) -> tuple[list[float], dict[str, list[float | None]]]:
  """Converts records into curves with one point per slice of steps.

  Args:
    metrics: Records, each with its `step`.
    end: Function from a step to the last step of its slice.

  Returns:
    The last step of each slice `[n]`, and for every key the means over the slices `[n]`, None where
    missing.
  """
  keys = sorted({key for m in metrics for key, value in m.items() if is_real(value)} - {'step'})
  slices: dict[float, list[Mapping[str, Any]]] = {}
  for record in metrics:
    slices.setdefault(end(record['step']), []).append(record)
  series = {key: [_mean([m.get(key) for m in part]) for part in slices.values()] for key in keys}
  return list(slices), series


def _about(run: records.Run) -> dict[str, Any]:
  """Returns commit, versions, machine and command of the newest start, and the time it took."""
  starts = list(json_lines.iterate(run.workdir / records.STARTS))
  newest = starts[-1] if starts else _result(run.workdir).get('software', {})
  seconds = [m.get('time/step_s') for m in (*run.sft, *run.metrics)]
  seconds += [e.get('seconds') for e in run.evaluations]
  seconds += [answer.get('seconds') for answer in json_lines.iterate(run.workdir / records.ANSWERS)]
  known = [x for x in map(formatting.finite, seconds) if x is not None]
  spent = {'time of all steps and evaluations': formatting.duration(sum(known))} if known else {}
  start = _fields(newest)
  return {**start, 'folder': str(run.workdir), **spent}


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of a config as `{'a.b': value}`; lists become text."""
  written = lambda value: ', '.join(map(str, value)) if isinstance(value, list | tuple) else value
  return {field: written(value) for field, value in flatten(config).items()}


def _with_terms(evaluation: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the figures of an evaluation, with its price or budget if its label has one."""
  shown = lambda key, value: is_real(value) or value is None if '/' in key else value is not None
  kept = {key: value for key, value in evaluation.items() if shown(key, value)}
  told = records.told_value(evaluation)
  return _rounded({**kept, **({} if told is None else {'told': told})})


def _clip_transcript(transcript: Mapping[str, Any]) -> dict[str, Any]:
  cut = lambda record: {key: _clip(value) for key, value in record.items()}
  return _rounded({**cut(transcript), 'messages': list(map(cut, transcript['messages']))})


def _clip(value: Any, most: int = _MAX_TEXT) -> Any:
  """Cuts out the middle of a long text: both ends are more informative."""
  if not isinstance(value, str) or len(value) <= most:
    return value
  first = most // 3
  return f'{value[:first]} [... {len(value) - most} characters ...] {value[first - most :]}'


def _rounded(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _rounded(v) for key, v in value.items()}
  if isinstance(value, list):
    return [_rounded(v) for v in value]
  if isinstance(value, float):
    x = formatting.finite(value)
    return None if x is None else float(f'{x:.6g}')
  return value


def _mean(values: Sequence[Any]) -> float | None:
  numbers = [x for x in map(formatting.finite, values) if x is not None]
  return _rounded(sum(numbers) / len(numbers)) if numbers else None
