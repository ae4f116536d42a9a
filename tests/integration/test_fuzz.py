"""Checks that malformed inputs never end in a traceback, in silence, or in a hang.

The inputs are those of fuzz_inputs.py. Some of each category are tried with every run of the
tests; `pytest -m slow tests/integration/test_fuzz.py` tries all (two minutes on two cores).
"""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sys

import fuzz_inputs
import fuzzing
import micro_run
import pytest

_CATEGORIES = tuple(fuzz_inputs.CATEGORIES)
_SOME, _AS_COMMANDS = 25, 12
# Categories that no subprocess can read, or whose commands another test runs.
_WITHOUT_COMMANDS = ('chat', 'plugins', 'graders', 'code')
_WITH_COMMANDS = tuple(c for c in _CATEGORIES if c not in _WITHOUT_COMMANDS)


def _bad(cases: list[fuzzing.Case]) -> list[str]:
  ended = [(case.name, fuzzing.outcome(case)) for case in cases]
  return [f'{o.kind}: {name}: {o.text[:300]}' for name, o in ended if not o.well]


def _sample(category: str, count: int, **attributes) -> list[fuzzing.Case]:
  cases = fuzz_inputs.CATEGORIES[category](0)
  cases = [c for c in cases if all(getattr(c, k) == v for k, v in attributes.items())]
  return random.Random(category).sample(cases, min(count, len(cases)))


def _run(cases: list[fuzzing.Case], folder: pathlib.Path) -> list[str]:
  """Runs cases as commands; returns those that did not end with status 2 and one line."""
  lines = []
  for i, case in enumerate(cases):
    (folder / str(i)).mkdir()
    lines.append(case.command(folder / str(i)))
  done = subprocess.run(
    [sys.executable, str(micro_run.CONFIG.parent / 'forked_commands.py')],
    input=json.dumps(lines),
    env=micro_run.environment(),
    cwd=folder,
    capture_output=True,
    text=True,
    check=True,
  )
  return [
    f'{case.name}: status {status}: {stderr[-300:]}'
    for case, (status, _, stderr) in zip(cases, json.loads(done.stdout), strict=True)
    if status != 2 or not stderr.startswith('error: ') or len(stderr.splitlines()) != 1
  ]


@pytest.mark.parametrize('category', _CATEGORIES)
def test_inputs_that_nobody_touched_are_accepted(category):
  untouched = [c for c in fuzz_inputs.CATEGORIES[category](0) if 'untouched' in c.name]
  assert untouched
  assert [fuzzing.outcome(case).kind for case in untouched] == ['accepted'] * len(untouched)


@pytest.mark.parametrize('category', _CATEGORIES)
def test_some_malformed_inputs(category):
  assert not _bad(_sample(category, _SOME))


@pytest.mark.slow
@pytest.mark.parametrize('category', _CATEGORIES)
def test_all_malformed_inputs(category):
  cases = fuzz_inputs.CATEGORIES[category](0)
  assert len({case.name for case in cases}) == len(cases)
  assert not _bad(cases)


@pytest.mark.slow
@pytest.mark.parametrize('category', _WITH_COMMANDS)
def test_commands_end_with_one_line_and_status_2(category, tmp_path):
  assert not _run(_sample(category, _AS_COMMANDS, invalid=True), tmp_path)


def _outcome(run, invalid=False, names=()) -> str:
  return fuzzing.outcome(fuzzing.Case('x', run, invalid, names)).kind


def test_the_fuzz_tells_what_is_wrong():
  """Checks that the fuzz test is able to fail."""

  def refuse(text):
    def run(unused_folder):
      raise ValueError(text)

    return run

  def loop(unused_folder):
    while True:
      pass

  assert _outcome(refuse('the field x=3 is wrong'), True, ('x=3',)) == 'refused'
  assert _outcome(refuse('the field x=3 is wrong'), True, ('y=3',)) == 'unclear'
  assert _outcome(refuse('3'), True) == 'unclear'
  assert _outcome(lambda folder: None, True) == 'silent'
  assert _outcome(lambda folder: None) == 'accepted'
  assert _outcome(lambda folder: {}['x']) == 'traceback'
  assert _outcome(lambda folder: exit_without_a_word()) == 'unclear'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(fuzzing, 'CPU_SECONDS', 0.2)
    assert _outcome(loop) == 'endless'


def exit_without_a_word():
  raise SystemExit(2)
