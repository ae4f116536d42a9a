"""Tests chains of arithmetic, and the notations of the official files."""

from __future__ import annotations

import random
import time
from fractions import Fraction

import hypothesis
import hypothesis.strategies as hs
import pytest

from agent_gspo.tasks.benchmarks.word_problems import GSM8K
from agent_gspo.tasks.grading import equations
from agent_gspo.types import Question


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    (' 24 + 39 = 63, 63 - 4 = 59', '59'),
    ('93 - 40 = 51', '53'),  # the claimed result of a step is ignored
    ('24 + 39 = 62, 62 - 4 = 58', '59'),  # also if a later step uses it
    ('2 * 3 = 7; 7 * 7 = 49', '42'),  # once: the other 7 may be a number of the problem
    ('5 + 5 = 10, 10 - 10 = 1', '0'),
    ('3 + 2 = 5\n6 - 5 = 1.', '1'),
    ('1,200 / 4 = 300', '300'),
    ('$2.50 x 4 = $10', '10'),
    ('7÷2=3', '7/2'),
    ('3 − 5 = -2, -2 * -4 = 8', '8'),
    ('0.1 + 0.2 = 0.3', '3/10'),
    ('10 / 4 = 2, 2 * 2 = 4', '5'),
    # No chains.
    ('', None),
    ('59', None),
    ('24 + 39', None),
    ('24 + 39 =', None),
    ('24 + 39 = 63, so 63 - 4 = 59', None),
    ('24 + 39 + 1 = 64', None),
    ('the answer is 3 + 4 = 7', None),
    ('3 + 4 = 7 apples', None),
    ('3 + 4 = 7,', None),
    ('1,200 / 4 = 300,200 + 1 = 201', '201'),  # of several readings the one that is a chain
    ('8 / 0 = 8', None),
    ('2 ** 3 = 8', None),
    ('2 + __import__("os") = 2', None),
    ('1 + 1 = 2, ' * 100, None),  # too long for any question
    ('9' * 13 + ' + 1 = 2', None),
  ],
)
def test_the_answer_of_a_text(text, expected):
  assert equations.answer(text) == expected


@pytest.mark.parametrize(
  ('text', 'gold', 'expected'),
  [
    ('93 - 40 = 51', '53', 1.0),
    ('93 - 40 = 51', '51', 0.0),
    ('44 / 5 = 8', '8.8', 1.0),
    ('2 / 3 = 0', '2/3', 1.0),
    ('53', '53', 0.0),
    ('', '0', 0.0),
    ('5 - 5 = 9', '0', 1.0),
  ],
)
def test_grades(text, gold, expected):
  assert equations.grade(text, gold) == expected


def test_a_gold_answer_without_a_number():
  with pytest.raises(ValueError, match='holds no number'):
    equations.grade('1 + 1 = 2', 'some')


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    (' 93 - 40 =', '53'),
    ('3 + 2 = 5, 6 - 5 = ', '1'),
    ('7 / 2 =', '3.5'),
    ('she has 3 * 4 =', '12'),
    ('1 / 3 =', None),  # no short decimal
    ('1 / 0 =', None),
    ('93 - 40', None),
    ('=', None),
    ('3 + 2 = 5', None),
    ('24 + 39 = 63, 63 - 4 =', '59'),
    ('24 + 39 = 63\n63 - 4 =', '59'),
    ('24 + 39 = 63\n-4 + 6 =', '2'),
    ('-3 + 5 =', '2'),
    ('in a box 3 + 4 =', '7'),
    # The end of something longer, whose value is another.
    ('1 + 2 + 3 =', None),
    ('10 - 2 - 3 =', None),
    ('10 -2 - 3 =', None),
    ('5 + 3 * 2 =', None),
    ('so 2 * 3 + 4 =', None),
    ('2 x 3 x 4 =', None),
    ('24 ÷ 3 × 4 =', None),
    ('12 − 3 – 4 =', None),
    ('2 ^ 3 + 4 =', None),
    ('(1 + 2) * 3 + 4 =', None),
    ('(1 + 2) -3 + 4 =', None),
    ('5 - -3 + 4 =', None),
    ('- 5 + 3 =', None),
    ('1 +\n2 + 3 =', None),
    ('1 + 2 = 3, 1 + 2 + 3 =', None),
  ],
)
def test_what_a_calculator_completes(text, expected):
  assert equations.completion(text) == expected


