"""Formats one aligned line of text per step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agent_gspo.apps.reporting.formatting import fixed, number

HEADER_EVERY = 20

_PERCENT = partial(fixed, decimals=1, scale=100)
_WHOLE, _SHORT, _LONG, _RATIO = (partial(fixed, decimals=n) for n in (0, 1, 3, 4))
# Heading, width, metric, formatter.
_COLUMNS = (
  ('acc %', 6, 'task/accuracy', _PERCENT),
  ('run %', 6, 'budget/running_accuracy', _PERCENT),
  ('reward', 7, 'reward/mean', _LONG),
  ('written', 8, 'tokens/written_per_question', _SHORT),
  ('read', 8, 'tokens/read_per_question', _WHOLE),
  ('silent %', 8, 'comm/silence_rate', _PERCENT),
  ('rel %', 6, 'comm/silence_rate_relevant', _PERCENT),
  ('irrel %', 7, 'comm/silence_rate_irrelevant', _PERCENT),
  ('lambda', 8, 'budget/lambda_tok', number),
  ('ratio', 7, 'policy/ratio_mean', _RATIO),
  ('clip %', 6, 'policy/clip_fraction', _PERCENT),
  ('roll s', 6, 'time/rollout_s', _SHORT),
  ('score s', 7, 'time/score_s', _SHORT),
  ('upd s', 6, 'time/update_s', _SHORT),
)


def header(width: int) -> str:
  """Returns the headings; every line has their width unless a number overflows."""
  names = [f'{name:>{cell}}' for name, cell, _, _ in _COLUMNS]
  return _joined([f'{"step":>7}', *names, f'{"left":>8}'], width)


def line(step: int, metrics: Mapping[str, Any], left: str, width: int) -> str:
  """Returns the line of one step, with "-" for missing metrics.

  Args:
    step: Number of the step.
    metrics: Metrics of the step.
    left: Time to the end of the run.
    width: Characters of the longest line; columns that do not fit are left out.
  """
  cells = [f'{write(metrics.get(key)):>{cell}}' for _, cell, key, write in _COLUMNS]
  return _joined([f'{step:>7}', *cells, f'{left:>8}'], width)


def _joined(cells: Sequence[str], width: int) -> str:
  ends = itertools.accumulate(len(cell) + 1 for cell in cells)
  return ' '.join(cell for cell, end in zip(cells, ends, strict=True) if end <= width + 1)
