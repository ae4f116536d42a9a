"""Builds tables of evaluations: a team before and after training, or beside its baselines."""

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
from agent_gspo.workdir.records import GRADED

WIDE = 130
"""Columns of a terminal that holds a team's table with its baselines."""
_WIDEST = 10_000  # columns of text that no table needs


def closing_table(
  before: Mapping[str, Any],
  after: Mapping[str, Any],
  baselines: Sequence[Mapping[str, Any]] = (),
) -> Table:
  """Compares two evaluations, as in `eval.jsonl`.

  Fractions change by points, amounts by percent. Missing figures are "-". Print the table with
  `print_whole` or `Progress.note`, or see `render_text`.

  Args:
    before: Evaluation of the untrained team.
    after: Evaluation of the trained team.
    baselines: Further evaluations (a single agent, a constant answer), shown between the two under
      their `label`.
  """
  defaults = ['untrained', *[''] * len(baselines), 'trained']
  return _figures([before, *baselines, after], defaults, with_change=True)


def evaluation_table(*records: Mapping[str, Any]) -> Table:
  """Shows evaluations side by side, without a comparison (see `closing_table`)."""
  return _figures(records, [''] * len(records), with_change=False)


def _figures(
  shown: Sequence[Mapping[str, Any]], defaults: Sequence[str], with_change: bool
) -> Table:
  """Makes a column per record; `defaults` are labels of those without one.

  The change is from the first to the last. Records in between have no intervals, so that the table
  fits a terminal of `WIDE` columns; without any in between it fits one of 80.
  """
  caption = markup.escape(_caption(shown))
  table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify='left', pad_edge=False)
  table.add_column('', style='bold')  # the one that wraps in a narrow terminal
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
  if any(record.get('failed') for record in shown):
    add('accuracy, failed questions wrong', 'task/accuracy_over_all')
    shown = [{**record, 'failed': len(record.get('failed') or ())} for record in shown]
    add('questions that failed', 'failed', decimals=0)
  for key in dict.fromkeys(key for record in shown for key in record if key.startswith(GRADED)):
    add(f'accuracy, {key.removeprefix(GRADED)} grader', key)
  add('tokens written a question (Ctok)', 'tokens/written_per_question', decimals=1)
  add('tokens read a question (Ptok)', 'tokens/read_per_question', decimals=0)
  if any(record.get('tokens/heard_per_question') for record in shown):
    add('tokens heard of teammates', 'tokens/heard_per_question', decimals=0)
  add('silent turns', 'comm/silence_rate')
  if any(r.get('comm/silence_rate_irrelevant') is not None for r in shown):
    add('silent, note relevant', 'comm/silence_rate_relevant')
    add('silent, note irrelevant', 'comm/silence_rate_irrelevant')
  # A baseline's only agent is not a member of the team.
  team = [shown[0], shown[-1]]
  for name in dict.fromkeys(str(a.get('name')) for r in team for a in r.get('agents') or ()):
    table.add_section()
    add(f'{name}: tokens written', 'written_per_question', agent=name, decimals=1)
    if any(_agent(r, name).get('silence_rate_relevant') is not None for r in shown):
      pair = ('silence_rate_relevant', 'silence_rate_irrelevant')
      add(f'{name}: silent, note relevant / irrelevant', *pair, agent=name)
    else:
      add(f'{name}: silent', 'silence_rate', agent=name)
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
  if x is not None and y is not None and (share or x):
    change = f'{100 * (y - x):+.1f} points' if share else f'{100 * (y / x - 1):+.0f} %'
  return [row[0], *(figure.partition(' [')[0] for figure in row[1:-1]), row[-1], change]


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
  for key, text in (('split', '{} split'), ('questions', '{} questions')):
    values = list(dict.fromkeys(str(r[key]) for r in shown if r.get(key) is not None))
    if values:
      parts.append(text.format(' / '.join(values)))
  temperatures = list(dict.fromkeys(r['temperature'] for r in shown if 'temperature' in r))
  if temperatures:
    parts.append('temperature ' + ' / '.join(formatting.number(t, 2) for t in temperatures))
  parts.append('brackets: 95 % interval')
  return ', '.join(parts)
