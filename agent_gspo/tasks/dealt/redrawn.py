"""Augments word problems with other numbers: the same story, another equation to execute."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping
from fractions import Fraction

from agent_gspo.tasks.grading import equations
from agent_gspo.tasks.grading.numeric import numbers_in
from agent_gspo.types import Question

_TRIES = 200
# Isolated whole numbers in digits: no ordinal, percentage, fraction, time or decimal.
WHOLE_NUMBER = re.compile(r'(?<![\w.,/:-])[1-9][0-9]{0,3}(?![\w%]|[.,/:-][0-9]| ?(?:%|percent\b))')


def redrawn(question: Question, rng: random.Random) -> Question | None:
  """Replaces whole numbers by others of as many digits, in text, equation and answer.

  All occurrences of a number change alike, and different numbers stay different. An intermediate
  result is whole or positive in the new problem if and only if it is in the original.

  Returns:
    The problem, or None if it has no equation or no such numbers, or `_TRIES` draws fail.
  """
  tree = equations.from_infix(question.derivation)
  old = _may_change(question.text)
  if tree is None or not old & equations.leaves(tree):
    return None
  for _ in range(_TRIES):
    new = {number: Fraction(rng.choice(numbers_of(len(str(number))))) for number in old}
    other = _with_numbers(tree, new)
    results = _results(tree, other)
    if len(set(new.values())) == len(old) and results is not None:
      return dataclasses.replace(
        question,
        text=_in_text(question.text, new),
        derivation=equations.infix(other),
        answer=str(results[1]),
      )
  return None


def _may_change(text: str) -> set[Fraction]:
  """Returns the numbers that occur isolated in digits, and in no other form; without 1."""
  elsewhere = set(numbers_in(WHOLE_NUMBER.sub(' ', text)))
  return {Fraction(digits) for digits in WHOLE_NUMBER.findall(text)} - elsewhere - {Fraction(1)}


def numbers_of(digits: int) -> range:
  """Returns the whole numbers with `digits` digits, from 2 on."""
  return range(max(10 ** (digits - 1), 2), 10**digits)


def _in_text(text: str, new: Mapping[Fraction, Fraction]) -> str:
  return WHOLE_NUMBER.sub(lambda digits: str(new.get(Fraction(digits[0]), digits[0])), text)


def _with_numbers(tree: equations.Tree, new: Mapping[Fraction, Fraction]) -> equations.Tree:
  if isinstance(tree, Fraction):
    return new.get(tree, tree)
  return tree[0], _with_numbers(tree[1], new), _with_numbers(tree[2], new)


def _results(old: equations.Tree, new: equations.Tree) -> tuple[Fraction, Fraction] | None:
  """Evaluates two equations of one form; None if a step differs in sign or wholeness."""
  if isinstance(old, Fraction):
    assert isinstance(new, Fraction)
    return old, new
  assert not isinstance(new, Fraction)
  left, right = _results(old[1], new[1]), _results(old[2], new[2])
  if left is None or right is None or (old[0] == '/' and not (right[0] and right[1])):
    return None
  calculate = equations.OPERATIONS[old[0]]
  was, now = calculate(left[0], right[0]), calculate(left[1], right[1])
  alike = (was > 0) == (now > 0) and (was.denominator == 1) == (now.denominator == 1)
  return (was, now) if alike else None
