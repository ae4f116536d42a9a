"""Grades chains of arithmetic such as `24 + 39 = 63, 63 - 4 = 59` by executing them.

A chain is one step or more, separated by commas, semicolons or line breaks; a step is `a op b = c`
with `+ - * /` (or `x`, `×`, `÷`) and nothing else around it but spaces and a last full stop.
Claimed results do not count: if a later step uses a claimed result, the true one replaces it
(once, as each result of an equation is used once), and the last true result is the answer. So
`93 - 40 = 51` answers 53, and `10 / 4 = 2, 2 * 2 = 4` answers 5. The models of MAWPS
(Koncel-Kedziorski et al. 2016) and SVAMP (arXiv 2103.07191) are graded in this way: they write
equations, code computes the results. Arithmetic is exact, without `eval`.

Gold equations of the official files are trees, which `chain` writes for demonstrations.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from agent_gspo.tasks.grading import numeric

Tree = Fraction | tuple[str, 'Tree', 'Tree']
"""Number, or an operation on two trees."""

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
_OPEN_STEP = re.compile(rf'(?<![^,;\s]){_LEFT}\s*$')
# Signs that a step's left number belongs to a longer sum: an operator before it (an x that ends
# no word), or a number whose operator was parsed as its sign.
_OPERATOR = re.compile(r'(?:[-+*/^×÷−–]|(?<![^\W\d_])x)\s*$')
_OPERAND = re.compile(r'[0-9)][^\S\n]*\Z')

_SIGNS: dict[type[ast.operator], str] = {
  ast.Add: '+', ast.Sub: '-', ast.Mult: '*', ast.Div: '/',
}  # fmt: skip
_ARITHMETIC = re.compile(r'[-+*/().\s\d]+')
ANNOTATION = re.compile(r'<<([^<>]*)>>')


@functools.lru_cache(maxsize=4096)  # a group often repeats an answer
def answer(text: str) -> str | None:
  """Returns the true result of a chain, normalized.

  None if the text is not a chain, or divides by zero.
  """
  text, start, result = text.strip(), 0, None
  if len(text) > _LONGEST:
    return None
  unused: list[tuple[Fraction, Fraction]] = []  # (claimed, true) results
  while start < len(text):
    match = _STEP.match(text, start)
    if match is None:
      return None
    left, sign, right, claimed = match.groups()
    result = _result(_true(_value(left), unused), sign, _true(_value(right), unused))
    if result is None:
      return None
    unused.append((_value(claimed), result))
    start = match.end()
  return None if result is None else str(result)


def _true(operand: Fraction, unused: list[tuple[Fraction, Fraction]]) -> Fraction:
  """Returns the true value of an operand: the newest result with this claim, or itself."""
  for i in reversed(range(len(unused))):
    if unused[i][0] == operand:
      return unused.pop(i)[1]
  return operand


def _result(left: Fraction, sign: str, right: Fraction) -> Fraction | None:
  """Calculates one step, in any spelling of its sign; None upon division by zero."""
  sign = _SPELLINGS.get(sign, sign)
  return None if sign == '/' and right == 0 else OPERATIONS[sign](left, right)


def grade(text: str, gold: str) -> float:
  """Returns 1.0 if the text is a chain whose true result is the gold number, else 0.0.

  Raises:
    ValueError: if `gold` contains no number.
  """
  result = answer(text)
  return numeric.grade_number(result or '', gold)


def completion(text: str) -> str | None:
  """Returns the result to insert after a text that ends with `a op b =`; None for other texts.

  Longer sums are other texts: the last two numbers of '1 + 2 + 3 =' alone would give 5. Claims
  of earlier steps count here, since a calculator wrote them.
  """
  match = _OPEN_STEP.search(text)
  if match is None:
    return None
  left, sign, right = match.groups()
  before = text[: match.start(1)]
  if _OPERATOR.search(before) or (left.startswith('-') and _OPERAND.search(before)):
    return None
  result = _result(_value(left), sign, _value(right))
  return None if result is None else written(result)


def written(value: Fraction) -> str | None:
  """Formats a number as '42' or '2.5'; None if it needs more than four decimals."""
  if value.denominator == 1:
    return str(value.numerator)
  for decimals in range(1, 5):
    if (value * 10**decimals).denominator == 1:
      return f'{float(value):.{decimals}f}'
  return None


def _value(digits: str) -> Fraction:
  return Fraction(digits.replace(',', '').replace('$', ''))


# Gold equations


def from_infix(text: str) -> Tree | None:
  """Parses '( 6.0 - ( 3.0 + 2.0 ) )', as in SVAMP and MultiArith; None for other text."""
  if not _ARITHMETIC.fullmatch(text):  # such as a rationale
    return None
  try:
    return _tree(ast.parse(text.strip(), mode='eval').body)
  except (SyntaxError, ValueError):
    return None


def from_prefix(text: str, numbers: Sequence[str]) -> Tree | None:
  """Parses '- + number0 number1 3.0', as in SVAMP's training file; None for other text."""
  words = text.split()

  def read() -> Tree:
    word = words.pop(0)
    if word in OPERATIONS:
      return word, read(), read()
    if word.startswith('number'):
      return Fraction(numbers[int(word.removeprefix('number'))])
    return Fraction(word)

  try:
    tree = read()
  except (IndexError, ValueError):
    return None
  return None if words else tree


