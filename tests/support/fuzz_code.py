"""Defines messages with malformed or hostile code, as the grader of HumanEval gets them."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable

from fuzzing import Case

from agent_gspo import sandbox
from agent_gspo.tasks.benchmarks.human_eval import complete_program, extract_code

_FENCE = '```'
_HEAD = 'def deviation(numbers):\n'
_BODY = (
  '    mean = sum(numbers) / len(numbers)\n'
  '    return sum(abs(x - mean) for x in numbers) / len(numbers)\n'
)
_RIGHT = _HEAD + _BODY
_PROMPT = f'{_HEAD}    """Mean distance from the mean."""\n'
_TESTS = 'assert abs(deviation([1.0, 2.0, 3.0, 4.0]) - 1.0) < 1e-6\nassert deviation([5.0]) == 0\n'
_LIMITS = sandbox.Limits(cpu_seconds=1, wall_seconds=5.0)
# Each must be graded like the code that it wraps.
_WRAPPERS: dict[str, Callable[[str], str]] = {
  'fenced': lambda code: f'{_FENCE}python\n{code}{_FENCE}',
  'opened in the prompt': lambda code: f'{code}{_FENCE}\nThat is all.\n',
  'never closed': lambda code: f'Here:\n{_FENCE}python\n{code}',
  'tildes': lambda code: f'~~~~ Python 3\n{code}~~~~\n~~~',
  'reasoned': lambda code: f'<think>\n{_FENCE}\nimport os\n{_FENCE}</think>\n\n{code}',
  'tagged': lambda code: f'<answer>\n{code}</answer> {_FENCE}\nexit()\n{_FENCE}',
  'windows': lambda code: code.replace('\n', '\r\n'),
  'blank lines': lambda code: f'\n \n\t\n{code}\n\n',
}
_HOSTILE = {
  'endless': 'while True: pass',
  'memory': 'return [0] * 10**12',
  'fork': 'import os; return os.fork()',
  'exit': 'import os; os._exit(0)',
  'quit': 'raise SystemExit(0)',
  'deep': f'return {"(" * 5_000}1{")" * 5_000}',
  'minus': f'return {"-" * 100_000}1',
  'recursion': 'return deviation(numbers)',
  'power': 'return 9 ** 9 ** 9',
  'printed': 'print("x" * 10**9)',
  'file': 'open("x", "wb").truncate(10**12)',
  'NUL': 'return "\0"',
  'surrogate': 'return "\ud800"',
  'equal to all': 'return type("A", (float,), {"__sub__": lambda a, b: 0, "__eq__": id})()',
}


def _passes(message: str) -> bool:
  """Returns whether the code in a message passes tests, as `HumanEval.score` does."""
  code = extract_code(message, ('deviation',))
  if code is None:
    return False
  program = complete_program(_PROMPT, code, 'deviation')
  return sandbox.run_tests(program, 'deviation', _TESTS, setup=_PROMPT, limits=_LIMITS).ok


def _case(name: str, message: str, want: tuple[bool, ...] = (True, False)) -> Case:
  def run(unused_folder: pathlib.Path) -> None:
    assert _passes(message) in want, f'not {want} for {message[:200]!r}'

  return Case(name, run)


def cases(seed: int = 0) -> list[Case]:
  """Returns messages that are right, wrong by attack, or broken somewhere."""
  rng = random.Random(f'{seed}/code')
  found = []
  for what, code in (('function', _RIGHT), ('body', _BODY), ('stripped body', _BODY.lstrip())):
    found.append(_case(f'untouched {what}', code, (True,)))
    found += [_case(f'{what}, {name}', wrap(code), (True,)) for name, wrap in _WRAPPERS.items()]
  for what, line in _HOSTILE.items():
    name = rng.choice(list(_WRAPPERS))
    found.append(_case(f'{what}, {name}', _WRAPPERS[name](f'{_HEAD}    {line}\n'), (False,)))
  pieces = (_FENCE, '~~~', '\0', '\t', '\n', ' ', '"""', '<think>', '</think>', '\ufeff', '\\', '(')
  for i in range(50):
    message = rng.choice(list(_WRAPPERS.values()))(rng.choice((_RIGHT, _BODY)))
    for _ in range(rng.randint(1, 4)):
      at = rng.randrange(len(message) + 1)
      cut = at + rng.choice((0, 0, 1, 5))
      message = message[:at] + rng.choice(pieces) + message[cut:]
    found.append(_case(f'broken {i}', message))
  return found
