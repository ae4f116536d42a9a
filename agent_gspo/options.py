"""Defines sections of a config: frozen dataclasses with a range for each field.

A section is defined in the `options.py` of the package that uses it:

    @dataclasses.dataclass(frozen=True)
    class LearnerOptions(Section, name='learner'):
      b1: float = option(0.9, least=0, below=1)

Construction validates it. Its docstring gives the meaning of each field under `Attributes`, which
`--print_config` and the site show. Neither this module nor any `options.py` imports JAX, so that a
config file loads fast.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from agent_gspo.values import is_number, is_text, is_whole, shown

_RANGE = 'range'


@dataclasses.dataclass(frozen=True)
class Range:
  """Inclusive (`least`, `most`) and exclusive (`above`, `below`) bounds, or choices."""

  least: float | None = None
  most: float | None = None
  above: float | None = None
  below: float | None = None
  choices: tuple[str, ...] = ()

  def __str__(self) -> str:
    """Returns the range as text, '' if there is none."""
    if self.choices:
      return f'one of {", ".join(self.choices)}'
    if self.least is not None and self.most is not None:
      return f'{self.least:,} to {self.most:,}'
    bounds = (('least', 'at least'), ('above', 'above'), ('most', 'at most'), ('below', 'below'))
    named = [(words, getattr(self, bound)) for bound, words in bounds]
    return ', '.join(f'{words} {value:,}' for words, value in named if value is not None)

  def problem(self, value: float, *, whole: bool = False) -> str:
    """Returns the end of an error message for a number, '' if it is in range."""
    outside = (
      (self.least is not None and value < self.least)
      or (self.most is not None and value > self.most)
      or (self.above is not None and value <= self.above)
      or (self.below is not None and value >= self.below)
    )
    if not outside:
      return ''
    if whole:
      end = f', {self.least} or more' if self.most is None else f' from {self.least} to {self.most}'
      return f'must be a whole number{end}.'
    low = f'above {self.above}' if self.above is not None else f'at least {self.least}'
    if self.below is None and self.most is None:
      return f'must be {low}.'
    high = f'below {self.below}' if self.below is not None else f'at most {self.most}'
    return f'must be {low} and {high}.'


def option(
  default: Any,
  *,
  least: float | None = None,
  most: float | None = None,
  above: float | None = None,
  below: float | None = None,
  choices: Sequence[str] = (),
) -> Any:
  """Creates a field of a section with its default and range (see `Range`).

  A default of None or '' is always valid; its value is then resolved elsewhere, usually by
  `config.algorithm`. The field's type is that of the resolved value.
  """
  metadata = {_RANGE: Range(least, most, above, below, tuple(choices))}
  return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Section:
  """Base of all sections: `class XOptions(Section, name='x')`.

  Raises:
    ValueError: A value is invalid; the message names field, value and remedy.
  """

  section: ClassVar[str] = ''

  def __init_subclass__(cls, name: str):
    cls.section = name

  def __post_init__(self):
    check_fields(self, self.section)

  @classmethod
  def from_dict(cls, values: Mapping[str, Any]) -> Self:
    """Builds the section, and sections inside it, from a dict that must have every field.

    Raises:
      ValueError: A field is missing, unknown or has an invalid value.
    """
    if not isinstance(values, Mapping):
      raise ValueError(f'config.{cls.section}={shown(values)} must be a section of fields.')
    kinds = types_of(cls)
    _check_names(values, list(kinds), cls.section)
    return cls(**{field: _read(kind, values[field]) for field, (kind, _) in kinds.items()})

  def to_dict(self) -> dict[str, Any]:
    """Returns a copy of the values as nested dicts, the inverse of `from_dict`."""
    return dataclasses.asdict(self)


def _read(kind: type, value: Any) -> Any:
  """Converts a field's value to its type; JSON has lists in place of tuples."""
  if issubclass(kind, Section):
    return kind.from_dict(value)
  return tuple(value) if kind is tuple and isinstance(value, list) else value


