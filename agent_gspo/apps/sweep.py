"""Runs one config at many settings and seeds, and summarizes the results."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_gspo.apps.reporting import formatting
from agent_gspo.values import flatten
from agent_gspo.workdir import json_lines, records

# Runs this package, even if the current folder has another copy of it.
_TRAIN = (sys.executable, '-P', '-m', 'agent_gspo.apps.commands.train')
_PACKAGE = pathlib.Path(__file__).resolve().parents[2]
LOG = 'train.log'
_ARGUMENTS = 'sweep_arguments.txt'
_INTERRUPTED = 130  # status of a run that Ctrl-C ended

_SEEN = f'{records.SEEN}: '  # prefix of the keys of that evaluation

# Measures that a sweep compares: name, key of `eval.jsonl`, scale, decimals.
MEASURES = (
  ('accuracy, %', 'task/accuracy', 100, 1),
  *((f'by {g}, %', f'{records.GRADED}{g}', 100, 1) for g in ('equation', 'strict', 'legacy')),
  ('tokens written per question', 'tokens/written_per_question', 1, 1),
  ('tokens read per question', 'tokens/read_per_question', 1, 0),
  ('tokens heard of teammates', 'tokens/heard_per_question', 1, 1),
  ('silent, note relevant, %', 'comm/silence_rate_relevant', 100, 1),
  ('silent, note irrelevant, %', 'comm/silence_rate_irrelevant', 100, 1),
  ('silent, note irrelevant, training split, %', f'{_SEEN}comm/silence_rate_irrelevant', 100, 1),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
  """One setting of a sweep, run with several seeds.

  Attributes:
    name: Name in tables and figures.
    fields: Config field -> value, as written on a command line.
  """

  name: str
  fields: Mapping[str, str]


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
  """One run of a sweep."""

  setting: Setting
  seed: int
  workdir: pathlib.Path

  @property
  def result(self) -> dict[str, Any] | None:
    """Returns the trained team's evaluation, None before the run has ended."""
    ended = (self.workdir / records.DONE).is_file()
    return self.evaluation('trained') if ended else None

  def evaluation(self, label: str) -> dict[str, Any] | None:
    """Returns the newest record of `eval.jsonl` under a label."""
    found = records.evaluations(self.workdir)
    return next((r for r in reversed(found) if r.get('label') == label), None)


def grid(varied: Sequence[tuple[str, Sequence[str]]]) -> list[Setting]:
  """Returns all combinations of the values of some fields, the last field changing fastest.

  Raises:
    ValueError: A field is varied twice.
  """
  if field := twice([field for field, _ in varied]):
    raise ValueError(f'{field} is varied twice; give all its values at once.')
  names = [field.rpartition('.')[2] for field, _ in varied]
  return [
    Setting(
      name=', '.join(f'{n}={v}' for n, v in zip(names, values, strict=True)),
      fields={field: v for (field, _), v in zip(varied, values, strict=True)},
    )
    for values in itertools.product(*(values for _, values in varied))
  ]


def twice(fields: Sequence[str]) -> str:
  """Returns the first field that is named twice, '' if none is."""
  return next((field for i, field in enumerate(fields) if field in fields[:i]), '')


def points(folder: pathlib.Path, settings: Sequence[Setting], seeds: Sequence[int]) -> list[Point]:
  """Returns every setting with every seed; all settings of a seed come before the next seed.

  Raises:
    ValueError: Two settings would share a folder.
  """
  folders = [re.sub(r'[^\w.=,-]+', '_', setting.name) for setting in settings]
  if len(set(folders)) != len(folders):
    raise ValueError(f'two settings have the same name: {", ".join(folders)}.')
  return [
    Point(setting, seed, folder / f'{name}_seed_{seed}')
    for seed in seeds
    for setting, name in zip(settings, folders, strict=True)
  ]


def run_missing(
  todo: Sequence[Point],
  config: str,
  overrides: Sequence[str],
  *,
  jobs: int = 1,
  note: Callable[[str], None] = print,
) -> list[Point]:
  """Runs the points that have not ended, each as `launch/train.py` in its own process.

  A stopped run resumes from its checkpoint; a failed one is noted and the others continue.
  A setting's own fields override `overrides` (`--config.<field>=<value>`).

  Returns:
    The points that failed.

  Raises:
    ValueError: A workdir was started with another config or other fields.
  """
  arguments = {}
  for point in todo:
    fields = [f'--config.{field}={value}' for field, value in point.setting.fields.items()]
    own = [f'--config={config}', *overrides, *fields, f'--config.seed={point.seed}']
    file, text = point.workdir / _ARGUMENTS, _lines(own)
    begun = file.read_bytes().decode() if file.exists() else text
    if begun != text:
      told = [' '.join(x.split('\n')).strip() for x in (begun, text)]
      raise ValueError(
        f'{point.workdir} was begun with {told[0]}, which is not {told[1]}. Take another --workdir.'
      )
    arguments[point] = own
  missing = [point for point in todo if point.result is None]
  note(f'{len(todo) - len(missing)} of {len(todo)} runs have ended, {len(missing)} to go')
  processes = _Processes()
  with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    try:
      ended = list(pool.map(lambda point: _run(point, arguments[point], note, processes), missing))
    except KeyboardInterrupt:  # Ctrl-C reaches the runs as well
      processes.stop()
      raise
    except SystemExit:  # of a signal to this process alone
      processes.stop(terminate=True)
      raise
  return [point for point, fine in zip(missing, ended, strict=True) if not fine]


