r"""Parses values of names (`x=1, y=2`) or conditions (`x<1` or `x>2`) in an expression.

A value belongs to its name, in any order of the names. Values without names belong to the names of
the gold expression in their order, or to those of the answer if the gold one is a tuple: single
letters in alphabetical order, as in (x,y). One name with several values is a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_NAME = r"(?:\\?[A-Za-z]+|\\text\{[^{}]*\})'*(?:_(?:\{\w+\}|\w))?(?:\([a-z]\))?"
_NAMES = re.compile(rf'{_NAME}(?:={_NAME})*')
_POINTS = re.compile(rf'\(({_NAME}(?:,{_NAME})+)\)(?:=|\\in)(?:\\\{{(.*)\\\}}|(.*))')
_BRACKETS = re.compile(r'(?:\\?\{|[(\[])(.*?)(?:\\?\}|[)\]])')
_SYSTEM = re.compile(r'\\begin\{(cases|aligned)\}(.*?)\\end\{\1\}', re.DOTALL)
_AND = re.compile(
  r'[,;]?\s*\\text\{[\s,]*and\s*\}|[,;]?(?<![A-Za-z])and(?![A-Za-z])|\\(?:land|wedge)(?![A-Za-z])'
)
_OR = re.compile(
  r'[,;]?\s*\\text\{[\s,]*or\s*\}|[,;]?(?<![A-Za-z])or(?![A-Za-z])|\\(?:lor|vee)(?![A-Za-z])'
)
RELATION = re.compile(
  r'[<>]|\\(?:leq?|geq?|lt|gt|neq?|leqslant|geqslant|in|notin|setminus)(?![A-Za-z])'
)
_BUILDER = re.compile(
  r'\\\{(?:\\?[A-Za-z]+)(?:\\in\\mathbb\{?R\}?)?(?:\\mid|\\vert|\\colon|[|:])(.*)\\\}', re.DOTALL
)
_UNEQUAL = re.compile(r'.*\\neq?(?![A-Za-z])')

_SPACES = re.compile(r'(\\[A-Za-z]++)\s+(?=[A-Za-z])|\s+')

_Record = dict[str, str]  # name -> value


def without_spaces(latex: str) -> str:
  """Removes all spaces but those that end a command."""
  return _SPACES.sub(lambda match: match[1] + ' ' if match[1] else '', latex)


def split(text: str, separators: str) -> list[str]:
  """Splits a text at separators, one character each, outside of brackets."""
  parts, depth, start = [], 0, 0
  for i, character in enumerate(text):
    if character in '([{':
      depth += 1
    elif character in ')]}':
      depth -= 1
    elif depth == 0 and character in separators:
      parts.append(text[start:i])
      start = i + 1
  return [*parts, text[start:]]


def same_values(answer: str, gold: str, same: Callable[[str, str], bool]) -> bool | None:
  """Returns whether two expressions assign the same values to their names.

  Args:
    answer, gold: LaTeX with normalized sizes and spaces.
    same: Comparison of two values, or of two lists of values without names.

  Returns:
    True or False, or None if the names do not matter.
  """
  if '=' not in (text := answer + gold) and '\\in' not in text:
    return None
  answer, gold = _joined(answer), _joined(gold)
  have, want = _records(answer), _records(gold)
  if have is None and want is None:
    return None
  names = list((want or have or [{}])[0])
  # In "x = k = 15", only the name in the gold expression counts.
  if have and want and len(have) == len(names) == len({*have[0].values()}) == 1:
    have = [{name: have[0][name] for name in names if name in have[0]} or have[0]]
  if len(names) == 1 and all(len(record) == 1 for record in (have or []) + (want or [])):
    return _same_values_of_one_name(answer, gold, have, want, same)
  if want is None and have is not None:
    if all(len(name) == 1 for name in names):
      names = sorted(names)
    want = _points(gold, names)
    if want is None:  # an unordered list, or one value
      values = [record[name] for record in have for name in names if name in record]
      return same(','.join(values), gold) if len(split(gold, ',')) == len(values) else None
  elif have is None:
    have = _points(answer, names) or _points(f'({answer})', names)
  return have is not None and want is not None and same_records(have, want, same)


def _same_values_of_one_name(
  answer: str,
  gold: str,
  have: Sequence[_Record] | None,
  want: Sequence[_Record] | None,
  same: Callable[[str, str], bool],
) -> bool | None:
  """Compares like `same_values` expressions with at most one name and any number of values."""
  if have and want and set(have[0]) != set(want[0]) and '(' not in ''.join((*have[0], *want[0])):
    return False
  if len(have or [{}]) == len(want or [{}]) == 1:
    return None
  values = (
    ','.join(value for record in found for value in record.values()) if found else text
    for found, text in ((have, answer), (want, gold))
  )
  return same(*values)


def same_records(
  have: Sequence[_Record], want: Sequence[_Record], same: Callable[[str, str], bool]
) -> bool:
  """Returns whether both have the same records, in any order."""

  def equal(one: _Record, other: _Record) -> bool:
    return one.keys() == other.keys() and all(same(one[name], other[name]) for name in other)

  if len(have) != len(want):
    return False
  left = list(have)
  for record in want:
    match = next((one for one in left if equal(one, record)), None)
    if match is None:
      return False
    left.remove(match)
  return True


def conditions(latex: str) -> list[list[str]]:
  """Returns the conditions on one variable: a list of alternatives, each a list of conditions.

  Conditions are LaTeX without spaces; intervals and numbers are conditions, too.
  """
  built = _BUILDER.fullmatch(without_spaces(latex))
  alternatives = []
  for alternative in _OR.split(built[1] if built else latex):
    parts: list[str] = []
    for part in split(_joined(alternative), ',;'):
      unequal = _UNEQUAL.match(parts[-1]) if parts and not RELATION.search(part) else None
      parts.append((unequal[0] if unequal else '') + part)
    alternatives.append(parts)
  return alternatives


def _joined(latex: str) -> str:
  """Removes spaces, and separates the parts of an expression by commas."""
  latex = _SYSTEM.sub(lambda match: match[2].replace('\\\\', ',').replace('&', ''), latex)
  return without_spaces(_OR.sub(',', _AND.sub(',', latex))).strip(',;')


def _records(text: str) -> list[_Record] | None:
  """Returns values by name, a new record for each repeated name; None without names."""
  if points := _POINTS.fullmatch(text):
    return _points(points[2] or points[3], [_plain(name) for name in points[1].split(',')])
  if len(split(text, ',;=')) == 1 and (inner := _BRACKETS.fullmatch(text)):
    text = inner[1]
  records: list[_Record] = [{}]
  for part in split(text, ',;'):
    *names, value = split(part, '=')
    if names and _NAMES.fullmatch('='.join(names)) and value:
      for name in map(_plain, names):
        if name in records[-1]:
          records.append({})
        records[-1][name] = value
    elif not names and records[-1]:  # another value of the last name
      records[-1][next(reversed(records[-1]))] += ',' + value
    else:
      return None
  return records


def _points(text: str, names: Sequence[str]) -> list[_Record] | None:
  """Returns the values of tuples such as `(1,2),(2,1)`, by name; None for anything else."""
  found = []
  for point in split(text, ',;'):
    values = split(point[1:-1], ',;')
    if point[:1] + point[-1:] != '()' or len(values) != len(names):
      return None
    found.append(dict(zip(names, values, strict=True)))
  return found


def _plain(name: str) -> str:
  return re.sub(r'\\text|[\\{}]', '', name)
