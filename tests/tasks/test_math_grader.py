"""Tests equality of expressions: numbers, named values, sets, degrees, decimals."""

from __future__ import annotations

import time

import pytest

from agent_gspo.tasks.grading.math_grader import extract_math, grade_math, same_expression

# Each holds in both directions.
EXACT = [
  (r'\frac{1}{2003!}', r'\frac{1}{2004!}', False),
  (r'\frac{1}{2004!}', r'\frac{1}{2004 \cdot 2003!}', True),
  ('10^{-20}', '10^{-21}', False),
  ('10^{-20}', r'\frac{1}{10^{20}}', True),
  ('0.00000000000000000001', '10^{-21}', False),
  ('0', '10^{-21}', False),
  ('0', r'10^{-20}\pi', False),
  ('1', '1+10^{-20}', False),
  ('2^{100}', '2^{100}+1', False),
  ('2^{100}', '4^{50}', True),
  ('100!', '100!+1', False),
  ('100!', r'100 \cdot 99!', True),
  (r'\binom{100}{50}', r'\frac{100!}{50!50!}', True),
  (r'\sqrt{2}\cdot10^{-20}', r'\sqrt{2}\cdot10^{-21}', False),
  (r'\sqrt{2}\cdot10^{-20}', r'\frac{2}{\sqrt2}\cdot10^{-20}', True),
  ('e^{-60}', 'e^{-61}', False),
  (r'\sqrt{2}+10^{-20}', r'\sqrt{2}', False),
  (r'\sqrt{2}-\frac{2}{\sqrt2}', '0', True),
  ('(10^{-20},1)', '(10^{-21},1)', False),
  (r'\{10^{-20},1\}', r'\{10^{-21},1\}', False),
  ('[0,10^{-20}]', '[0,10^{-21}]', False),
  (r'\begin{pmatrix}10^{-20}\\2\end{pmatrix}', r'\begin{pmatrix}10^{-21}\\2\end{pmatrix}', False),
  ('10^{-20}x', '10^{-21}x', False),
  ('x+10^{-20}', 'x+10^{-21}', False),
  # Decimals are rounded, small ones by their digits.
  ('1.414214', r'\sqrt{2}', True),
  ('1.414', r'\sqrt{2}', False),
  (r'1.414214\cdot10^{-20}', r'\sqrt{2}\cdot10^{-20}', True),
  (r'1.5\cdot10^{-20}', r'1.4\cdot10^{-20}', False),
  (r'1.2\times10^{30}', r'12\times10^{29}', True),
  (r'\begin{pmatrix}x\\0.5x\end{pmatrix}', r'\begin{pmatrix}x\\ \frac{x}{2}\end{pmatrix}', True),
]
UNITS = [
  (r'8\sqrt{3} square inches', r'8\sqrt{3}\text{ square inches}', True),
  (r'99\pi square inches', r'99\pi\text{ square inches}', True),
  (r'\frac{3}{4} cups', r'\frac34', True),
  ('7km/h', '7', True),
  ('3ab', '3cd', False),  # variables
  ('2', '2xy', False),
  (r'2\pi rh', r'2\pi ab', False),
]
TIMES = [
  (r'4:30\text{ p.m.}', '4:30 PM', True),
  (r'\text{4:30 p.m.}', '4:30 p.m', True),
  (r'10\!:\!30\text{ a.m.}', '10:30 am', True),
  (r'9\text{ a.m.}', '9:00 a.m.', True),
  (r'9\text{ a.m.}', '9 p.m.', False),
  ('9:05 am', '9:50 am', False),
  (r'4:30\text{ p.m.}', '4:30', True),
]
TWO_SIGNS = [
  (r'\frac{3 \pm \sqrt{5}}{2}', r'\frac{3+\sqrt5}{2}, \frac{3-\sqrt5}{2}', True),
  (r'\frac{3 \pm \sqrt{5}}{2}', r'\frac{3+\sqrt5}{2}', False),
  (r'\frac{3 \pm \sqrt{5}}{2}', r'\frac{3 \pm \sqrt{5}}{2}', True),
  (r'x=\frac{3 \pm \sqrt{5}}{2}', r'\frac{3+\sqrt5}{2}, \frac{3-\sqrt5}{2}', True),
  (r'3 \pm 2\sqrt2', r'3+2\sqrt2, 3-2\sqrt2', True),
]
NAMED = [
  ('x=1,y=2', 'x=2,y=1', False),
  ('x=1,y=2', 'y=2,x=1', True),
  (r'x=1\text{ and }y=2', 'x = 2 and y = 1', False),
  (r'x=1\quad\text{and}\quad y=2', 'y = 2 and x = 1', True),
  ('(x,y)=(1,2)', 'x=1,y=2', True),
  ('(x,y)=(1,2)', 'x=2,y=1', False),
  ('(y,x)=(1,2)', 'x=2,y=1', True),
  (r'\left(x,y\right)=\left(1,2\right)', '(1,2)', True),
  ('x=1,y=2', '(1,2)', True),
  ('x=1,y=2', '(2,1)', False),
  (r'\begin{cases} x=1\\ y=2\end{cases}', 'x=1,y=2', True),
  (r'\{x=1,y=2\}', 'x=2,y=1', False),
  ('x=1,y=2', 'x=1,y=2,z=3', False),
  (r'x=\frac12,y=2\sqrt3', r'y=\sqrt{12},x=0.5', True),
  ('AB=9, CD=4', 'AB=4, CD=9', False),
  (r'\alpha=30^\circ,\beta=60^\circ', r'\beta=60,\alpha=30', True),
  ('x=5', 'y=5', False),
  ('x=5', '5', True),
  ('f(x)=2x+1', 'y=2x+1', True),
  # An equation in x is not the value of x.
  ('3x=9', 'x=9', False),
  ('x^2=9', 'x=9', False),
  ('x+1=6', 'x=5', False),
  ('-y=2x+3', 'y=2x+3', False),
  ('2x-y=-3', 'y=2x+3', True),
  ('2x+3=f(x)', 'f(x)=2x+3', True),
  ('5=x', 'x=5', True),
  ('5=x', 'x=6', False),
  # One name with several values is a set, several names that come again are points.
  (r'x=1\text{ or }x=2', 'x=2, x=1', True),
  ('x=1 or x=2', r'\{1,2\}', True),
  ('x=1 or x=3', '1,2', False),
  (r'x=1, y=2\text{ or }x=2,y=1', '(1,2),(2,1)', True),
  (r'x=1, y=2\text{ or }x=3,y=1', '(1,2),(2,1)', False),
]
SETS = [
  (r'-3\le x\le 2', '[-3,2]', True),
  ('-3<=x<=2', '[-3,2]', True),
  (r'-3<x\le 2', '[-3,2]', False),
  ('-3 ≤ x < 2', '[-3,2)', True),
  ('x<3', r'(-\infty,3)', True),
  ('3>x', '(-∞,3)', True),
  (r'x\le3', r'(-\infty,3)', False),
  (r'x\le3', 'x<3', False),
  ('y<3', 'x<3', False),
  (r'x\ne 3', r'(-\infty,3)\cup(3,\infty)', True),
  ('x != 3', r'x\in\mathbb{R}\setminus\{3\}', True),
  (r'x\ne 3', r'(-\infty,2)\cup(2,\infty)', False),
  (r'x\ne -8,-2', r'(-\infty,-8)\cup (-8,-2)\cup (-2,\infty)', True),
  (r'x \in [-2,7]', r'-2\le x\le 7', True),
  (r'x<1 \text{ or } x>2', r'(-\infty,1)\cup(2,\infty)', True),
  ('x > 2 or x < 1', r'(-\infty,1)\cup(2,\infty)', True),
  (r'x\le1 or x>2', r'(-\infty,1)\cup(2,\infty)', False),
  (r'x>3, x\ne5', r'(3,5)\cup(5,\infty)', True),
  ('|x-2|<5', '(-3,7)', True),
  (r'|x|\ge 1', r'(-\infty,-1] \cup [1,\infty)', True),
  (r'\{x\mid x>3\}', r'(3,\infty)', True),
  (r'\{x\in\mathbb{R} : x\ne 3\}', r'(-\infty,3)\cup(3,\infty)', True),
  (r'1<x<4-\sqrt3 or 4+\sqrt3<x<7', r'(1,4-\sqrt{3})\cup(4+\sqrt{3},7)', True),
  (r'-\frac12<x<0.75', r'(-0.5,\frac{3}{4})', True),
  (r'-80\leq g(x)\leq 82', '[-80,82]', True),
  (r'x>10^{-20}', r'(10^{-21},\infty)', False),
  ('3<x<5', '(3,5)', True),
  ('x>3', '3', False),
  ('f(1) < f(4) < f(2)', 'f(2) < f(1) < f(4)', False),
]
DEGREES = [
  (r'\sin 32^\circ', r'\cos 58^\circ', True),
  (r'\sin 58^\circ', r'\cos 58^\circ', False),
  (r'\sin\left(32^{\circ}\right)', r'\cos 58°', True),
  ('sin(32 degrees)', r'\cos 58^\circ', True),
  (r'\sin(32\text{ degrees})', r'\cos 58^\circ', True),
  (r'\tan 45^\circ', '1', True),
  (r'2 - \sqrt{3}', r'\tan 15^\circ', True),
  (r'\sin\frac{45^\circ}{2}', r'\sin 22.5^\circ', True),
  (r'\sin^2 30^\circ', r'\frac14', True),
  (r'\cos 40^\circ+\cos 80^\circ', r'\cos 20^\circ', True),
  (r'\sin(x+30^\circ)', r'\sin(x+\frac{\pi}{6})', True),
  (r'\sin x^\circ', r'\sin\frac{\pi x}{180}', True),
  (r'\sin 30', r'\sin 30^\circ', False),
  (r'\arcsin\frac12', r'30^\circ', True),
  (r'60^\circ', r'\frac{\pi}{6}', False),
  (r'45^\circ', '45', True),
  (r'45 \text{ degrees}', '45', True),
  (r'x=45^\circ', '45', True),
  (r'(6,235^\circ)', '(6,235)', True),
]
REPEATED = [
  ('1,1,2', '1,2,2', False),
  ('1,1,2', r'2,\frac22,1', True),
  ('1,1,2', '1,2', True),
  ('x=1, x=1, x=2', '1,2,2', False),
  ('1:3:2', '1:2:3', False),
  (r'\frac12:1:3', '0.5 : 1 : 3', True),
  ('1:2', '2:4', True),
]
REPEATING = [
  (r'0.\overline{3}', r'\frac13', True),
  (r'0.1\overline{6}', '1/6', True),
  (r'12.3\overline{45}', r'\frac{679}{55}', True),
  (r'0.\dot{1}4285\dot{7}', r'\frac17', True),
  ('0.333...', r'\frac13', True),
  (r'0.1666\ldots', r'\frac16', True),
  (r'-0.\bar3', r'-\frac13', True),
  (r'0.\overline{9}', '1', True),
  (r'(0.\overline{3},1)', r'(\frac13,1)', True),
  (r'x=0.\overline{3}y', r'\frac{y}{3}', True),
  (r'0.\overline{34}', r'0.\overline{43}', False),
  (r'\overline{34}', '34', False),
]
TYPED = [
  (r'\frac{12}{5525}', r'\frac{12}{5,\!525}', True),
  (r'\frac{1}{29322216}', r'\dfrac{1}{29,\!322,\! 216}', True),
  (r'(1,\!000,2)', '(1000,2)', True),
  (r'1{,}200x', '1200x', True),
  (r'1,000\pi', r'1000\pi', True),
  (r'1,200\sqrt{2}', r'1200\sqrt2', True),
  (r'\{1,200\pi,5\}', r'\{1200\pi,5\}', False),
  (r'\frac \pi4 + 2 - \sqrt2', r'\frac{\pi}{4}+2-\sqrt{2}', True),
  (r'\frac\pi{2x}', r'\frac{\pi}{2x}', True),
  (r'\frac{1}b', r'\frac1{b}', True),
  (r'\sqrt[3]2', r'\sqrt[3]{2}', True),
  (r'\sqrt[3]2', r'\sqrt{2}', False),
  (r'\sqrt\pi', r'\sqrt{\pi}', True),
  ('2√3', r'2\sqrt{3}', True),
  ('√12', r'2√3', True),
  ('√(x+1)', r'\sqrt{x+1}', True),
  ('x²+x³', 'x^2+x^3', True),
  ('2·3·x', '6x', True),
  ('½', '0.5', True),
]


