"""What a user adds without touching the package: 'module:Name' in a config stands for that object.

Every table of names (tasks, topologies, objectives, advantages, length rewards, selection rules)
is looked up here. The module is imported from the Python path, to which the commands add the
folder that they are run in.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pathlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from agent_gspo.options import check_choice

T = TypeVar('T')


def is_plugin(name: str) -> bool:
  """Whether a name is 'module:Name'."""
  return ':' in name


def find(table: Mapping[str, T], name: str, field: str) -> T:
  """The entry of a table, or the user's own function.

  Args:
    table: of what the package has.
    name: key of `table`, or 'module:Name'.
    field: of the config, for messages.

  Raises:
    ValueError: there is no such entry, module or function; names the field and the remedy.
  """
  if is_plugin(name):
    return load_function(name, field)  # type: ignore[return-value]
  check_name(field, name, table)
  return table[name]


def load(name: str, field: str) -> Any:
  """The object that 'module:Name' stands for.

  Raises:
    ValueError: there is no such module or object, or the module does not run.
  """
  module, _, attribute = name.partition(':')
  where = f'{field}={name!r}'
  if not module or not attribute or module.startswith('.'):
    raise ValueError(f'{where}: write module:Name, as in "mine:my_function".')
  try:
    found = importlib.import_module(module)
  except Exception as error:  # whatever the user's module raises
    raise ValueError(
      f'{where}: module {module!r} cannot be imported ({type(error).__name__}: {error}). Run the '
      f'command in the folder of {module}.py, or put that folder on PYTHONPATH.'
    ) from error
  if not hasattr(found, attribute):
    raise ValueError(f'{where}: module {module!r} holds no {attribute!r}.')
  return getattr(found, attribute)


def load_function(name: str, field: str) -> Callable[..., Any]:
  """The function or class that 'module:Name' stands for.

  Raises:
    ValueError: there is none, or Python does not know its parameters.
  """
  found = load(name, field)
  if not callable(found):
    raise ValueError(f'{field}={name!r} is a {type(found).__name__}, no function or class.')
  try:
    inspect.signature(found)
  except (TypeError, ValueError) as error:
    raise ValueError(f'{field}={name!r} does not tell its parameters; wrap it.') from error
  return found


def check_parameters(
  name: str, field: str, function: Callable[..., Any], known: Collection[str]
) -> None:
  """Refuses a function of the user's own that asks for what it cannot be given.

  Args:
    name: 'module:Name'.
    field: of the config, for messages.
    function: that was found.
    known: names that its positional parameters may have; keywords are options.

  Raises:
    ValueError: another positional parameter, or one of the kinds `*args` and `**options`.
  """
  for parameter in inspect.signature(function).parameters.values():
    where = f'{field}={name!r}: parameter {parameter}'
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
      raise ValueError(f'{where}: write each parameter by its name.')
    if parameter.kind is not parameter.KEYWORD_ONLY and parameter.name not in known:
      raise ValueError(
        f'{where} is none of {", ".join(known)}. Options come behind a star: (..., *, scale=1.0).'
      )


def check_name(field: str, name: str, known: Collection[str]) -> None:
  """Refuses a name that is neither known nor 'module:Name'.

  Raises:
    ValueError: names the field and what is known.
  """
  if not is_plugin(name):
    check_choice(field, name, tuple(known))


def digest(config: Any) -> str:
  """SHA-256 (hex) of the sources of all modules that a config names; what they import is not read.

  Args:
    config: a section or a whole config, as nested dicts.
  """
  total = hashlib.sha256()
  for name in sorted(_named(config)):
    module = sys.modules.get(name.partition(':')[0])
    file = getattr(module, '__file__', None)
    if file and pathlib.Path(file).is_file():
      total.update(pathlib.Path(file).read_bytes())
  return total.hexdigest()


def _named(config: Any) -> set[str]:
  """Texts of a config that stand for modules which are imported."""
  if isinstance(config, Mapping):
    return set().union(*map(_named, config.values()))
  loaded = isinstance(config, str) and config.partition(':')[0] in sys.modules
  return {config} if loaded and is_plugin(config) else set()
