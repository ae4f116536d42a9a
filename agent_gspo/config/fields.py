"""Lists the fields of a config with default, range and meaning; prints a config with them."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from agent_gspo import options
from agent_gspo.config.defaults import Config
from agent_gspo.options import Section
from agent_gspo.values import flatten

_WIDTH = 80  # columns of a terminal


@dataclasses.dataclass(frozen=True)
class Field:
  """One field of a config.

  Attributes:
    path: Name behind `--config.`, such as 'learner.learning_rate'.
    kind: Type of its value.
    default: Default value.
    allowed: Range or choices as text, '' if there are none.
    meaning: Description, one paragraph.
  """

  path: str
  kind: type
  default: Any
  allowed: str
  meaning: str


def of(section: Any) -> Iterator[Field]:
  """Yields the fields of a dataclass with `Attributes` that are no sections themselves."""
  meanings, kinds = options.meanings(section), options.types_of(section)
  for field in dataclasses.fields(section):
    kind, _ = kinds[field.name]
    if issubclass(kind, Section):
      continue
    prefix = getattr(section, 'section', '')
    path = f'{prefix}.{field.name}' if prefix else field.name
    default = {} if field.default is dataclasses.MISSING else field.default
    yield Field(path, kind, default, str(options.range_of(field)), meanings[field.name])


def sections() -> list[tuple[type, list[Field]]]:
  """Returns each section with its fields; first those that belong to no section."""
  found: list[type] = [Config]
  found += [kind for kind, _ in options.types_of(Config).values() if issubclass(kind, Section)]
  return [(section, list(of(section))) for section in found]


def summary(section: type) -> str:
  """Returns the docstring of a section without its attributes."""
  return (inspect.getdoc(section) or '').partition('Attributes:\n')[0].strip()


def described(given: Mapping[str, Any], resolved: Mapping[str, Any]) -> str:
  """Returns every field with its value and meaning, in lines of at most 80 columns.

  Args:
    given: Config as the user wrote it, a nested dict.
    resolved: The same with empty fields filled in, see `config.check.resolve`.
  """
  lines = ['* differs from the default; any field is a flag: --config.steps=10']
  for section, fields in sections():
    name = getattr(section, 'section', '')
    lines += ['', *_wrapped(f'{name}: {summary(section)}' if name else 'run')]
    for field in fields:
      value, own = _at(resolved, field.path), _at(given, field.path)
      changed, about = own != field.default, field.meaning
      if changed:
        about = f'{about} Default: {field.default!r}.'
      elif value != own:
        about = f'{about} Default: {field.default!r}, filled in.'
      # Options and roles are dicts whose entries are flags too.
      for path, leaf in flatten({field.path: value}).items() or [(field.path, value)]:
        lines += _wrapped(f'{"*" if changed else " "} {path} = {leaf!r}', ' ' * 6)
      lines += _wrapped(f'    {about}', ' ' * 4)
  return '\n'.join(lines)


def _at(values: Mapping[str, Any], path: str) -> Any:
  """Returns the value of a path; lists of JSON become tuples, as defaults are."""
  value: Any = values
  for name in path.split('.'):
    value = value[name]
  return tuple(value) if isinstance(value, list) else value


def _wrapped(text: str, indent: str = '') -> list[str]:
  text = text.replace('\n\n', '\n')  # paragraphs of a docstring
  return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