@pytest.mark.parametrize(
  ('one', 'other', 'same'),
  [*EXACT, *UNITS, *TIMES, *TWO_SIGNS, *NAMED, *SETS, *DEGREES, *REPEATING, *REPEATED, *TYPED],
  ids=str,
)
def test_both_directions(one, other, same):
  assert same_expression(one, other) is same
  assert same_expression(other, one) is same


@pytest.mark.parametrize(
  ('answer', 'gold', 'same'),
  [
    ('(1,2)', 'y=1,x=2', True),
    ('(1,2)', 'y=2,x=1', False),
    ('1,2', 'x=1,y=2', True),
    ('2,1', 'x=1,y=2', False),
    ('x=2,y=1', '1,2', True),
    ('x_1=1,x_2=2', '2,1', True),
    ('x=y=3', '3', True),
    ('x=k=15', 'k=15', True),
    ('x=15', 'x=15,k=15', False),
    ('3+2=5', 'x=5', True),
    (r'\exp(2)=9', 'x=9', True),
    ('x=10/2=5', 'x=5', True),
  ],
)
def test_the_gold_expression_decides_on_order_and_names(answer, gold, same):
  assert same_expression(answer, gold) is same


@pytest.mark.parametrize(
  ('text', 'expression'),
  [
    ('The final answer is\n$$\n\\frac{3}{4}\n$$', r'\frac{3}{4}'),
    ('We add $1$. The answer is:\n\\[\nx = 5\n\\]\nand not $6$.', 'x = 5'),
    ('**Answer:**\n\n$x$ of $y$', 'x'),
    ('**Final Answer:**\n\n\\[\n\\frac34\n\\]', r'\frac34'),
    ('The answer is: \\(\\frac{1+\n2}{4}\\), not $2$', '\\frac{1+\n2}{4}'),
    ('The answer is the sum\n$x$', 'the sum'),
    ('The answer is $5. Bob has $3', '$5'),
    ('The answer is $$\n1$$ and $$2$$, so $$3$$. Not $4$', '3'),
    ('The answer is ∞.\nAnswer: ** .', '∞'),
    ('The answer is **5** because it is.', '**5**'),
    ('The answer is $5$ or $6$.', '$5$ or $6$'),
  ],
)
def test_a_formula_on_its_own_lines_is_the_answer(text, expression):
  assert extract_math(text) == expression


def test_a_marked_answer_is_compared_so():
  assert grade_math(r'So \boxed{-3\le x\le 2}.', '[-3,2]') == 1
  assert grade_math(r'The answer is $0.\overline{3}$.', r'\frac13') == 1
  assert grade_math(r'\boxed{x=1,y=2}', 'x=2,y=1') == 0


@pytest.mark.parametrize(
  ('answer', 'gold'),
  [
    ('9^{9^{9^9}}', '9^{9^{9^9}}+1'),
    ('2^{10^9}', '2^{10^9}+1'),
    ('20000!', '20001!'),
    ('x^{10^9}', 'x^{10^8}'),
    (r'|x^{99}-x^{98}|<\sin x', '(0,1)'),
    ('x=(' * 120, 'x=1,y=2'),
    ('x=1,' * 100, 'x=1,y=2'),
    (r'\quad' * 4000 + 'x=1', 'x=2,y=1'),
  ],
)
def test_no_comparison_is_endless(answer, gold):
  start = time.process_time()
  assert same_expression(answer, gold) is False
  assert time.process_time() - start < 2  # and 2 s of the worker's
