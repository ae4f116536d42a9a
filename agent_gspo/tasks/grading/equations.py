"""Chains of arithmetic such as `24 + 39 = 63, 63 - 4 = 59`, graded by executing them.

A chain is one step or more, parted by commas, semicolons or line breaks; a step is `a op b = c`
with `+ - * /` (or `x`, `×`, `÷`) and nothing else around it but spaces and a last full stop.
What a step claims is not believed: where a later step uses a claimed result, the true one stands
in its place (once, as each result of an equation is used once), and the last true result is the
answer. So `93 - 40 = 51` answers 53, and `10 / 4 = 2, 2 * 2 = 4` answers 5. This is how
the models of MAWPS (Koncel-Kedziorski et al. 2016) and SVAMP (arXiv 2103.07191) are graded: they
write the equation, a machine calculates. Arithmetic is exact; nothing is handed to an interpreter.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from agent_gspo.tasks.grading import numeric

OPERATIONS: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {
  '+': operator.add,
  '-': operator.sub,
  '*': operator.mul,
  '/': operator.truediv,
}
_SPELLINGS = {'x': '*', '×': '*', '÷': '/', '−': '-', '–': '-'}
_LONGEST = 500  # characters of a chain; no question needs more
_NUMBER = r'-?\$?(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]{1,12}+)(?:\.[0-9]{1,12}+)?+'
_LEFT = rf'({_NUMBER})\s*([-+*/x×÷−–])\s*({_NUMBER})\s*='
_STEP = re.compile(rf'{_LEFT}\s*({_NUMBER})\s*(?:[,;\n]\s*(?=\S)|\.?\s*$)')
_OPEN_STEP = re.compile(rf'(?:^|[,;\n]|\s)\s*{_LEFT}\s*$')
# What shows that a step's left number belongs to more: an operator before it (an x that ends no
# word), or a number whose operator was taken for its sign.
_OPERATOR = re.compile(r'(?:[-+*/^×÷−–]|(?<![^\W\d_])x)\s*$')
_OPERAND = re.compile(r'[0-9)][^\S\n]*\Z')


@dataclasses.dataclass(frozen=True)
class Step:
  """`left op right = claimed`.

  Attributes:
    left, right: as written.
    operation: a key of `OPERATIONS`.
    claimed: what the writer says it gives.
  """

  left: Fraction
  operation: str
  right: Fraction
  claimed: Fraction


def parse(text: str) -> tuple[Step, ...] | None:
  """The steps of a chain, None if the text is no chain."""
  text, steps, start = text.strip(), [], 0
  if len(text) > _LONGEST:
    return None
  while start < len(text):
    match = _STEP.match(text, start)
    if match is None:
      return None
    left, sign, right, claimed = match.groups()
    steps.append(Step(_value(left), _SPELLINGS.get(sign, sign), _value(right), _value(claimed)))
    start = match.end()
  return tuple(steps) or None


def execute(steps: Sequence[Step]) -> Fraction | None:
  """The true result of a chain, None where it divides by zero."""
  unused: list[tuple[Fraction, Fraction]] = []  # claimed, and what it should have been
  result = None
  for step in steps:
    left, right = _true(step.left, unused), _true(step.right, unused)
    if step.operation == '/' and right == 0:
      return None
    result = OPERATIONS[step.operation](left, right)
    unused.append((step.claimed, result))
  return result


def _true(operand: Fraction, unused: list[tuple[Fraction, Fraction]]) -> Fraction:
  """What an operand stands for: the newest result that was claimed to be it, or itself."""
  for i in reversed(range(len(unused))):
    if unused[i][0] == operand:
      return unused.pop(i)[1]
  return operand


@functools.lru_cache(maxsize=4096)  # what a group agrees on is read once
def answer(text: str) -> str | None:
  """The true result of the chain that a text is, in one spelling; None without one."""
  steps = parse(text)
  result = None if steps is None else execute(steps)
  return None if result is None else str(result)


def grade(text: str, gold: str) -> float:
  """1.0 if the text is a chain whose true result is the gold number, else 0.0.

  Raises:
    ValueError: if `gold` holds no number.
  """
  result = answer(text)
  return numeric.grade_number(result or '', gold)


def completion(text: str) -> str | None:
  """What a calculator writes behind a text that ends with `a op b =`; None for any other text.

  A longer sum is another text: of '1 + 2 + 3 =' the last two numbers alone would give 5. Claims
  of earlier steps are believed here: a calculator has written them.
  """
  match = _OPEN_STEP.search(text)
  if match is None:
    return None
  left, sign, right = match.groups()
  before = text[: match.start(1)]
  if _OPERATOR.search(before) or (left.startswith('-') and _OPERAND.search(before)):
    return None
  sign, divisor = _SPELLINGS.get(sign, sign), _value(right)
  if sign == '/' and divisor == 0:
    return None
  return written(OPERATIONS[sign](_value(left), divisor))


def written(value: Fraction) -> str | None:
  """'42' or '2.5'; None for a number that four decimals do not hold."""
  if value.denominator == 1:
    return str(value.numerator)
  for decimals in range(1, 5):
    if (value * 10**decimals).denominator == 1:
      return f'{float(value):.{decimals}f}'
  return None


def _value(digits: str) -> Fraction:
  return Fraction(digits.replace(',', '').replace('$', ''))
