"""Builds tables of evaluations: before and after training, baselines, probes, differences."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box, cells, markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_gspo.apps.reporting import formatting
from agent_gspo.values import finite
from agent_gspo.workdir.records import GRADED, KIND, PASS

_VOTES = ('error_correlation', 'independent', 'channels')
_WIDEST = 10_000  # characters, wider than any table


def evaluation_table(*shown: Mapping[str, Any], with_change: bool = False) -> Table:
  """Returns a table of evaluations, as in `eval.jsonl`, side by side; missing figures are "-".

  `with_change` compares the untrained team with the trained one: fractions change by points,
  amounts by percent. Print the table with `print_whole` or `Progress.note`, or see `render_text`.
  """
  defaults = ('untrained', 'trained') if with_change else ('',) * len(shown)
  caption = markup.escape(_caption(shown))
  table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify='left', pad_edge=False)
  table.add_column('', style='bold')  # only this column wraps in a narrow terminal
  for record, default in zip(shown, defaults, strict=True):
    label = str(record.get('label') or default)
    name = f'{label} team' if label in ('untrained', 'during', 'trained') else label
    name = name.replace(' ', '\n', 1) if len(shown) > 1 else name
    table.add_column(Text(name), justify='right', vertical='bottom', no_wrap=True)
  if with_change:
    table.add_column('change', justify='right', vertical='bottom', no_wrap=True)

  def add(name: str, *keys: str, agent: str = '', decimals: int | None = None) -> None:
    """Adds a row of the figures under some keys; fractions if `decimals` is None."""
    sources = [_agent(record, agent) if agent else record for record in shown]
    rows = [_row(sources, key, decimals, with_change) for key in keys]
    figures = [' / '.join(parts) for parts in zip(*rows, strict=True)]
    if len(keys) > 1 and with_change:
      figures[-1] = figures[-1].replace(' points /', ' /')
    table.add_row(Text(name), *figures)  # not markup: a name may hold brackets

  add('accuracy', 'task/accuracy')
  for key in _keys(shown, PASS):
    add(key.removeprefix('task/'), key)
  if any(record.get('failed') for record in shown):
    add('accuracy, failed questions wrong', 'task/accuracy_over_all')
    shown = tuple({**record, 'failed': len(record.get('failed') or ())} for record in shown)
    add('questions that failed', 'failed', decimals=0)
  for key in _keys(shown, GRADED):
    add(f'accuracy, {key.removeprefix(GRADED)} grader', key)
  for key in _keys(shown, KIND):
    add(f'accuracy, {key.removeprefix(KIND)} questions', key)
  add('tokens written per question (Ctok)', 'tokens/written_per_question', decimals=1)
  add('tokens written per solved question', 'tokens/written_per_solved', decimals=1)
  add('tokens read per question (Ptok)', 'tokens/read_per_question', decimals=0)
  if any(record.get('tokens/heard_per_question') for record in shown):
    add('tokens heard of teammates', 'tokens/heard_per_question', decimals=1)
  if any(record.get('tools/calls_per_question') for record in shown):
    add('tool calls per question', 'tools/calls_per_question', decimals=1)
    add('tokens inserted by tools', 'tools/tokens_per_question', decimals=1)
  add('silent turns', 'comm/silence_rate')
  if any(r.get('comm/silence_rate_irrelevant') is not None for r in shown):
    add('silent, note relevant', 'comm/silence_rate_relevant')
    add('silent, note irrelevant', 'comm/silence_rate_irrelevant')
  for name in dict.fromkeys(str(a.get('name')) for r in shown for a in r.get('agents') or ()):
    table.add_section()
    add(f'{name}: tokens written', 'written_per_question', agent=name, decimals=1)
    pair = ('silence_rate_relevant', 'silence_rate_irrelevant')
    if any(_agent(r, name).get(key) is not None for r in shown for key in pair):
      add(f'{name}: silent, note relevant / irrelevant', *pair, agent=name)
    else:
      add(f'{name}: silent', 'silence_rate', agent=name)
    if any('earned_per_question' in _agent(r, name) for r in shown):
      add(f'{name}: earned', 'earned_per_question', agent=name, decimals=2)
  return table


def _row(
  sources: Sequence[Mapping[str, Any]], key: str, decimals: int | None, with_change: bool
) -> list[str]:
  """Returns a figure of each source, and its change from the first to the last one."""
  share = decimals is None
  digits, scale, unit = (1, 100, ' %') if decimals is None else (decimals, 1, '')
  row = [formatting.interval(source, key, digits, scale, unit=unit) for source in sources]
  if not with_change:
    return row
  x, y = finite(sources[0].get(key)), finite(sources[-1].get(key))
  change = formatting.MISSING
  if x is not None and y is not None and (share or x > 0):
    change = f'{100 * (y - x):+.1f} points' if share else f'{100 * (y / x - 1):+.0f} %'
  return [*row, change]


def _keys(records: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
  """Returns the keys of any record that begin with a prefix, in order of first occurrence."""
  return list(dict.fromkeys(k for record in records for k in record if k.startswith(prefix)))


def _agent(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
  return next((a for a in record.get('agents') or () if a.get('name') == name), {})


def print_whole(table: Table, console: Console) -> None:
  """Prints a rich table, with lines longer than the console instead of clipped figures."""
  for column in table.columns:
    texts = map(str, (column.header, *column.cells))
    # Unbreakable parts: a line, or a word if lines may wrap.
    parts = [part for text in texts for part in text.split('\n' if column.no_wrap else None)]
    column.min_width = max(map(cells.cell_len, parts), default=0)
  least = console.measure(table, options=console.options.update(width=_WIDEST)).minimum
  if least > console.width:
    table.width = least
  console.print(table, crop=False)


def render_text(table: Table, width: int = 120) -> str:
  """Returns a rich table as plain text, for logs and files; wider if its figures need it."""
  file = io.StringIO()
  console = Console(file=file, width=width, color_system=None, force_terminal=False)
  print_whole(table, console)
  return '\n'.join(line.rstrip() for line in file.getvalue().splitlines()) + '\n'


def _caption(shown: Sequence[Mapping[str, Any]]) -> str:
  """Describes split, questions and temperature, with all values where the records differ."""
  parts = []
  texts = {
    'split': '{} split',
    'questions': '{} questions',
    'samples_per_question': '{} samples of each',
    'temperature': 'temperature {}',
  }
  for key, text in texts.items():
    values = list(dict.fromkeys(str(r[key]) for r in shown if r.get(key) is not None))
    if values:
      parts.append(text.format(' / '.join(values)))
  parts.append('brackets: 95 % interval')
  return ', '.join(parts)


def comparison_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
  """Returns a table with a row per evaluation, as in `result.json`.

  Columns: accuracy, also by grader if a task has several; tokens per question written, read, both
  as plain text (see `evaluation.text_counts`) and on the critical path; calls per question; silent
  turns; money per question if known; how much voters differ if agents vote (see
  `evaluation.results.votes`); failed questions if any.
  """
  money = any('money/per_question' in e for e in evaluations)
  graded = _keys(evaluations, GRADED)
  by_grader = [f'{key.removeprefix(GRADED)}, %' for key in graded]
  heads = (
    '', 'accuracy, %', *by_grader, 'Ctok', 'Ptok', 'as text', 'path', 'calls', 'silent, %'
  )  # fmt: skip
  voted = any('votes/channels' in e for e in evaluations)
  failed = any('failed' in e for e in evaluations)
  voters = "voters' error correlation / independent voters / K*"
  table = _plain([*heads, *['money'] * money, *[voters] * voted, *['failed'] * failed])
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
      *[' / '.join(formatting.fixed(e.get(f'votes/{key}'), 2) for key in _VOTES)] * voted,
      *[str(len(e.get('failed', ())))] * failed,
    )
  return table


def probe_table(rows: Sequence[Mapping[str, Any]]) -> Table:
  """Returns a table, a row per probe: accuracy lost, and the value of a muted agent's tokens."""
  heads = (
    'probe', 'accuracy, %', 'points lost', "agent's Ctok", 'points per 100 tokens',
    'silent: note relevant / irrelevant, %', 'errors planted, %', 'answers changed, %',
  )  # fmt: skip
  table = _plain(heads)
  for row in rows:
    silent = [f'silence_rate_{kind}' for kind in ('relevant', 'irrelevant')]
    table.add_row(
      Text(str(row['probe'])),
      formatting.fixed(row['task/accuracy'], 1, 100),
      formatting.interval(row, 'task/accuracy_lost', 1, 100),
      formatting.fixed(row.get('agent_written_per_question'), 1),
      formatting.fixed(row.get('points_per_100_tokens'), 1),
      ' / '.join(formatting.interval(row, key, 1, 100) for key in silent),
      *(formatting.interval(row, key, 1, 100) for key in ('planted', 'answers_changed')),
    )
  return table


def difference_table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
  """Returns two systems and their difference, a row per measure (see `results.differences`)."""
  table = _plain(['', *names, 'difference', 'questions to see it'])
  for row in rows:
    table.add_row(
      Text(str(row['measure'])),
      formatting.fixed(row['a'], 1),
      formatting.fixed(row['b'], 1),
      formatting.interval(row, 'difference', 1, signed=True),
      formatting.fixed(row.get('needed'), 0),
    )
  return table


def _plain(heads: Sequence[str]) -> Table:
  table = Table(box=box.SIMPLE_HEAD, caption='brackets: 95 % interval', caption_justify='left')
  for i, head in enumerate(heads):
    table.add_column(Text(head), justify='right' if i else 'left', no_wrap=True)
  return table
