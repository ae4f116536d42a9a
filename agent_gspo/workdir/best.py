"""Which steps of a run are the best, by its own evaluations."""

from __future__ import annotations

import math
import pathlib
from typing import Any

from agent_gspo.values import is_real, is_whole
from agent_gspo.workdir import json_lines, records


def best_first(workdir: json_lines.PathLike) -> list[int]:
  """Returns the steps that were evaluated during training, the best first.

  The best has the highest accuracy (`task/accuracy` of its record labelled "during"); of those
  alike the one that writes fewest tokens a question, of those the latest. Where `evaluation` was
  changed in mid-run, records of other questions than the newest one's come last.
  """
  found: dict[int, dict[str, Any]] = {}
  newest: dict[str, Any] = {}
  for _, record in json_lines.numbered(pathlib.Path(workdir) / records.EVALUATIONS):
    if (
      record is not None and record.get('label') == records.DURING and is_whole(record.get('step'))
    ):
      found[record['step']] = newest = record  # of an evaluation done twice the later one

  def score(step: int) -> tuple[bool, float, float, int]:
    record = found[step]
    accuracy = _number(record.get('task/accuracy'), -math.inf)
    written = _number(record.get('tokens/written_per_question'), math.inf)
    return records.asks_alike(record, newest), accuracy, -written, step

  return sorted(found, key=score, reverse=True)


def _number(value: Any, otherwise: float) -> float:
  return float(value) if is_real(value) and not math.isnan(value) else otherwise
