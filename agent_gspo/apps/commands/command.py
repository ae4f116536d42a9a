"""Provides what commands share: flags, clear errors, exit codes, the compilation cache.

User errors end with one line (usage before it if arguments are missing) and exit status 2;
AGENT_GSPO_TRACEBACK=1 shows the traceback. Ctrl-C ends with 130.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from absl import app, flags, logging
from ml_collections import config_dict, config_flags

from agent_gspo import cache
from agent_gspo.apps.commands import host_memory
from agent_gspo.config.defaults import SECTIONS, Config
from agent_gspo.options import types_of

if TYPE_CHECKING:
  from agent_gspo.workdir import checkpoints

flags.disclaim_key_flags()  # so that --help of a command lists the flags defined here for it

_SMALLER = (
  'Lower learner.micro_batch_size, sampler.decode_rows, sampler.prefill_rows or '
  'rollout.group_size, set model.remat=True, or take a smaller model.'
)


def define_config() -> flags.FlagHolder:
  """Defines the flag --config=FILE, with --config.<field>=<value> for every field of the file."""
  holder = config_flags.DEFINE_config_file('config', None, 'Config file, see configs/.')
  flags.FLAGS[holder.name].parser = _OpenFields(flags.FLAGS[holder.name].parser)
  return holder


class _OpenFields(flags.ArgumentParser):
  """Parser of a config file that lets flags set fields it does not list: options, role fields.

  Their names depend on the config: `config.check` refuses unknown ones.
  """

  def __init__(self, parser: flags.ArgumentParser):
    self.parser = parser

  def parse(self, argument: str) -> Any:
    config = self.parser.parse(argument)
    for arg in flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False):
      found = re.match(r'--?(?:no)?config\.(\w+)\.(\w+)\.([\w.]+)', arg)
      if found and found[2] in _open_fields(found[1]):
        _make_room(config, [found[1], found[2], *found[3].split('.')])
    return config

  def flag_type(self) -> str:
    return self.parser.flag_type()


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


def load_config(holder: flags.FlagHolder) -> dict[str, Any]:
  """Returns the config of the flags, as plain nested dicts.

  Raises:
    ValueError: --config is missing, the file does not exist or defines no config, or a name is
      not text.
  """
  config = holder.value
  if config is None:
    raise ValueError('--config is missing; give a file such as configs/tiny.py.')
  try:
    if isinstance(config, config_dict.ConfigDict):
      return config.to_dict()
    _ = config.keys  # the library raises a failure to read the file only on access
  except OSError as error:
    raise ValueError(f'--config: {_last_line(str(error))}') from error
  except TypeError as error:  # the library sorts fields by their names
    raise ValueError(
      f'--config: the name of a field, or of a role, is no text ({error}). Name all with text.'
    ) from error
  raise ValueError('--config: get_config() of that file must return a ConfigDict.')


@dataclasses.dataclass(frozen=True)
class CheckpointFlags:
  """Flags --workdir and --step, which select a checkpoint."""

  workdir: flags.FlagHolder
  step: flags.FlagHolder

  def chosen(self) -> checkpoints.Saved | None:
    """Returns the selected checkpoint, None without a --workdir.

    Raises:
      ValueError: --step without --workdir, or see `checkpoints.chosen`.
    """
    workdir, step = self.workdir.value, self.step.value
    if not workdir and step:
      raise ValueError(f'--step={step}: of which run? Give its --workdir.')
    if not workdir:
      return None
    from agent_gspo.workdir.checkpoints import chosen

    return chosen(pathlib.Path(workdir) / 'checkpoints', step)


def define_checkpoint() -> CheckpointFlags:
  """Defines the flags in the module that calls."""
  return CheckpointFlags(
    flags.DEFINE_string('workdir', None, 'Folder of a run: its newest intact checkpoint.'),
    flags.DEFINE_string('step', None, 'Another checkpoint of --workdir: its step, or "best".'),
  )


def config_here(saved: checkpoints.Saved) -> dict[str, Any]:
  """Returns a checkpoint's config with the mesh adapted to this machine's devices."""
  from agent_gspo.sharding.placement import on_this_machine

  config = Config.from_dict(saved.config)
  return config.to_dict() | {'mesh': on_this_machine(config.mesh.to_dict())}


def run(main: Callable[[], None]) -> None:
  """Parses the flags of `main`'s module and runs it; --help shows that module's docstring."""
  module = sys.modules[main.__module__]
  sys.modules['__main__'].__doc__ = module.__doc__
  for flag in flags.FLAGS.get_key_flags_for_module(module):
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
  warnings.formatwarning = lambda message, *_: f'warning: {message}\n'
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())  # where a user's own modules lie, see `plugins`
  app.run(lambda _: _guarded(main), flags_parser=_parse_flags)


def _guarded(main: Callable[[], None]) -> None:
  host_memory.keep()
  logging.set_verbosity(logging.WARNING)
  _use_compilation_cache()
  try:
    main()
  except (ValueError, OSError, FloatingPointError, ImportError) as error:
    fail(str(error), error)
  except KeyboardInterrupt:
    raise SystemExit(130) from None
  except Exception as error:
    # Out of memory on the host, or on a device, which only the text reveals.
    if not isinstance(error, MemoryError) and 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    fail(f'out of memory ({error}). {_SMALLER}', error)


def _use_compilation_cache() -> None:
  """Caches compiled programs on disk, so that a second run starts at once.

  All of them: a start spends most time on the few hundred below JAX's threshold of one second.
  """
  import jax

  if not getattr(jax.config, 'jax_compilation_cache_dir', None):  # untyped in jax
    jax.config.update('jax_compilation_cache_dir', str(cache.folder() / 'compiled'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


def _parse_flags(argv: Sequence[str]) -> list[str]:
  try:
    rest = flags.FLAGS(argv)
  except flags.Error as error:
    fail(_told(str(error)), error)
  except SystemExit as end:
    if end.code:  # of --help
      raise
    fail('--config: the file calls sys.exit; must return a config instead.')
  except Exception as error:  # as the config file or ml_collections raised it
    fail(_explain(error, argv), error)
  if len(rest) > 1:
    fail(f'unexpected argument {rest[1]!r}; options are written --name=value.')
  return rest


def _told(text: str) -> str:
  """Returns the last line of a flag's error, which may be a traceback from the config file."""
  last = _last_line(text)
  behind = re.match(r'flag (--config=[^\n]*(:[^:\n]*)): Error', text)
  if behind and 'get_config() takes 0 positional arguments' in last:
    return f'{behind[1]}: this config takes nothing behind a colon; leave out {behind[2]!r}.'
  return last


