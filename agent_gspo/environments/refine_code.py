"""Defines code refinement: write an expression of x, see what it returns, write a better one.

    0 : 3 1 : 5 2 : 7                        what an agent observes: f(0) is to be 3
    x * 2 + 2                                an action
    0 : 3 1 : 5 2 : 7 ; x * 2 + 2 : 4 6 8    what is observed then

Programs run in the sandbox; two of five tests are not shown. The reward of a step is the change of
the share of tests that pass, so that the rewards of an episode sum to its last share.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from agent_gspo import sandbox
from agent_gspo.environments.drawn import DrawnWorld

_NUMBERS = [str(n) for n in range(62)]  # up to 4 * (4 + 9) + 9
_LIMITS = sandbox.Limits(cpu_seconds=1, output_bytes=1 << 12)
_TESTS = 'for x in range(5):\n  try: print(repr(f(x)))\n  except Exception: print("error")'


class Program(NamedTuple):
  """Expected results, and the last program with its results; no code at first."""

  gold: str
  wanted: tuple[str, ...]
  code: str = ''
  found: tuple[str, ...] = ()

  @property
  def passed(self) -> float:
    return sum(map(str.__eq__, self.wanted, self.found)) / len(self.wanted)


@functools.lru_cache(maxsize=1 << 14)  # samples of a group often write the same code
def _results(code: str) -> tuple[str, ...]:
  """Returns the results of a program in the tests; fewer if it is stopped."""
  program = f'f = lambda x: ({code}\n)'
  return tuple(sandbox.run_tests(program, 'f', _TESTS, limits=_LIMITS).stdout.splitlines())


@dataclasses.dataclass(eq=False, kw_only=True)
class RefineCode(DrawnWorld):
  """Functions of one number; splits share none."""

  name = 'refine_code'
  hears_silence = False
  threads = os.cpu_count() or 1  # programs run in processes
  noun = 'function'

  def __post_init__(self):
    super().__post_init__()
    sandbox.mechanisms()  # raises if code cannot be run safely on this machine

  def draw(self, rng: random.Random, split: str) -> tuple[str, str, str, Program]:
    """Draws `x * ( x + a ) + b` or `x * a + b`."""
    a, b, square = rng.randint(1, 9), rng.randint(1, 9), rng.randrange(2)
    gold = f'x * ( x + {a} ) + {b}' if square else f'x * {a} + {b}'
    return gold, '', '1.0', Program(gold, tuple(str(x * (x * square + a) + b) for x in range(5)))

  def observe(self, state: Program, agent: int) -> str:
    """Returns the tests that are shown, and what the last program returned."""
    tests = ' '.join(f'{x} : {state.wanted[x]}' for x in range(3))
    found = ' '.join(y if y in _NUMBERS else 'error' for y in state.found[:3])
    return f'{tests} ; {state.code} : {found or "error"}' if state.code else tests

  def act(self, state: Program, texts: Mapping[int, str]) -> tuple[Program, float, bool]:
    """Runs the program of the last author."""
    code, before = ' '.join(texts[max(texts)].split()), state.passed
    state = state._replace(code=code, found=_results(code))
    return state, state.passed - before, state.passed == 1

  def outcome(self, state: Program) -> str:
    """Returns the share of tests that pass."""
    return str(state.passed)

  def demonstration(
    self, question, agent, delivered, rng, *, state, silence_probability, **_: Any
  ) -> str:
    """Writes the expression, at first with a random last number by `silence_probability`."""
    guess = not state.code and rng.random() < silence_probability
    return f'{state.gold[:-1]}{rng.randint(1, 9)}' if guess else state.gold

  def vocabulary(self) -> list[str]:
    """Returns the words of observations and demonstrations."""
    return [*_NUMBERS, *'x+*():;', 'error']
