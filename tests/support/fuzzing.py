"""Runs a fuzz case as a command of launch/ would, and classifies the outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pathlib
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

from agent_gspo.apps.commands import command

CPU_SECONDS = 10  # a case takes milliseconds; what takes longer never ends


@dataclasses.dataclass(frozen=True)
class Case:
  """One input.

  Attributes:
    name: Name of the case, without its category.
    run: Reads the input, given an empty folder for its files.
    invalid: Whether it must be refused; else it may be accepted.
    names: Words of which the error must contain one; any error if empty.
    command: Writes the input into a folder; returns the command line that reads it there.
  """

  name: str
  run: Callable[[pathlib.Path], Any]
  invalid: bool = False
  names: tuple[str, ...] = ()
  command: Callable[[pathlib.Path], list[str]] | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a case ended.

  Attributes:
    kind: 'refused' and 'accepted' are good; 'silent' (accepted though invalid), 'unclear' (an
      error that names nothing), 'traceback' and 'endless' are not.
    text: Error message, or description of the problem.
    seconds: CPU time.
  """

  kind: str
  text: str
  seconds: float

  @property
  def well(self) -> bool:
    return self.kind in ('refused', 'accepted')


class _TooLong(KeyboardInterrupt):
  """Interrupts a case; a KeyboardInterrupt, which only handlers of Ctrl-C catch."""


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
  def stop(*unused):
    raise _TooLong

  before = signal.signal(signal.SIGPROF, stop)
  signal.setitimer(signal.ITIMER_PROF, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def outcome(case: Case) -> Outcome:
  """Runs a case in a folder of its own, under the error handler of the commands."""
  errors = io.StringIO()
  with tempfile.TemporaryDirectory() as folder:
    place, start = pathlib.Path(folder), time.process_time()
    kind, text = 'accepted', ''
    try:
      with (
        mock.patch.object(command, 'use_compilation_cache'),  # nothing is compiled
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
        _limit(CPU_SECONDS),
      ):
        warnings.simplefilter('ignore')
        command._guarded(lambda: case.run(place))
    except (SystemExit, _TooLong) as end:  # the first of a clear error; some hand the text to it
      kind, text = 'refused', errors.getvalue() or str(getattr(end, 'code', ''))
      if isinstance(end, _TooLong) or isinstance(end.__context__, _TooLong):
        kind, text = 'endless', f'not done after {CPU_SECONDS} s'
    except BaseException as error:
      if isinstance(error, KeyboardInterrupt):
        raise
      kind, text = 'traceback', f'{type(error).__name__}: {error}'
    seconds = time.process_time() - start
  if kind == 'accepted' and case.invalid:
    kind, text = 'silent', 'accepted, though it cannot be meant'
  if kind == 'refused' and (problem := _unclear(text, case)):
    kind, text = 'unclear', f'{problem}: {text}'
  return Outcome(kind, text.strip(), seconds)


def _unclear(text: str, case: Case) -> str:
  if len(text.splitlines()) != 1:
    return f'{len(text.splitlines())} lines'
  if len(text.split()) < 4:
    return 'says nothing'
  if case.names and not any(name in text for name in case.names):
    return f'does not name {" or ".join(case.names)}'
  return ''


def table(outcomes: Iterable[tuple[str, Outcome]]) -> str:
  """Returns a table of the numbers of outcomes, by category and kind."""
  kinds = ('refused', 'accepted', 'silent', 'unclear', 'traceback', 'endless')
  counts: dict[str, dict[str, int]] = {}
  for category, found in outcomes:
    row = counts.setdefault(category, dict.fromkeys(kinds, 0))
    row[found.kind] += 1
  lines = [f'{"":12}' + ''.join(f'{kind:>11}' for kind in ('cases', *kinds))]
  for category, row in counts.items():
    cells = (sum(row.values()), *row.values())
    lines.append(f'{category:12}' + ''.join(f'{cell:>11}' for cell in cells))
  return '\n'.join(lines)


def main(categories: dict[str, Callable[[int], list[Case]]], arguments: list[str]) -> None:
  """Runs `python fuzz_inputs.py [--seed=N] [CATEGORY...]`; prints counts and bad outcomes."""
  seed = next((int(a.partition('=')[2]) for a in arguments if a.startswith('--seed=')), 0)
  chosen = [a for a in arguments if not a.startswith('-')] or list(categories)
  found = []
  for category in chosen:
    for case in categories[category](seed):
      ended = outcome(case)
      found.append((category, ended))
      if not ended.well:
        print(f'{ended.kind:10} {category}: {case.name}: {ended.text[:300]!r}', flush=True)
      if ended.seconds > 2:
        print(f'{ended.seconds:.1f} s      {category}: {case.name}', flush=True)
  print(table(found), file=sys.stdout)
