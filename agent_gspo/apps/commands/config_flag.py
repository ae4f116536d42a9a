"""Defines the flag --config: a file, the name of one in `configs/`, or a run's config.json."""

from __future__ import annotations

import difflib
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags
from ml_collections import config_dict, config_flags

from agent_gspo.apps.commands import exported
from agent_gspo.config import fields as fields_lib
from agent_gspo.config import saved
from agent_gspo.config.defaults import SECTIONS, Config, changeable
from agent_gspo.models.io import fields as fields_io
from agent_gspo.options import did_you_mean, types_of
from agent_gspo.workdir import records

flags.disclaim_key_flags()  # --help of a command lists --config as its own

_PACKAGE = pathlib.Path(__file__).parents[2]
# The user's own configs, and those of the clone or wheel.
_FOLDERS = (pathlib.Path('configs'), _PACKAGE.parent / 'configs')

# Names of fields in TRL and verl -> ours.
_ELSEWHERE = {
  'lr': 'learner.learning_rate',
  'beta': 'objective.kl_coef',
  'epsilon': 'objective.clip_low',
  'epsilon_high': 'objective.clip_high',
  'max_steps': 'steps',
  'max_completion_length': 'team.max_message_tokens',
  'num_generations': 'rollout.group_size',
  'per_device_train_batch_size': 'learner.micro_batch_size',
  'train_batch_size': 'rollout.questions',
}


def define() -> flags.FlagHolder:
  """Defines --config=NAME, with --config.<field>=<value> for every field of the config."""
  holder = config_flags.DEFINE_config_file(
    'config', None, "A file, the name of one in configs/, or a run's config.json."
  )
  flags.FLAGS[holder.name].parser = _Parser(flags.FLAGS[holder.name].parser)
  return holder


class _Parser(flags.ArgumentParser):
  """Finds a config by its name, and lets flags set fields that it does not list.

  Those are options and role fields: their names depend on the config, and `config.check` refuses
  unknown ones.
  """

  def __init__(self, parser: flags.ArgumentParser):
    self.parser = parser

  def parse(self, argument: str) -> Any:
    given, colon, rest = argument.partition(':')
    file = os.path.expanduser(given)
    if file.endswith('.json'):
      config = _of_run(pathlib.Path(file))
    else:
      config = self.parser.parse(f'{_found(file)}{colon}{rest}')
    for arg in flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False):
      found = re.match(r'--?(?:no)?config\.(\w+)\.(\w+)\.([\w.]+)', arg)
      if found and found[2] in _open_fields(found[1]):
        _make_room(config, [found[1], found[2], *found[3].split('.')])
    return config


def _found(name: str) -> str:
  """Returns the file of a config, given its path or its name.

  Raises:
    ValueError: There is none; names those that exist.
  """
  path = pathlib.Path(name)
  if path.suffix == '.py' or path.is_file():
    return name
  known = {f.stem: f for folder in reversed(_FOLDERS) for f in sorted(folder.glob('[!_]*.py'))}
  if name not in known:
    for file in (exported.TEAM, records.CONFIG):
      if (path / file).is_file():
        raise ValueError(f'is a folder; take {path / file}.')
    meant = did_you_mean(name, known, str)
    raise ValueError(f'no such file or name; there are {", ".join(sorted(known))}.{meant}')
  folder = str(known[name].resolve().parents[1])
  if folder not in sys.path:
    sys.path.append(folder)  # configs import each other
  return str(known[name])


def _of_run(file: pathlib.Path) -> config_dict.ConfigDict:
  """Returns the config that a run saved.

  Raises:
    ValueError: The file is missing or is not the config of a run.
  """
  try:
    values = json.loads(file.read_text(encoding='utf-8'))
    if 'exported' in values:
      values = exported.located(fields_io.Fields(values, str(file)), file.parent)
    known = {k: v for k, v in values.items() if k in types_of(Config)}
    return changeable(saved.emptied(Config.from_dict(known)))
  except (OSError, ValueError, AttributeError, KeyError) as error:
    raise ValueError(f'no config of a run ({error}).') from error


