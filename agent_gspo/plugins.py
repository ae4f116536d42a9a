"""What a user adds without touching the package: 'module:Name' in a config stands for that object.

Every table of names (tasks, topologies, objectives, advantages, length rewards, selection rules)
is looked up here. The module is imported from the Python path, which begins with the folder that
a command is run in.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from agent_gspo.options import check_choice

T = TypeVar('T')


def is_plugin(name: str) -> bool:
  """Whether a name is 'module:Name'."""
  return ':' in name


def find(table: Mapping[str, T], name: str, field: str) -> T:
  """The entry of a table, or the user's own object.

  Args:
    table: of what the package has.
    name: key of `table`, or 'module:Name'.
    field: of the config, for messages.

  Raises:
    ValueError: there is no such entry, module or object; names the field and the remedy.
  """
  if is_plugin(name):
    return load(name, field)
  check_name(field, name, table)
  return table[name]


def load(name: str, field: str) -> Any:
  """The callable object that 'module:Name' stands for.

  Raises:
    ValueError: there is no such module or object, or it cannot be called.
  """
  module, _, attribute = name.partition(':')
  where = f'{field}={name!r}'
  try:
    found = getattr(importlib.import_module(module), attribute)
  except ImportError as error:
    raise ValueError(
      f'{where}: module {module!r} cannot be imported ({error}). Run the command in the folder of '
      f'{module}.py, or put that folder on PYTHONPATH.'
    ) from error
  except (AttributeError, TypeError, ValueError) as error:  # '', 'a:' and ':b' too
    raise ValueError(
      f'{where}: module {module!r} holds no {attribute!r}. Write module:Name, with the name of a '
      'function or class of that module.'
    ) from error
  return found


def load_function(name: str, field: str) -> Callable[..., Any]:
  """As `load`, of something that can be called."""
  found = load(name, field)
  if not callable(found):
    raise ValueError(f'{field}={name!r} is a {type(found).__name__}, no function or class.')
  return found


def check_name(field: str, name: str, known: Collection[str]) -> None:
  """Refuses a name that is neither known nor 'module:Name'.

  Raises:
    ValueError: names the field and what is known.
  """
  if not is_plugin(name):
    check_choice(field, name, tuple(known))
