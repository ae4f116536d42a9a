"""Gold equations of the official files, as chains that a solver can be shown (`equations`)."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from fractions import Fraction

from agent_gspo.tasks.grading import equations

Tree = Fraction | tuple[str, 'Tree', 'Tree']
"""A number, or an operation on two trees."""

_SIGNS: dict[type[ast.operator], str] = {
  ast.Add: '+', ast.Sub: '-', ast.Mult: '*', ast.Div: '/',
}  # fmt: skip
_ARITHMETIC = re.compile(r'[-+*/().\s\d]+')
_ANNOTATION = re.compile(r'<<([^<>]*)>>')


def from_infix(text: str) -> Tree | None:
  """'( 6.0 - ( 3.0 + 2.0 ) )', as SVAMP and MultiArith write it; None if it is no such thing."""
  if not _ARITHMETIC.fullmatch(text):  # such as a rationale
    return None
  try:
    return _tree(ast.parse(text.strip(), mode='eval').body)
  except (SyntaxError, ValueError):
    return None


def from_prefix(text: str, numbers: Sequence[str]) -> Tree | None:
  """'- + number0 number1 3.0', as the training file of SVAMP writes it; None likewise."""
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
  """The text that `from_infix` reads."""
  if isinstance(tree, Fraction):
    return equations.written(tree) or repr(float(tree))
  return f'( {infix(tree[1])} {tree[0]} {infix(tree[2])} )'


def leaves(tree: Tree) -> set[Fraction]:
  """The numbers that an equation begins with."""
  return {tree} if isinstance(tree, Fraction) else leaves(tree[1]) | leaves(tree[2])


def commuted(tree: Tree, most: int = 8) -> list[Tree]:
  """Returns the equation and those with summands or factors exchanged, `most` at most."""
  if isinstance(tree, Fraction):
    return [tree]
  sign, left, right = tree
  pairs = itertools.product(commuted(left, most), commuted(right, most))
  found: list[Tree] = []
  for a, b in pairs:
    found += [(sign, a, b), (sign, b, a)] if sign in '+*' else [(sign, a, b)]
  return found[:most]


def chain(tree: Tree | None, answer: str) -> str:
  """'3 + 2 = 5, 6 - 5 = 1'.

  Returns:
    '' where there is no such chain: nothing to calculate, a number of too many decimals, or a
    result that is not the gold answer.
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
  """The numbers that GSM8K's `<<48/2=24>>` begin with: no results of those before them."""
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
  """A rationale as a person would write it, in one line."""
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