class _Processes:
  """Processes of the runs; none starts after the sweep is stopped."""

  def __init__(self) -> None:
    self._starting, self._stopped = threading.Lock(), threading.Event()
    self._running: set[subprocess.Popen[bytes]] = set()

  @property
  def stopped(self) -> bool:
    """Returns whether `stop` was called."""
    return self._stopped.is_set()

  def stop(self, terminate: bool = False) -> None:
    """Starts no further process; sends SIGTERM to running ones if `terminate`."""
    with self._starting:
      self._stopped.set()
      for child in list(self._running) if terminate else ():
        child.terminate()

  def run(self, arguments: Sequence[str], **options: Any) -> int:
    """Runs a process to its end; returns its status, `_INTERRUPTED` if stopped before."""
    with self._starting:
      if self.stopped:
        return _INTERRUPTED
      child = subprocess.Popen(arguments, **options)
      self._running.add(child)
    status = child.wait()
    self._running.remove(child)
    if status in (_INTERRUPTED, -signal.SIGINT):
      self._stopped.wait(5)  # Ctrl-C may reach the run first
    return status


def _run(
  point: Point, arguments: Sequence[str], note: Callable[[str], None], processes: _Processes
) -> bool:
  if processes.stopped:
    return False
  name = f'{point.setting.name}, seed {point.seed}'
  point.workdir.mkdir(parents=True, exist_ok=True)
  json_lines.replace(point.workdir / _ARGUMENTS, [_lines(arguments).encode()])
  note(f'begin {name}')
  path = [str(_PACKAGE), os.environ.get('PYTHONPATH')]
  with (point.workdir / LOG).open('a', encoding='utf-8') as log:
    status = processes.run(
      [*_TRAIN, f'--workdir={point.workdir}', *arguments],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, path))},
    )
  if status:
    note(f'FAILED {name} with status {status}: see {point.workdir / LOG}')
    return False
  result = point.result or {}
  note(
    f'end   {name}: accuracy {formatting.percent(result.get("task/accuracy"))}, '
    f'{formatting.fixed(result.get("tokens/written_per_question"), 1)} tokens per question'
  )
  return True


def _lines(arguments: Sequence[str]) -> str:
  return '\n'.join(arguments) + '\n'


def summary(done: Sequence[Point]) -> list[dict[str, Any]]:
  """Returns a record for each setting: fields, seeds of its finished runs, measures by seed."""
  by_setting: dict[str, list[Point]] = {}
  for point in done:
    by_setting.setdefault(point.setting.name, []).append(point)
  return [_record(points) for points in by_setting.values()]


def _record(planned: Sequence[Point]) -> dict[str, Any]:
  members = [point for point in planned if point.result is not None]
  return {
    'name': planned[0].setting.name,
    'fields': dict(planned[0].setting.fields),
    'seeds': [point.seed for point in members],
    'planned': len(planned),
    'workdirs': [point.workdir.name for point in members],
    'differing': _differing(members),
    'untrained': _measures(members, 'untrained'),
    'trained': _measures(members, 'trained'),
  }


def _differing(members: Sequence[Point]) -> list[str]:
  """Returns the fields but `seed` that differ between runs, as after an edit of the config file."""
  configs = [flatten(records.load_run(point.workdir).config) for point in members]
  fields = sorted(set().union(*configs) - {'seed'})
  return [field for field in fields if any(c.get(field) != configs[0].get(field) for c in configs)]


def _measures(members: Sequence[Point], label: str) -> dict[str, list[float | None]]:
  found = [point.evaluation(label) or {} for point in members]
  if label == 'trained':
    seen = [point.evaluation(records.SEEN) or {} for point in members]
    found = [a | {_SEEN + k: v for k, v in b.items()} for a, b in zip(found, seen, strict=True)]
  return {key: [record.get(key) for record in found] for _, key, _, _ in MEASURES}


def table(settings: Sequence[Mapping[str, Any]]) -> str:
  """Returns a Markdown table: a row per setting of `summary`, mean over seeds [lowest, highest].

  The first row is the untrained team, if the settings share it at each seed.
  """
  rows, starts = [], dict[tuple[str, int], Any]()
  for setting in settings:
    name, ended, planned = setting['name'], len(setting['seeds']), setting['planned']
    told = name if ended == planned else f'{name} ({ended} of {planned} seeds)'
    if setting['differing']:
      told += f' (runs differ in {", ".join(setting["differing"])})'
    rows.append((told, setting['trained']))
  begun = [
    ((key, seed), value)
    for setting in settings
    for key, values in setting['untrained'].items()
    for seed, value in zip(setting['seeds'], values, strict=True)
  ]
  if all(starts.setdefault(where, value) == value for where, value in begun):
    keys = settings[0]['untrained']
    first = {key: [value for (of, _), value in starts.items() if of == key] for key in keys}
    rows.insert(0, ('untrained', first))
  known = lambda values, key: [v for v in values.get(key, ()) if v is not None]
  shown = [m for m in MEASURES if any(known(values, m[1]) for _, values in rows)]
  lines = ['| | ' + ' | '.join(name for name, *_ in shown) + ' |']
  lines.append('| --- |' + ' ---: |' * len(shown))
  for name, values in rows:
    cells = [spread([scale * v for v in known(values, key)], d) for _, key, scale, d in shown]
    lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def spread(values: Sequence[float], decimals: int) -> str:
  """Returns 'mean [lowest, highest]', or '-' without values."""
  ends = {'x_low': min(values), 'x_high': max(values)} if len(values) > 1 else {}
  mean = statistics.mean(values) if values else None
  return formatting.interval({'x': mean, **ends}, 'x', decimals)