def test_a_calculator_is_quick():
  start = time.process_time()
  assert equations.completion('so\n' + '\n' * 20_000 + 'x =') is None
  assert equations.completion('so' + ' \n' * 20_000 + '2 + 3 =') == '5'
  assert time.process_time() - start < 2  # quadratic work took a minute


@hypothesis.given(hs.text(alphabet='0123456789+-*/=., \n$x', max_size=60))
def test_any_text_is_read(text):
  answer = equations.answer(text)
  assert answer is None or '=' in text


def _tree(rng: random.Random, depth: int) -> equations.Tree:
  if depth == 0 or rng.random() < 0.3:
    return Fraction(rng.randint(1, 50))
  return rng.choice('+-*/'), _tree(rng, depth - 1), _tree(rng, depth - 1)


def _value(tree: equations.Tree) -> Fraction | None:
  if isinstance(tree, Fraction):
    return tree
  left, right = _value(tree[1]), _value(tree[2])
  if left is None or right is None or (tree[0] == '/' and right == 0):
    return None
  return equations.OPERATIONS[tree[0]](left, right)


def _prefix(tree: equations.Tree) -> str:
  if isinstance(tree, Fraction):
    return f'{tree}.0'
  return f'{tree[0]} {_prefix(tree[1])} {_prefix(tree[2])}'


@pytest.mark.parametrize('seed', range(200))
def test_notations_and_chains_agree(seed):
  """Infix and prefix read the same tree; its chain, where it has one, executes to its value."""
  tree = _tree(random.Random(seed), 3)
  assert equations.from_infix(equations.infix(tree)) == tree
  assert equations.from_prefix(_prefix(tree), []) == tree
  value = _value(tree)
  chain = equations.chain(tree, str(value if value is not None else 0))
  if chain:
    assert Fraction(equations.answer(chain)) == value
    assert equations.chain(tree, str(value + 1)) == ''  # another gold answer


def test_prefix_with_the_numbers_of_the_text():
  tree = equations.from_prefix('- + number0 number1 number2', ['9.0', '27.0', '20.0'])
  assert equations.infix(tree) == '( ( 9 + 27 ) - 20 )'
  assert equations.chain(tree, '16') == '9 + 27 = 36, 36 - 20 = 16'
  assert equations.leaves(tree) == {9, 27, 20}


@pytest.mark.parametrize('text', ['', 'x + 1', '1 +', '2 ** 3', 'f(1)', '"a"', 'True + 1'])
def test_what_is_no_equation(text):
  assert equations.from_infix(text) is None
  assert equations.chain(None, '1') == ''


@pytest.mark.parametrize('text', ['', '+ number0', '+ number0 number5', '+ 1 2 3', '+ a b'])
def test_what_is_no_prefix_equation(text):
  assert equations.from_prefix(text, ['1', '2']) is None


def test_a_rationale():
  rationale = (
    'He sold 48/2 = <<48/2=24>>24 clips.\nThat is 48+24 = <<48+24=72>>72 and $0.50 each: '
    '<<72*0.5=36>>36, <<36-05=31>>31.\n#### 31'
  )
  assert equations.in_rationale(rationale) == {48, 2, Fraction(1, 2), 5}
  asked = Question('x', 'How many?', '2', derivation='a <<1+1=2>>2\nb')
  assert GSM8K.solution(asked) == 'a 2 b'
