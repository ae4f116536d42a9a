"""Provides what commands share: flags, clear errors, exit codes, the compilation cache.

User errors end with one line (usage before it if arguments are missing) and exit status 2;
AGENT_GSPO_TRACEBACK=1 shows the traceback. Ctrl-C ends with 130.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from absl import app, flags, logging

from agent_gspo import cache
from agent_gspo.apps.commands import config_flag
from agent_gspo.config.defaults import Config
from agent_gspo.training import host_memory
from agent_gspo.workdir import disk

if TYPE_CHECKING:
  from agent_gspo.apps.commands import exported
  from agent_gspo.workdir import checkpoints

flags.disclaim_key_flags()  # so that --help of a command lists the flags defined here for it

_SMALLER = (
  'Lower learner.micro_batch_size, sampler.decode_rows, sampler.prefill_rows or '
  'rollout.group_size, set model.remat=True, or take a smaller model.'
)


@dataclasses.dataclass(frozen=True)
class CheckpointFlags:
  """Flags --workdir and --step, which select a checkpoint."""

  workdir: flags.FlagHolder
  step: flags.FlagHolder

  def chosen(self) -> checkpoints.Saved | exported.Exported | None:
    """Returns the selected checkpoint or exported team, None without a --workdir.

    Raises:
      ValueError: --step without the --workdir of a run, or see `checkpoints.chosen`.
    """
    workdir, step = self.workdir.value, self.step.value
    if not workdir and step:
      raise ValueError(f'--step={step}: of which run? Give its --workdir.')
    if not workdir:
      return None
    return saved_team(workdir, step)


def saved_team(workdir: str, step: str | None = None) -> checkpoints.Saved | exported.Exported:
  """Returns a checkpoint of a run, or an exported team.

  Raises:
    ValueError, FileNotFoundError: See `checkpoints.chosen`; or a `step` of an exported team.
  """
  from agent_gspo.apps.commands import exported
  from agent_gspo.workdir.checkpoints import chosen

  if team := exported.find(workdir):
    if step:
      raise ValueError(f'--step={step}: {workdir} is exported, at step {team.step}; leave it out.')
    return team
  return chosen(pathlib.Path(workdir) / 'checkpoints', step)


class _FolderParser(flags.ArgumentParser):
  """Parses a folder of this machine; empty text stays empty."""

  def parse(self, argument: str) -> str:
    return str(disk.folder(argument)) if argument else ''


def define_folder(name: str, default: str | None, help: str) -> flags.FlagHolder:
  """Defines a flag that names a folder, see `disk.folder`, in the module that calls."""
  return flags.DEFINE(_FolderParser(), name, default, help)


def define_amount(name: str, help: str) -> flags.FlagHolder:
  """Defines a flag of a finite number, 0 or more, in the module that calls."""
  holder = flags.DEFINE_float(name, None, help)
  flags.register_validator(
    holder, lambda x: x is None or 0 <= x < math.inf, 'must be a finite number, 0 or more.'
  )
  return holder


def define_checkpoint() -> CheckpointFlags:
  """Defines the flags in the module that calls."""
  return CheckpointFlags(
    define_folder(
      'workdir', None, 'Run (its newest intact checkpoint) or exported team, or hf:OWNER/NAME.'
    ),
    flags.DEFINE_string('step', None, 'Another checkpoint of --workdir: its step, or "best".'),
  )


def config_here(saved: checkpoints.Saved | exported.Exported) -> dict[str, Any]:
  """Returns a saved team's config with the mesh adapted to this machine's devices."""
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
    sys.path.append(os.getcwd())  # for the user's own modules, see `plugins`
  app.run(lambda _: _guarded(main), flags_parser=_parse_flags)


def _guarded(main: Callable[[], None]) -> None:
  host_memory.keep()
  logging.set_verbosity(logging.WARNING)
  use_compilation_cache()
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


def use_compilation_cache() -> None:
  """Caches all compiled programs on disk, so that later runs start faster.

  A start spends most time on the few hundred programs below JAX's threshold of one second.
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
    fail(config_flag.explain(error, argv), error)
  if len(rest) > 1:
    fail(f'unexpected argument {rest[1]!r}; options are written --name=value.')
  return rest


def _told(text: str) -> str:
  """Returns the last line of a flag's error, which may be a traceback from the config file."""
  last = config_flag.last_line(text)
  if "flag 'config." in last and 'config' in flags.FLAGS:
    return f'{last}. Give --config as well (of a run: --config=WORKDIR/config.json).'
  behind = re.match(r'flag (--config=[^\n]*(:[^:\n]*)): Error', text)
  if behind and 'get_config() takes 0 positional arguments' in last:
    return f'{behind[1]}: this config takes nothing behind a colon; leave out {behind[2]!r}.'
  number = re.fullmatch(
    r'flag (--config\.\S+=.*): (invalid literal for int|could not convert).*', last
  )
  if number:
    return f'{number[1]}: must be a {"whole " * ("int" in number[2])}number.'
  return last


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
