"""Loads user code by 'module:Name' in a config, without changes to the package.

All registries (tasks, topologies, objectives, advantages, length rewards, selection rules) are
looked up here. Modules are imported from the Python path, to which the commands add the current
folder. User code runs within `guard` and its results are validated, so that each failure raises
one error that names its field.
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

from agent_gspo.options import check_choice, did_you_mean
from agent_gspo.values import is_number, shown

T = TypeVar('T')
_MOST_TEXT = 300  # characters of a user error's text
# Options of estimators, objectives and length rewards that must be above 0; others may be 0.
_POSITIVE = (
  'bound', 'buffer', 'eps', 'limit', 'loss_floor', 'max_length', 'nats', 'samples', 'target',
  'tau_negative', 'tau_positive', 'temperature'
)  # fmt: skip
_SHARES = 'decay', 'lam', 'mix'  # at most 1
_MOST_FLOAT32 = float(np.finfo(np.float32).max)


class PluginError(ValueError):
  """Error: user code raised, exited or returned an invalid value."""


@contextlib.contextmanager
def guard(where: str, module: str) -> Iterator[None]:
  """Converts any exception of user code but KeyboardInterrupt into an error that names it.

  Args:
    where: Prefix of the message: field, value and called function.
    module: Module of the code; the message ends with its last line in the traceback.

  Raises:
    PluginError: The code raised any exception, `SystemExit` included.
  """
  try:
    yield
  except (KeyboardInterrupt, PluginError):
    raise
  except BaseException as error:
    raise PluginError(f'{where}: {_said(error, module)}.') from error


def _said(error: BaseException, module: str) -> str:
  """Formats type, text and line of an error as one short line."""
  try:
    text = ' '.join(str(error).split())
  except Exception:  # from a faulty __str__
    text = ''
  if len(text) > _MOST_TEXT:
    text = f'{text[: _MOST_TEXT - 3]}...'
  frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
  own = [(f, line) for f, line in frames if f.f_globals.get('__name__') == module]
  place = f' at {pathlib.Path(own[-1][0].f_code.co_filename).name}:{own[-1][1]}' if own else ''
  return f'{type(error).__name__}{": " if text else ""}{text.rstrip(".")}{place}'


def call(field: str, name: str, function: Callable[..., T], *args: Any, **options: Any) -> T:
  """Calls a function, within `guard` if it is a plugin.

  Plugins get copies of NumPy arrays, since they may write into their arguments.
  """
  if not is_plugin(name):
    return function(*args, **options)
  own = lambda value: value.copy() if isinstance(value, np.ndarray) else value
  with guard(f'{field}={name!r}', name.partition(':')[0]):
    return function(*map(own, args), **{key: own(value) for key, value in options.items()})


def vector(where: str, values: Any, count: int, each: str) -> np.ndarray:
  """Validates the values returned by user code, one per `each`; returns float64 `[count]`.

  Raises:
    PluginError: Not an array of numbers, of another shape, or not finite in float32.
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
  """Returns real numbers as a float64 array; None for anything else (text, a generator)."""
  try:
    found = np.asarray(values)
    if found.dtype.kind in 'USMmc':
      return None
    if found.dtype == object and not all(isinstance(x, numbers.Real) for x in found.flat):
      return None
    return found.astype(np.float64)
  except Exception:  # also from arrays of other libraries
    return None


def kind_of(value: Any) -> str:
  """Describes a value of a wrong type for messages."""
  return 'None' if value is None else f'a {type(value).__name__}, {shown(value)}'


def is_plugin(name: str) -> bool:
  """Returns whether a name is 'module:Name'."""
  return ':' in name


def find(table: Mapping[str, T], name: str, field: str) -> T:
  """Returns the entry of a registry, or the user's function.

  Raises:
    ValueError: No such entry, module or function; names the field and the remedy.
  """
  if is_plugin(name):
    return load_function(name, field)  # type: ignore[return-value]
  check_name(field, name, table)
  return table[name]


def load(name: str, field: str) -> Any:
  """Imports the object named 'module:Name'.

  Raises:
    ValueError: No such module or object, or the module's import fails.
  """
  module, _, attribute = name.partition(':')
  where = f'{field}={name!r}'
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
  """Imports the function or class named 'module:Name'.

  Raises:
    ValueError: It does not exist, or its parameters cannot be inspected.
  """
  found = load(name, field)
  if not callable(found):
    raise ValueError(f'{field}={name!r} is a {type(found).__name__}, no function or class.')
  try:
    inspect.signature(found)
  except (TypeError, ValueError) as error:
    raise ValueError(f'{field}={name!r} has no signature; wrap it in a function.') from error
  return found


