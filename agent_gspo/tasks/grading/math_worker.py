r"""Compares mathematical expressions in a process of its own, by math-verify and sympy.

A request is one line of JSON on standard input, its reply one line on standard output:

  {"gold": latex, "answer": latex}  ->  true if they are equal, else false
  {"expression": latex}             ->  sympy's spelling of it, or null

Gold and answer may come with "conditions" for each: lists of alternatives, which are lists
of conditions on one variable. If these determine sets, the sets are compared. math-verify does
all else but the comparison of two numbers. That is exact if both are rational,
else to 50 digits; math-verify rounds to 6 decimals, so that 10^{-20} would equal 10^{-21}.

A request that takes too much processor time ends this process without a reply, by a
signal that no library catches; so does the end of the input. The package does not import
this file: `math_grader` runs it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import re
import resource
import signal
import sys
from fractions import Fraction

import math_verify
import sympy
from math_verify import grader
from sympy.core.function import AppliedUndef

_SECONDS = 2.0
_MEMORY_BYTES = 4 << 30
_ROUNDING = (6, 15)  # math-verify's own: decimals, digits
_BITS = 200_000  # maximum size of an exact power
_LARGEST_FACTORIAL = 15_000
_MEMBER = re.compile(r'\\?([A-Za-z]+(?:\([a-z]\))?)\\(not)?in(?![A-Za-z])(.*)', re.DOTALL)

_numeric_eq, _symbolic_eq = grader.sympy_numeric_eq, grader.sympy_symbolic_eq


def _parse(latex: str) -> list:
  # Without its own timeout, whose signal can be caught; ours cannot.
  config = [math_verify.LatexExtractionConfig()]
  return math_verify.parse(f'${latex}$', config, fallback_mode='no_fallback', parsing_timeout=None)


def _reply(request: dict) -> bool | str | None:
  if 'expression' in request:
    found = _parse(request['expression'])
    return str(found[0]) if found else None
  if 'conditions' in request:
    sets = [_solutions(alternatives) for alternatives in request['conditions']]
    if sets[0] and sets[1]:
      return _same_solutions(sets[0], sets[1])
  gold, answer = _parse(request['gold']), _parse(request['answer'])
  return bool(gold and answer and math_verify.verify(gold, answer, timeout_seconds=None))


# Numbers


def _same_number(a: sympy.Basic, b: sympy.Basic, decimals: int, digits: int) -> bool:
  """Compares in place of math-verify's `sympy_numeric_eq`."""
  verdict = _compared(a, b)
  if verdict is not None:
    return verdict
  return _numeric_eq(a, b, decimals, digits) and not _vary(a, b)


def _same_term(a: sympy.Basic, b: sympy.Basic) -> bool:
  """Compares in place of math-verify's `sympy_symbolic_eq`."""
  verdict = _compared(a, b)
  return _symbolic_eq(a, b) if verdict is None else verdict


def _compared(a: sympy.Basic, b: sympy.Basic) -> bool | None:
  """Returns whether two numbers are equal, None if unknown."""
  if any(not isinstance(x, sympy.Expr) or x.free_symbols for x in (a, b)):
    return None
  return _compared_numbers(a, b)


@functools.lru_cache(maxsize=64)  # math-verify calls twice
def _compared_numbers(a: sympy.Expr, b: sympy.Expr) -> bool | None:
  rounded, large = a.has(sympy.Float) or b.has(sympy.Float), False
  try:
    exact = set() if rounded else {_rational(a), _rational(b)}
    if exact and None not in exact:
      return len(exact) == 1
  except OverflowError:
    large = True
  distance = _distance(a, b)
  if distance is None:
    return None
  if distance <= (1e-12 if rounded else 1e-50):
    return None if large else True  # simplification may decide for large numbers
  # Six decimals are enough if they are significant.
  size = max(abs(a.evalf()), abs(b.evalf()))
  return bool(
    rounded and distance <= (1e-3 if size >= 1e-3 else 1e-6) and _numeric_eq(a, b, *_ROUNDING)
  )


def _distance(a: sympy.Expr, b: sympy.Expr, at: dict | None = None) -> sympy.Expr | None:
  """Returns the difference of two numbers relative to the larger one; None if it is unknown."""
  values = []
  for expression in (a, b):
    try:
      value = expression.evalf(60, subs=at)
    except Exception:  # sympy's errors depend on the functions
      return None
    if not (value.is_number and value.is_finite):
      return None
    # Precision 1: a zero that sympy cannot distinguish from a tiny number.
    values.append(sympy.S.Zero if getattr(value, '_prec', 0) == 1 else value)
  size = max(abs(value) for value in values)
  return abs(values[0] - values[1]) / size if size else size


