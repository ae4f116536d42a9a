"""Ranks the steps of a run by its own evaluations."""

from __future__ import annotations

import math
import pathlib
from typing import Any

from agent_gspo.values import is_real, is_whole
from agent_gspo.workdir import json_lines, records


def best_first(workdir: json_lines.PathLike) -> list[int]:
  """Returns the steps that were evaluated during training, the best first.

  Steps are ranked by accuracy (`task/accuracy` of the record labeled "during"), then by fewest
  tokens written per question, then by recency. If `evaluation` was changed mid-run, records on
  other questions than the newest record's come last.
  """
  found: dict[int, dict[str, Any]] = {}
  newest: dict[str, Any] = {}
  for _, record in json_lines.numbered(pathlib.Path(workdir) / records.EVALUATIONS):
    if (
      record is not None and record.get('label') == records.DURING and is_whole(record.get('step'))
    ):
      found[record['step']] = newest = record  # the later record of a repeated evaluation

  def score(step: int) -> tuple[bool, float, float, int]:
    record = found[step]
    accuracy = _number(record.get('task/accuracy'), -math.inf)
    written = _number(record.get('tokens/written_per_question'), math.inf)
    return records.asks_alike(record, newest), accuracy, -written, step

  return sorted(found, key=score, reverse=True)


def _number(value: Any, otherwise: float) -> float:
  return float(value) if is_real(value) and not math.isnan(value) else otherwise