def _open_fields(section: str) -> list[str]:
  """Returns the fields of a section that are dicts with user-defined fields."""
  kinds = types_of(SECTIONS[section]) if section in SECTIONS else {}
  return [field for field, (kind, _) in kinds.items() if kind is dict]


def _make_room(config: Any, path: Sequence[str]) -> None:
  """Adds a field of any type, if its section exists and the field does not."""
  for name in path[:-1]:
    config = config.get(name) if isinstance(config, config_dict.ConfigDict) else None
  if isinstance(config, config_dict.ConfigDict) and path[-1] not in config:
    with config.unlocked():
      config[path[-1]] = config_dict.placeholder(object)


def check_fields(name: str, fields: Iterable[str]) -> None:
  """Checks that a config has some fields; an unreadable config fails later, in its runs.

  Args:
    name: Name or file of the config.
    fields: Paths such as 'budget.lambda_tok'.

  Raises:
    ValueError: Names the field, and the one that was meant; or there is no such config.
  """
  values = flags.FlagValues()
  config_flags.DEFINE_config_file('config', None, '', flag_values=values)
  try:
    config = _Parser(values['config'].parser).parse(name)
  except ValueError as error:
    raise ValueError(f'--config={name}: {error}') from error
  if not isinstance(config, config_dict.ConfigDict):
    return
  for field in fields:
    section, *rest = field.split('.')
    if len(rest) > 1 and rest[0] in _open_fields(section):
      continue  # an option, which `config.check` knows
    part: Any = config
    for key in (section, *rest):
      if not isinstance(part, config_dict.ConfigDict) or key not in part:
        raise ValueError(_unknown(f'--config.{field}', key))
      part = part[key]


def load(holder: flags.FlagHolder) -> dict[str, Any]:
  """Returns the config of the flags, as plain nested dicts.

  Raises:
    ValueError: --config is missing, the file does not exist or defines no config, or a name is
      not text.
  """
  config = holder.value
  if config is None:
    raise ValueError('--config is missing; give a name or a file, such as tiny or configs/tiny.py.')
  try:
    if isinstance(config, config_dict.ConfigDict):
      return config.to_dict()
    _ = config.keys  # the library raises a failure to read the file only on access
  except OSError as error:
    raise ValueError(f'--config: {last_line(str(error))}') from error
  except TypeError as error:  # the library sorts fields by their names
    raise ValueError(
      f'--config: the name of a field, or of a role, is no text ({error}). Name all with text.'
    ) from error
  raise ValueError('--config: get_config() of that file must return a ConfigDict.')


def explain(error: Exception, argv: Sequence[str]) -> str:
  """Describes a failed parse; names the flag if its field is not in the config."""
  while error.args and isinstance(error.args[0], Exception):
    error = error.args[0]
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  found = re.search(r"""['"](\w+)['"]""", text)
  for flag in (arg.partition('=')[0] for arg in argv if arg.startswith('--config.')):
    if re.search(r'[^\w.[\]]', flag.removeprefix('--config.')):
      return (
        f'{flag}: a name on the command line must have letters, digits and _ alone. Set this '
        'field in the file of the config.'
      )
    if found and found[1] in flag.split('.'):
      return _unknown(flag, found[1])
  return f'--config: {type(error).__name__}: {text}'


def _unknown(flag: str, field: str) -> str:
  """Returns an error that names the field of another section, library or spelling."""
  paths = [field.path for _, fields in fields_lib.sections() for field in fields]
  names = [path.rpartition('.')[2] for path in paths]
  of = lambda name: [path for path, own in zip(paths, names, strict=True) if own == name]
  alike = difflib.get_close_matches(flag.removeprefix('--config.'), paths, 1, 0.8)
  spelt = difflib.get_close_matches(field, names, 1, 0.75)
  elsewhere = [_ELSEWHERE[field]] if field in _ELSEWHERE else []
  found = of(field) or elsewhere or alike or (of(spelt[0]) if spelt else [])
  meant = f' Did you mean {" or ".join(f"--config.{path}" for path in found)}?' if found else ''
  return f'{flag}: the config has no field {field!r}.{meant}'


def last_line(text: str) -> str:
  """Returns the last line of a text that may be a traceback."""
  return text.strip().splitlines()[-1].strip()
