"""Builds tables with a row per system: evaluations side by side, probes, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from agent_gspo.apps.reporting import formatting
from agent_gspo.workdir.records import GRADED


def comparison_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
  """Returns a table with a row per evaluation, as in `result.json`.

  Columns: accuracy, also by grader if a task has several; tokens per question written, read, both
  as plain text (see `evaluation.text_counts`) and on the critical path; calls per question; silent
  turns; money per question if known; failed questions if any.
  """
  money = any('money/per_question' in e for e in evaluations)
  graded = list(dict.fromkeys(key for e in evaluations for key in e if key.startswith(GRADED)))
  by_grader = [f'{key.removeprefix(GRADED)}, %' for key in graded]
  heads = (
    '', 'accuracy, %', *by_grader, 'Ctok', 'Ptok', 'as text', 'path', 'calls', 'silent, %'
  )  # fmt: skip
  failed = any('failed' in e for e in evaluations)
  table = _table([*heads, *['money'] * money, *['failed'] * failed])
  for e in evaluations:
    text = [e.get(f'tokens/text_{kind}_per_question') for kind in ('written', 'read')]
    table.add_row(
      Text(str(e['label'])),  # not markup: a name may hold brackets
      formatting.interval(e, 'task/accuracy', 1, 100),
      *(formatting.interval(e, key, 1, 100) for key in graded),
      formatting.interval(e, 'tokens/written_per_question', 1),
      formatting.interval(e, 'tokens/read_per_question', 0),
      ' + '.join(formatting.fixed(t, d) for t, d in zip(text, (1, 0), strict=True)),
      formatting.fixed(e.get('tokens/critical_path_per_question'), 1),
      formatting.fixed(e.get('comm/calls_per_question'), 1),
      formatting.interval(e, 'comm/silence_rate', 1, 100),
      *[formatting.number(e.get('money/per_question'))] * money,
      *[str(len(e.get('failed', ())))] * failed,
    )
  return table


def probe_table(rows: Sequence[Mapping[str, Any]]) -> Table:
  """Returns a table, a row per probe: accuracy lost, and the value of a muted agent's tokens."""
  heads = (
    'probe', 'accuracy, %', 'points lost', "agent's Ctok", 'points a 100 tokens',
    'silent: note relevant / irrelevant, %',
  )  # fmt: skip
  table = _table(heads)
  for row in rows:
    silent = [f'silence_rate_{kind}' for kind in ('relevant', 'irrelevant')]
    table.add_row(
      Text(str(row['probe'])),
      formatting.interval({'x': row['task/accuracy']}, 'x', 1, 100),
      formatting.interval(row, 'task/accuracy_lost', 1, 100),
      formatting.fixed(row.get('agent_written_per_question'), 1),
      formatting.fixed(row.get('points_per_100_tokens'), 1),
      ' / '.join(formatting.interval(row, key, 1, 100) for key in silent),
    )
  return table


def difference_table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
  """Returns two systems and their difference, a row per measure (see `compare.differences`)."""
  table = _table(['', *names, 'difference'])
  for row in rows:
    table.add_row(
      Text(str(row['measure'])),
      formatting.fixed(row['a'], 1),
      formatting.fixed(row['b'], 1),
      formatting.interval(row, 'difference', 1, signed=True),
    )
  return table


def _table(heads: Sequence[str]) -> Table:
  table = Table(box=box.SIMPLE_HEAD, caption='brackets: 95 % interval', caption_justify='left')
  for i, head in enumerate(heads):
    table.add_column(Text(head), justify='right' if i else 'left', no_wrap=True)
  return table