def _vary(a: sympy.Basic, b: sympy.Basic) -> bool:
  """Returns whether two terms differ at one assignment of numbers to their variables."""
  if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
    return False
  symbols = sorted(a.free_symbols | b.free_symbols, key=str)
  at = {symbol: sympy.Rational(1009 + 97 * i, 613) for i, symbol in enumerate(symbols)}
  distance = _distance(a, b, at)
  return distance is not None and distance > (
    1e-10 if a.has(sympy.Float) or b.has(sympy.Float) else 1e-40
  )


def _rational(number: sympy.Expr) -> Fraction | None:
  """Returns the exact value of a rational number, None for others.

  Raises:
    OverflowError: if it is too large to compute.
  """
  if number.is_Rational:
    return Fraction(number.p, number.q)
  parts: list = [_rational(part) for part in number.args]
  if None in parts:
    return None
  if number.is_Add:
    return sum(parts)
  if number.is_Mul:
    return math.prod(parts)
  if number.is_Pow and parts[1].denominator == 1 and (parts[0] or parts[1] > 0):
    size = max(parts[0].numerator.bit_length(), parts[0].denominator.bit_length())
    if abs(parts[1]) * size > _BITS:
      raise OverflowError
    return parts[0] ** parts[1].numerator
  if isinstance(number, sympy.factorial) and parts[0].denominator == 1 and parts[0] >= 0:
    if parts[0] > _LARGEST_FACTORIAL:
      raise OverflowError
    return Fraction(math.factorial(parts[0].numerator))
  return None


# Sets


def _solutions(alternatives: list[list[str]]) -> tuple[set[str], list[tuple]] | None:
  """Returns the variable's name, if any, and the intervals of its values; None if unknown."""
  names: set[str] = set()
  try:
    found = sympy.S.EmptySet
    for conditions in alternatives:
      sets = [_solved(condition, names) for condition in conditions]
      common = sympy.Intersection(*sets)
      # "x < 1 and x > 2" means either.
      found = sympy.Union(found, sympy.Union(*sets) if common.is_empty else common)
    return (names, _intervals(found)) if len(names) <= 1 else None
  # Sampled text may trigger any error in the solver.
  except Exception:
    return None


def _solved(condition: str, names: set[str]) -> sympy.Set:
  member = _MEMBER.fullmatch(condition)
  if member:
    names.add(member[1])
    solved = _solved(member[3], names)
    return sympy.Complement(sympy.S.Reals, solved) if member[2] else solved
  (found,) = _parse(condition)
  if isinstance(found, sympy.Set):
    return found.doit()
  found = found.replace(
    lambda part: isinstance(part, AppliedUndef), lambda part: sympy.Symbol(str(part), real=True)
  )
  if isinstance(found, sympy.logic.boolalg.Boolean):
    (symbol,) = found.free_symbols
    names.add(str(symbol))
    return found.as_set()
  if found.free_symbols:
    raise ValueError(condition)
  return sympy.FiniteSet(found)


def _intervals(values: sympy.Set) -> list[tuple]:
  """Returns `(start, end, left_open, right_open)` of each interval, in order."""
  found = []
  for part in values.args if isinstance(values, sympy.Union) else (values,):
    if isinstance(part, sympy.Interval):
      found.append((part.start, part.end, part.left_open, part.right_open))
    elif isinstance(part, sympy.FiniteSet):
      found.extend((value, value, False, False) for value in part)
    else:
      raise ValueError(str(part))
  return sorted(found, key=lambda part: float(part[0]))


def _same_solutions(
  gold: tuple[set[str], list[tuple]], answer: tuple[set[str], list[tuple]]
) -> bool:
  if (gold[0] and answer[0] and gold[0] != answer[0]) or len(gold[1]) != len(answer[1]):
    return False
  return all(
    bool(x[2]) == bool(y[2])
    and bool(x[3]) == bool(y[3])
    and grader.sympy_expr_eq(x[0], y[0], *_ROUNDING)
    and grader.sympy_expr_eq(x[1], y[1], *_ROUNDING)
    for x, y in zip(gold[1], answer[1], strict=True)
  )


def _main() -> None:
  logging.disable(logging.CRITICAL)
  grader.sympy_numeric_eq, grader.sympy_symbolic_eq = _same_number, _same_term
  with contextlib.suppress(ValueError, OSError):  # Not every system has this limit.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
  for line in sys.stdin:
    # The signal is not handled, so it ends the process at any point.
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
      reply = _reply(json.loads(line))
    # Sampled text may trigger any error in the parser, recursion and memory included.
    except Exception:
      reply = None
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(reply), flush=True)


if __name__ == '__main__':
  _main()
