"""Collects the data of a report, small enough to open in a browser."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gspo.apps.reporting import formatting
from agent_gspo.values import flatten, is_real
from agent_gspo.workdir import json_lines, records

MAX_TRANSCRIPTS = 300
_MAX_POINTS = 800
_MAX_TEXT = 4000
_MAX_CHARACTERS = 6_000_000  # of all transcripts together


def build(runs: Sequence[records.Run]) -> dict[str, Any]:
  """Collects the data of the page.

  Two thirds of each run's share of `MAX_TRANSCRIPTS` are its newest episodes; the rest is spread
  over earlier ones, to show how the team changed.

  Returns:
    Plain JSON data: `runs` (name, config, steps and series of RL and SFT, evaluations, edges and
    the evaluation they are from, number of transcripts in the file) and `transcripts`. An
    evaluation at a price or budget has it as `told`.
  """
  shown_runs, shown_transcripts = [], []
  share = max(1, MAX_TRANSCRIPTS // max(1, len(runs)))
  for i, run in enumerate(runs):
    chosen, total = pick_transcripts(run.workdir, share)
    steps, series = thin_out(run.metrics, _MAX_POINTS)
    sft_steps, sft_series = thin_out(run.sft, _MAX_POINTS)
    graph = records.with_edges(run.evaluations) or {}
    shown_runs.append(
      {
        'name': run.name,
        'config': _fields(run.config),
        'steps': steps,
        'series': series,
        'sft': {'steps': sft_steps, 'series': sft_series},
        'evaluations': [_evaluation(e) for e in run.evaluations],
        'edges': _rounded(sorted(graph.get('edges') or (), key=lambda e: -e['tokens'])),
        'edges_of': {key: graph.get(key) for key in ('label', 'step', 'split')},
        'transcripts': total,
      }
    )
    room = _MAX_CHARACTERS // len(runs)
    for transcript in reversed(chosen):
      small = _clip_transcript(transcript)
      room -= sum(len(str(m.get('text'))) for m in small['messages'])
      if room < 0:
        break
      shown_transcripts.append({**small, 'run': i})
  return {'runs': shown_runs, 'transcripts': shown_transcripts}


def pick_transcripts(workdir: pathlib.Path, most: int) -> tuple[list[dict[str, Any]], int]:
  """Returns at most `most` episodes of a run, and the number in its file."""
  found = json_lines.numbered(workdir / records.TRANSCRIPTS)
  total = sum(record is not None for _, record in found)
  keep = set(range(total))
  if total > most:
    early = most // 3
    older = total - (most - early)
    keep = {i * older // early for i in range(early)} | set(range(older, total))
  return [t for i, t in enumerate(records.transcripts(workdir)) if i in keep], total


def thin_out(
  metrics: Sequence[Mapping[str, Any]], most: int
) -> tuple[list[float], dict[str, list[float | None]]]:
  """Converts records into curves of at most `most` points.

  Returns:
    The steps `[n]`, and for every key its values `[n]`, None where missing. In a longer run a
    point is the mean over a slice of steps, placed at the slice's last step.
  """
  keys = sorted({key for m in metrics for key, value in m.items() if is_real(value)} - {'step'})
  slices = [metrics[i * len(metrics) // most : (i + 1) * len(metrics) // most] for i in range(most)]
  if len(metrics) <= most:
    slices = [[m] for m in metrics]
  series = {key: [_mean([m.get(key) for m in part]) for part in slices] for key in keys}
  return [part[-1]['step'] for part in slices], series


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of a config as `{'a.b': value}`; lists become text."""
  written = lambda value: ', '.join(map(str, value)) if isinstance(value, list | tuple) else value
  return {field: written(value) for field, value in flatten(config).items()}


def _evaluation(evaluation: Mapping[str, Any]) -> dict[str, Any]:
  """Adds the price or budget of an evaluation, if its label has one."""
  told = records.told_value(evaluation)
  return _rounded({**evaluation, **({} if told is None else {'told': told})})


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