def inputs_of(function: Callable[..., Any]) -> tuple[str, ...]:
  """Returns the names of a function's positional parameters."""
  parameters = inspect.signature(function).parameters.values()
  return tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
  """Returns a function's keyword-only options with their defaults; None for required ones."""
  parameters = inspect.signature(function).parameters.values()
  return {
    p.name: None if p.default is p.empty else p.default
    for p in parameters
    if p.kind is p.KEYWORD_ONLY
  }


def check_options(
  where: str, name: str, given: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
  """Checks the options of an entry of a registry.

  Args:
    where: Prefix of an option in messages, such as 'objective.options'.
    name: Name of the entry.
    given: Options that are set.
    known: Options of the entry with their defaults; None for required ones.

  Raises:
    ValueError: An option is unknown, missing, of a wrong type or, of our own entries, out of range.
  """
  for option, value in given.items():
    field = f'{where}.{option}'
    if option not in known:
      meant = did_you_mean(option, known)
      raise ValueError(f'{field} is unknown; {name!r} takes {", ".join(known) or "none"}.{meant}')
    if isinstance(known[option], bool):
      if not isinstance(value, bool):
        raise ValueError(f'{field}={shown(value)}: its default is {known[option]!r}.')
    elif not is_number(value):
      raise ValueError(f'{field}={shown(value)} must be a finite number.')
    elif not is_plugin(name) and (value < 0 or (value == 0 and option in _POSITIVE)):
      raise ValueError(
        f'{field}={value} must be {"above 0" if option in _POSITIVE else "0 or more"}.'
      )
    elif not is_plugin(name) and option in _SHARES and value > 1:
      raise ValueError(f'{field}={value} must be at most 1.')
  if missing := [k for k, default in known.items() if default is None and k not in given]:
    raise ValueError(f'{name!r} needs the option {missing[0]!r}; set it in {where}.')


def check_parameters(
  name: str,
  field: str,
  function: Callable[..., Any],
  known: Collection[str],
  *,
  defaults: bool = False,
) -> None:
  """Checks that the parameters of a user's function are supported.

  Args:
    name: Plugin name, 'module:Name'.
    field: Config field, for messages.
    function: Loaded function.
    known: Allowed names of positional parameters; keyword-only parameters are options.
    defaults: Requires a default for each option.

  Raises:
    ValueError: An unknown positional parameter, `*args`, `**options`, or an option whose default
      is not a number.
  """
  for parameter in inspect.signature(function).parameters.values():
    where = f'{field}={name!r}: parameter {parameter}'
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
      raise ValueError(f'{where}: write each parameter by its name.')
    if parameter.kind is not parameter.KEYWORD_ONLY and parameter.name not in known:
      raise ValueError(
        f'{where} is none of {", ".join(known)}. Options are keyword-only: (..., *, scale=1.0).'
      )
    needed = parameter.kind is parameter.KEYWORD_ONLY and (
      defaults or parameter.default is not parameter.empty
    )
    if needed and not isinstance(parameter.default, bool | int | float):
      raise ValueError(
        f'{field}={name!r}: option {parameter.name!r} needs a number as its default.'
      )


def check_name(field: str, name: str, known: Collection[str]) -> None:
  """Checks that a name is known or 'module:Name'.

  Raises:
    ValueError: It is neither; names the field and the known names.
  """
  if not is_plugin(name):
    check_choice(field, name, tuple(known))


def digest(config: Any) -> str:
  """Computes the SHA-256 of the sources of all modules named in a config, without imports."""
  total = hashlib.sha256()
  for name in sorted(_named(config)):
    module = sys.modules.get(name.partition(':')[0])
    file = getattr(module, '__file__', None)
    if file and pathlib.Path(file).is_file():
      total.update(pathlib.Path(file).read_bytes())
  return total.hexdigest()


def _named(config: Any) -> set[str]:
  """Returns the plugin names in a config whose modules are imported."""
  if isinstance(config, Mapping):
    return _named([*config.values()])
  if isinstance(config, list | tuple):
    return set().union(*map(_named, config))
  loaded = isinstance(config, str) and config.partition(':')[0] in sys.modules
  return {config} if loaded and is_plugin(config) else set()