def check_fields(record: Any, section: str) -> None:
  """Raises ValueError if a field of a dataclass has a wrong type or is out of its `option` range.

  Args:
    record: Instance of a dataclass.
    section: Config path of its fields, for messages.
  """
  kinds = types_of(type(record))
  for field in dataclasses.fields(record):
    value, where = getattr(record, field.name), _where(section, field.name)
    kind, optional = kinds[field.name]
    _check_type(where, value, kind, optional)
    _check_range(where, value, kind, field)


def _check_names(values: Mapping[str, Any], known: Sequence[str], section: str) -> None:
  """Raises ValueError if a section of a config lacks a field or has an unknown one."""
  for field in known:
    if field not in values:
      raise ValueError(f'config.{_where(section, field)} is missing; start from default_config().')
  for field in values:
    if field not in known:
      meant = did_you_mean(field, known, lambda name: _where(section, name))
      raise ValueError(f'config.{_where(section, field)} is unknown.{meant}')


def did_you_mean(given: str, known: Iterable[str], written: Callable[[str], str] = repr) -> str:
  """Returns the end of an error message with the nearest known name, '' if none is near.

  Args:
    given: Unknown name.
    known: Names that could be meant.
    written: Formats a name for the message.
  """
  close = difflib.get_close_matches(str(given), list(known), 1)
  return f' Did you mean {written(close[0])}?' if close else ''


def check_choice(where: str, value: str, choices: Sequence[str]) -> None:
  """Raises ValueError if a field's text is not one of its choices."""
  if value in choices:
    return
  raise ValueError(
    f'{where}={value!r} is unknown; use one of {", ".join(choices)}.{did_you_mean(value, choices)}'
  )


def types_of(section: Any) -> dict[str, tuple[type, bool]]:
  """Returns the type of each field and whether None is allowed."""
  hints = typing.get_type_hints(section)
  found = {}
  for field in dataclasses.fields(section):
    kind = hints[field.name]
    if isinstance(kind, types.UnionType):
      kind = next(k for k in typing.get_args(kind) if k is not type(None))
    found[field.name] = (typing.get_origin(kind) or kind, field.default is None)
  return found


def range_of(field: dataclasses.Field) -> Range:
  """Returns the range of a field, without bounds if it was defined without `option`."""
  return field.metadata.get(_RANGE, Range())


def meanings(section: type) -> dict[str, str]:
  """Returns the meaning of each field, from `Attributes` in the docstring of a dataclass."""
  listed = (inspect.getdoc(section) or '').partition('Attributes:\n')[2]
  found = re.findall(r'^  (\w+): (.*(?:\n {4}.*)*)', listed, re.MULTILINE)
  return {field: ' '.join(text.split()) for field, text in found}


def _where(section: str, field: str) -> str:
  return f'{section}.{field}' if section else field


def _check_type(where: str, value: Any, kind: type, optional: bool) -> None:
  if optional and value is None:
    return
  expected, fits = {
    bool: ('True or False', isinstance(value, bool)),
    str: ('text', is_text(value)),
    tuple: ('a tuple' + ' or None' * optional, isinstance(value, list | tuple)),
    int: ('a whole number' + ' or None' * optional, is_whole(value)),
    float: ('None or ' * optional + 'a finite number', is_number(value)),
    dict: ('a section of fields', isinstance(value, Mapping)),
    os.PathLike: ('a folder', isinstance(value, str | os.PathLike)),
  }.get(kind, ('a section', isinstance(value, kind)))
  if not fits:
    raise ValueError(f'config.{where}={shown(value)} must be {expected}.')
  if kind is dict and (strange := [name for name in value if not isinstance(name, str)]):
    raise ValueError(f'config.{where} holds {strange[0]!r}; its fields must have names.')


def _check_range(where: str, value: Any, kind: type, field: dataclasses.Field) -> None:
  allowed = range_of(field)
  if allowed.choices and not (value == '' == field.default):
    check_choice(where, value, allowed.choices)
  if value is None or kind not in (int, float):
    return
  if problem := allowed.problem(value, whole=kind is int):
    raise ValueError(f'{where}={shown(value)} {problem}')
