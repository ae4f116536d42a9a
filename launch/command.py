"""What the commands of this folder share: clear errors, exit codes, the compilation cache."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence


def run(app, main: Callable[[list[str]], int]) -> None:
  """`app.run(main)`; a config file or flag that does not fit is one line, not a traceback."""
  try:
    app.run(main)
  except (AttributeError, KeyError, TypeError, ValueError, FileNotFoundError) as error:
    # Raised while the flags were parsed: the config's own keys and types.
    if _from_flags(error):
      fail(_text(error))
    raise


def refuse_arguments(argv: Sequence[str]) -> None:
  """Nothing is silently ignored."""
  if len(argv) > 1:
    fail(f'unexpected argument {argv[1]!r}; options are written --name=value.')


def fail(text: str) -> None:
  print(f'error: {text}', file=sys.stderr)
  raise SystemExit(2)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
  """User errors end with one line and exit status 2, Ctrl-C with 130."""
  logging.getLogger('absl').setLevel(logging.WARNING)
  try:
    yield
  except (ValueError, FileNotFoundError, ConnectionError, FloatingPointError) as error:
    if os.environ.get('AGENT_GSPO_TRACEBACK'):
      raise
    fail(f'{error}\n(AGENT_GSPO_TRACEBACK=1 shows where it was raised.)')
  except KeyboardInterrupt:
    raise SystemExit(130) from None


def use_compilation_cache() -> None:
  """Compiled programs are kept, so that a second run starts at once."""
  import jax

  if not jax.config.jax_compilation_cache_dir:
    cache = os.environ.get('AGENT_GSPO_CACHE', '~/.cache/agent_gspo')
    folder = pathlib.Path(cache).expanduser() / 'compiled'
    jax.config.update('jax_compilation_cache_dir', str(folder))


def _from_flags(error: BaseException) -> bool:
  frames, trace = [], error.__traceback__
  while trace:
    frames.append(trace.tb_frame.f_code.co_filename)
    trace = trace.tb_next
  return any('ml_collections' in name for name in frames)


def _text(error: BaseException) -> str:
  return str(error.args[0]) if error.args else repr(error)