def infix(tree: Tree) -> str:
  """Writes an equation as `from_infix` reads it."""
  if isinstance(tree, Fraction):
    return written(tree) or repr(float(tree))
  return f'( {infix(tree[1])} {tree[0]} {infix(tree[2])} )'


def leaves(tree: Tree) -> set[Fraction]:
  """Returns the operands of an equation that are numbers."""
  return {tree} if isinstance(tree, Fraction) else leaves(tree[1]) | leaves(tree[2])


def commuted(tree: Tree, most: int = 8) -> list[Tree]:
  """Returns at most `most` equations: the given one and those with exchanged operands."""
  if isinstance(tree, Fraction):
    return [tree]
  sign, left, right = tree
  pairs = itertools.product(commuted(left, most), commuted(right, most))
  found: list[Tree] = []
  for a, b in pairs:
    found += [(sign, a, b), (sign, b, a)] if sign in '+*' else [(sign, a, b)]
  return found[:most]


def chain(tree: Tree | None, gold: str) -> str:
  """Writes an equation as a chain: '3 + 2 = 5, 6 - 5 = 1'.

  Returns:
    The chain, or '' if there is nothing to calculate, a number has too many decimals, or the
    result is not the gold answer.
  """
  steps: list[str] = []

  def write(tree: Tree) -> str | None:
    if isinstance(tree, Fraction):
      return written(tree)
    sign, left, right = tree[0], write(tree[1]), write(tree[2])
    if left is None or right is None:
      return None
    result = completion(f'{left} {sign} {right} =')
    steps.append(f'{left} {sign} {right} = {result}')
    return result

  if tree is None or write(tree) is None:
    return ''
  text = ', '.join(steps)
  return text if grade(text, gold) else ''


def in_rationale(rationale: str) -> set[Fraction]:
  """Returns the operands of GSM8K's `<<48/2=24>>` that are not earlier results."""
  found: set[Fraction] = set()
  results: set[Fraction] = set()
  for annotation in ANNOTATION.findall(rationale):
    left, _, right = annotation.rpartition('=')
    tree = from_infix(re.sub(r'(?<![0-9.])0+(?=[0-9])', '', left))
    if tree is not None:
      found |= leaves(tree) - results
    result = from_infix(right)
    if isinstance(result, Fraction):
      results.add(result)
  return found


def _tree(node: ast.expr) -> Tree:
  if isinstance(node, ast.Constant) and type(node.value) in (int, float):
    return Fraction(str(node.value))
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    value = _tree(node.operand)
    if isinstance(value, Fraction):
      return -value
  if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
    return _SIGNS[type(node.op)], _tree(node.left), _tree(node.right)
  raise ValueError(f'no arithmetic: {ast.dump(node)}')
