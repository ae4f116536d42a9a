"""Formats one aligned line of text per step, for logs and pipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gspo.apps.reporting import formatting

HEADER_EVERY = 20

# Heading, width, metric, formatter.
_COLUMNS = (
  ('acc %', 6, 'task/accuracy', lambda x: _scaled(x, 100, 1)),
  ('run %', 6, 'budget/running_accuracy', lambda x: _scaled(x, 100, 1)),
  ('reward', 7, 'reward/mean', lambda x: formatting.fixed(x, 3)),
  ('written', 8, 'tokens/written_per_question', lambda x: formatting.fixed(x, 1)),
  ('read', 8, 'tokens/read_per_question', lambda x: formatting.fixed(x, 0)),
  ('silent %', 8, 'comm/silence_rate', lambda x: _scaled(x, 100, 1)),
  ('rel %', 6, 'comm/silence_rate_relevant', lambda x: _scaled(x, 100, 1)),
  ('irrel %', 7, 'comm/silence_rate_irrelevant', lambda x: _scaled(x, 100, 1)),
  ('lambda', 8, 'budget/lambda_tok', formatting.number),
  ('ratio', 7, 'policy/ratio_mean', lambda x: formatting.fixed(x, 4)),
  ('clip %', 6, 'policy/clip_fraction', lambda x: _scaled(x, 100, 1)),
  ('roll s', 6, 'time/rollout_s', lambda x: formatting.fixed(x, 1)),
  ('score s', 7, 'time/score_s', lambda x: formatting.fixed(x, 1)),
  ('upd s', 6, 'time/update_s', lambda x: formatting.fixed(x, 1)),
)


def header() -> str:
  """Returns the headings; every line has their width unless a number overflows."""
  names = [f'{name:>{width}}' for name, width, _, _ in _COLUMNS]
  return ' '.join([f'{"step":>7}', *names, f'{"left":>8}'])


def line(step: int, metrics: Mapping[str, Any], remaining_seconds: float | None) -> str:
  """Returns the line of one step, with "-" for missing metrics."""
  cells = [f'{write(metrics.get(key)):>{width}}' for _, width, key, write in _COLUMNS]
  left = formatting.duration(None if remaining_seconds is None else round(remaining_seconds))
  return ' '.join([f'{step:>7}', *cells, f'{left:>8}'])


def _scaled(value: Any, scale: float, decimals: int) -> str:
  x = formatting.finite(value)
  return formatting.fixed(None if x is None else x * scale, decimals)
