"""The table that a run ends with: the team before and after training."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box, cells, markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_gspo.apps.reporting import formatting
from agent_gspo.workdir.records import GRADED

_Write = Callable[[Any], str]
_Value = Callable[[Any], Any]
_WIDEST = 10_000  # columns of text that no table needs


def closing_table(
  before: Mapping[str, Any],
  after: Mapping[str, Any],
  extra_rows: Sequence[Sequence[str]] = (),
  baselines: Sequence[Mapping[str, Any]] = (),
) -> Table:
  """Compares two evaluations, as they stand in `eval.jsonl`.

  Shares change by points, amounts by percent. Missing figures are "-".

  Args:
    before: evaluation of the untrained team.
    after: evaluation of the trained team.
    extra_rows: up to four texts each: name, before, after, change.
    baselines: further evaluations (a single agent, a constant answer), shown between the
      two under their `label`.

  Returns:
    A rich table; print it, hand it to `Progress.note`, or see `render_text`.

  Raises:
    ValueError: an extra row is empty or longer than four texts.
  """
  defaults = ['untrained', *[''] * len(baselines), 'trained']
  table = _figures([before, *baselines, after], defaults, with_change=True)
  for i, row in enumerate(extra_rows):
    if not 1 <= len(row) <= 4:
      raise ValueError(f'extra_rows[{i}] = {row!r}: give name, before, after, change')
    if i == 0:
      table.add_section()
    name, first, last, change = [*map(str, row), '', '', ''][:4]
    table.add_row(*map(Text, (name, first, *[''] * len(baselines), last, change)))
  return table


def evaluation_table(
  record: Mapping[str, Any], baselines: Sequence[Mapping[str, Any]] = ()
) -> Table:
  """One evaluation beside its baselines, without a comparison (see `closing_table`)."""
  return _figures([record, *baselines], [''] * (1 + len(baselines)), with_change=False)


def _figures(
  shown: Sequence[Mapping[str, Any]], defaults: Sequence[str], with_change: bool
) -> Table:
  """A column a record; `defaults` name those without a label. The change is first to last.

  Records in between are narrow, without intervals: the table fits a terminal of 130 columns.
  """
  caption = markup.escape(_caption(shown))
  table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify='left')
  table.add_column('', style='bold')  # the one that wraps in a narrow terminal
  for record, default in zip(shown, defaults, strict=True):
    label = str(record.get('label') or default)
    name = f'{label} team' if label in ('untrained', 'during', 'trained') else label
    name = name.replace(' ', '\n', 1) if with_change else name
    table.add_column(Text(name), justify='right', vertical='bottom', no_wrap=True)
  if with_change:
    table.add_column('change', justify='right', vertical='bottom', no_wrap=True)

  def add(name: str, write: _Write, value: _Value, change: Callable[[Any, Any], str]) -> None:
    cells = [write(record) for record in shown]
    if with_change:
      cells[1:-1] = [cell.partition(' [')[0] for cell in cells[1:-1]]
      cells.append(change(value(shown[0]), value(shown[-1])))
    table.add_row(Text(name), *cells)  # not markup: a name may hold brackets

  add('accuracy', *_share('task/accuracy'), _points)
  if any(record.get('failed') for record in shown):
    failed: _Value = lambda record: len(record.get('failed') or ())
    add('accuracy, failed questions wrong', *_share('task/accuracy_over_all'), _points)
    add('questions that failed', lambda record: str(failed(record)), failed, _ratio)
  for key in dict.fromkeys(key for record in shown for key in record if key.startswith(GRADED)):
    add(f'accuracy, {key.removeprefix(GRADED)} grader', *_share(key), _points)
  add('tokens written a question (Ctok)', *_amount('tokens/written_per_question', 1), _ratio)
  add('tokens read a question (Ptok)', *_amount('tokens/read_per_question', 0), _ratio)
  if any(record.get('tokens/heard_per_question') for record in shown):
    add('tokens heard of teammates', *_amount('tokens/heard_per_question', 0), _ratio)
  add('silent turns', *_share('comm/silence_rate'), _points)
  if any(r.get('comm/silence_rate_irrelevant') is not None for r in shown):
    add('silent with a needed note', *_share('comm/silence_rate_relevant'), _points)
    add('silent with an idle note', *_share('comm/silence_rate_irrelevant'), _points)
  for name in _agent_names([shown[0], shown[-1]] if with_change else [shown[0]]):
    table.add_section()
    add(f'{name}: tokens written', *_agent_amount(name, 'written_per_question'), _ratio)
    if any(_agent(r, name).get('silence_rate_relevant') is not None for r in shown):
      add(f'{name}: silent, needed / idle note', *_agent_pair(name), _pair_points)
    else:
      add(f'{name}: silent', *_agent_share(name, 'silence_rate'), _points)
  return table


def print_whole(table: Table, console: Console) -> None:
  """Prints a rich table, with lines longer than the console rather than figures cut off."""
  for column in table.columns:
    texts = map(str, (column.header, *column.cells))
    # What must stand side by side: a line, or a word where lines may be parted.
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
  """Says on what was measured; the records' differences where they differ."""
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


