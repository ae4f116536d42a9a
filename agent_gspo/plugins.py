"""What a user adds without touching the package: 'module:Name' in a config stands for that object.

Every table of names (tasks, topologies, objectives, advantages, length rewards, selection rules)
is looked up here. The module is imported from the Python path, to which the commands add the
folder that they are run in. A user's own code runs within `guard`, and what it returns is checked
where it comes in, so that each fault of it is one error that names its field.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import numbers
import pathlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from agent_gspo.options import check_choice
from agent_gspo.values import shown

T = TypeVar('T')
_MOST_TEXT = 300  # characters of somebody else's error
_MOST_FLOAT32 = float(np.finfo(np.float32).max)


class PluginError(ValueError):
  """A user's own code raised, ended the program or returned what it must not."""


@contextlib.contextmanager
def guard(where: str, module: str) -> Iterator[None]:
  """Runs a user's own code: whatever it raises but Ctrl-C becomes an error that names it.

  Args:
    where: begins the message: the field and its value, and what is called.
    module: of the code; the message ends with the last line of it that was running.

  Raises:
    PluginError: from what was raised, `SystemExit` included.
  """
  try:
    yield
  except (KeyboardInterrupt, PluginError):
    raise
  except BaseException as error:
    raise PluginError(f'{where}: {_said(error, module)}.') from error


def _said(error: BaseException, module: str) -> str:
  """Returns type, text and place of an error, in one short line."""
  try:
    text = ' '.join(str(error).split())
  except Exception:  # its own __str__ is as faulty
    text = ''
  if len(text) > _MOST_TEXT:
    text = f'{text[: _MOST_TEXT - 3]}...'
  frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
  own = [(f, line) for f, line in frames if f.f_globals.get('__name__') == module]
  place = f' at {pathlib.Path(own[-1][0].f_code.co_filename).name}:{own[-1][1]}' if own else ''
  return f'{type(error).__name__}{": " if text else ""}{text.rstrip(".")}{place}'


def described(field: str, name: str) -> str:
  """Returns how messages call a part of a user's own."""
  return f'{field}={name!r}'


def call(field: str, name: str, function: Callable[..., T], *args: Any, **options: Any) -> T:
  """Returns what a function returns; one of the user's own runs within `guard`.

  It is given copies of NumPy arrays, since it may write into what it is given.
  """
  if not is_plugin(name):
    return function(*args, **options)
  own = lambda value: value.copy() if isinstance(value, np.ndarray) else value
  with guard(described(field, name), name.partition(':')[0]):
    return function(*map(own, args), **{key: own(value) for key, value in options.items()})


def vector(where: str, values: Any, count: int, each: str) -> np.ndarray:
  """Returns what a user's own code returned, a number for `each` thing, as float64 `[count]`.

  Raises:
    PluginError: it is no array of numbers, of another shape, or a number is not finite in float32.
  """
  must = f'must return a finite number for each of {count} {each}s'
  found = _numbers(values)
  if found is None:
    raise PluginError(f'{where} returned {kind_of(values)}; {must}.')
  if found.shape != (count,):
    raise PluginError(f'{where} returned an array of shape {found.shape}; {must}.')
  bad = np.flatnonzero(~(np.abs(found) <= _MOST_FLOAT32))
  if bad.size:
    raise PluginError(f'{where} returned {found[bad[0]]} for {each} {bad[0]}; {must}.')
  return found


def _numbers(values: Any) -> np.ndarray | None:
  """Returns real numbers as a float64 array, None for what is none: text, None, a generator."""
  try:
    found = np.asarray(values)
    if found.dtype.kind in 'USMmc':
      return None
    if found.dtype == object and not all(isinstance(x, numbers.Real) for x in found.flat):
      return None
    return found.astype(np.float64)
  except Exception:  # of arrays from elsewhere too
    return None


def kind_of(value: Any) -> str:
  """Returns how messages call a value that is of a wrong type."""
  return 'None' if value is None else f'a {type(value).__name__}, {shown(value)}'


def is_plugin(name: str) -> bool:
  """Whether a name is 'module:Name'."""
  return ':' in name


def find(table: Mapping[str, T], name: str, field: str) -> T:
  """Returns the entry of a table, or the user's own function.

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
  where = described(field, name)
  if not module or not attribute or module.startswith('.'):
    raise ValueError(f'{where}: write module:Name, as in "mine:my_function".')
  try:
    found = importlib.import_module(module)
  except KeyboardInterrupt:
    raise
  except BaseException as error:  # whatever the user's module raises, SystemExit too
    remedy = ''
    if isinstance(error, ModuleNotFoundError) and f'{module}.'.startswith(f'{error.name}.'):
      remedy = f' Run the command in the folder of {module}.py, or put that folder on PYTHONPATH.'
    raise PluginError(
      f'{where}: module {module!r} cannot be imported ({_said(error, module)}).{remedy}'
    ) from error
  with guard(where, module):
    if hasattr(found, attribute):
      return getattr(found, attribute)
  raise ValueError(f'{where}: module {module!r} holds no {attribute!r}.')


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
  name: str,
  field: str,
  function: Callable[..., Any],
  known: Collection[str],
  *,
  defaults: bool = False,
) -> None:
  """Refuses a function of the user's own that asks for what it cannot be given.

  Args:
    name: 'module:Name'.
    field: of the config, for messages.
    function: that was found.
    known: names that its positional parameters may have; keywords are options.
    defaults: whether each option must have a default.

  Raises:
    ValueError: another positional parameter, one of the kinds `*args` and `**options`, or an option
      whose default is no number.
  """
  for parameter in inspect.signature(function).parameters.values():
    where = f'{field}={name!r}: parameter {parameter}'
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
      raise ValueError(f'{where}: write each parameter by its name.')
    if parameter.kind is not parameter.KEYWORD_ONLY and parameter.name not in known:
      raise ValueError(
        f'{where} is none of {", ".join(known)}. Options come behind a star: (..., *, scale=1.0).'
      )
    needed = parameter.kind is parameter.KEYWORD_ONLY and (
      defaults or parameter.default is not parameter.empty
    )
    if needed and not isinstance(parameter.default, bool | int | float):
      raise ValueError(
        f'{field}={name!r}: option {parameter.name!r} needs a number as its default.'
      )


def check_name(field: str, name: str, known: Collection[str]) -> None:
  """Refuses a name that is neither known nor 'module:Name'.

  Raises:
    ValueError: names the field and what is known.
  """
  if not is_plugin(name):
    check_choice(field, name, tuple(known))


def digest(config: Any) -> str:
  """Returns the SHA-256 of the sources of all modules that a config names, not their imports."""
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
