"""Compares two evaluations of the same questions by paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agent_gspo.evaluation import results, statistics


def differences(a: Sequence[results.Record], b: Sequence[results.Record]) -> list[dict[str, Any]]:
  """Returns means and paired differences `a - b` of accuracy, Ctok and Ptok, with 95 % intervals.

  Args:
    a: Records of one system, one per question.
    b: Records of the other one, in any order.

  Returns:
    `measure`, `a`, `b`, `difference`, `difference_low`, `difference_high` of each measure.

  Raises:
    ValueError: The questions are not the same, or there are none.
  """
  theirs = {record['question_id']: record for record in b}
  ours = [record['question_id'] for record in a]
  if not ours or set(ours) != set(theirs):
    common = len(set(ours) & set(theirs))
    raise ValueError(
      f'{len(ours)} and {len(theirs)} questions, {common} of them the same: evaluate both systems '
      'on the same questions (config.evaluation.split and .questions).'
    )
  b = [theirs[question_id] for question_id in ours]
  score = lambda records: 100 * np.asarray([record['task_score'] for record in records], float)
  measures = {
    'accuracy, %': score,
    'tokens written a question (Ctok)': lambda records: results.per_question(records, 'written'),
    'tokens read a question (Ptok)': lambda records: results.per_question(records, 'read'),
  }
  rows = []
  for name, measure in measures.items():
    gap = statistics.paired_bootstrap(measure(a), measure(b))
    rows.append(
      {
        'measure': name,
        'a': float(measure(a).mean()),
        'b': float(measure(b).mean()),
        'difference': gap.mean,
        'difference_low': gap.low,
        'difference_high': gap.high,
      }
    )
  return rows
