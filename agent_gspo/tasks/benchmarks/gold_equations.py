"""Converts gold equations of the official files to chains for demonstrations (`equations`)."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from fractions import Fraction

from agent_gspo.tasks.grading import equations

Tree = Fraction | tuple[str, 'Tree', 'Tree']
"""Number, or an operation on two trees."""

_SIGNS: dict[type[ast.operator], str] = {
  ast.Add: '+', ast.Sub: '-', ast.Mult: '*', ast.Div: '/',
}  # fmt: skip
_ARITHMETIC = re.compile(r'[-+*/().\s\d]+')
_ANNOTATION = re.compile(r'<<([^<>]*)>>')


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
    if word in equations.OPERATIONS:
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
    return equations.written(tree) or repr(float(tree))
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


def chain(tree: Tree | None, answer: str) -> str:
  """Writes an equation as a chain: '3 + 2 = 5, 6 - 5 = 1'.

  Returns:
    The chain, or '' if there is nothing to calculate, a number has too many decimals, or the
    result is not the gold answer.
  """
  steps: list[str] = []

  def write(tree: Tree) -> str | None:
    if isinstance(tree, Fraction):
      return equations.written(tree)
    sign, left, right = tree[0], write(tree[1]), write(tree[2])
    if left is None or right is None:
      return None
    result = equations.completion(f'{left} {sign} {right} =')
    steps.append(f'{left} {sign} {right} = {result}')
    return result

  if tree is None or write(tree) is None:
    return ''
  text = ', '.join(steps)
  return text if equations.grade(text, answer) else ''


def in_rationale(rationale: str) -> set[Fraction]:
  """Returns the operands of GSM8K's `<<48/2=24>>` that are not earlier results."""
  found: set[Fraction] = set()
  results: set[Fraction] = set()
  for annotation in _ANNOTATION.findall(rationale):
    left, _, right = annotation.rpartition('=')
    tree = from_infix(re.sub(r'(?<![0-9.])0+(?=[0-9])', '', left))
    if tree is not None:
      found |= leaves(tree) - results
    result = from_infix(right)
    if isinstance(result, Fraction):
      results.add(result)
  return found


def without_annotations(rationale: str) -> str:
  """Returns a rationale in one line, without calculator annotations."""
  return ' '.join(_ANNOTATION.sub('', rationale).split())


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