def _share(key: str) -> tuple[_Write, _Value]:
  def write(record: Mapping[str, Any]) -> str:
    text = formatting.percent(record.get(key))
    low, high = (formatting.finite(record.get(f'{key}_{end}')) for end in ('low', 'high'))
    return text if low is None or high is None else f'{text} [{100 * low:.1f}, {100 * high:.1f}]'

  return write, lambda record: record.get(key)


def _amount(key: str, decimals: int) -> tuple[_Write, _Value]:
  def write(record: Mapping[str, Any]) -> str:
    text = formatting.fixed(record.get(key), decimals)
    low, high = (formatting.fixed(record.get(f'{key}_{end}'), decimals) for end in ('low', 'high'))
    return text if formatting.MISSING in (low, high) else f'{text} [{low}, {high}]'

  return write, lambda record: record.get(key)


def _agent_share(name: str, key: str) -> tuple[_Write, _Value]:
  return (
    lambda record: formatting.percent(_agent(record, name).get(key)),
    lambda record: _agent(record, name).get(key),
  )


def _agent_pair(name: str) -> tuple[_Write, _Value]:
  def value(record: Mapping[str, Any]) -> tuple[Any, Any]:
    agent = _agent(record, name)
    return agent.get('silence_rate_relevant'), agent.get('silence_rate_irrelevant')

  return lambda record: ' / '.join(map(formatting.percent, value(record))), value


def _agent_amount(name: str, key: str) -> tuple[_Write, _Value]:
  return (
    lambda record: formatting.fixed(_agent(record, name).get(key), 1),
    lambda record: _agent(record, name).get(key),
  )


def _agent(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
  return next((a for a in record.get('agents') or () if a.get('name') == name), {})


def _agent_names(team: Sequence[Mapping[str, Any]]) -> list[str]:
  """Of the evaluations of a team; a baseline's only agent is no member of it."""
  return list(dict.fromkeys(str(a.get('name')) for r in team for a in r.get('agents') or ()))


def _points(before: Any, after: Any) -> str:
  x, y = formatting.finite(before), formatting.finite(after)
  return formatting.MISSING if x is None or y is None else f'{100 * (y - x):+.1f} points'


def _pair_points(before: tuple[Any, Any], after: tuple[Any, Any]) -> str:
  first, second = (_points(x, y) for x, y in zip(before, after, strict=True))
  return f'{first.removesuffix(" points")} / {second}'


def _ratio(before: Any, after: Any) -> str:
  x, y = formatting.finite(before), formatting.finite(after)
  return formatting.MISSING if x is None or y is None or x == 0 else f'{100 * (y / x - 1):+.0f} %'