def _explain(error: Exception, argv: Sequence[str]) -> str:
  """Describes a failed parse; names the flag if its field is not in the config."""
  while error.args and isinstance(error.args[0], Exception):
    error = error.args[0]
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  found = re.search(r"""['"](\w+)['"]""", text)
  for flag in (arg.partition('=')[0] for arg in argv if arg.startswith('--config.')):
    if found and found[1] in flag.split('.'):
      meant = re.search(r'Did you mean "\w+"', text)
      return f'{flag}: the config has no field {found[1]!r}. {f"{meant[0]}?" if meant else ""}'
  return f'--config: {type(error).__name__}: {text}'


def arguments(doc: str | None) -> argparse.ArgumentParser:
  """Returns a parser of positional arguments and flags, for commands without a config."""
  formatter = argparse.RawDescriptionHelpFormatter
  return argparse.ArgumentParser(description=doc, formatter_class=formatter, allow_abbrev=False)


def fail(text: str, error: Exception | None = None) -> NoReturn:
  """Ends with one line on stderr and exit status 2."""
  if error is not None and os.environ.get('AGENT_GSPO_TRACEBACK'):
    raise error
  print('error:', ' '.join(text.split()), file=sys.stderr)
  raise SystemExit(2)


def _last_line(text: str) -> str:
  return text.strip().splitlines()[-1].strip()
