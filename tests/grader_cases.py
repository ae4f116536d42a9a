r"""Hand-written answers, what each grader must make of them, by answer type.

A row is `(text, gold, strict, legacy)`: the score under each grader. Where the two
differ, the strict one is right and the legacy one shows what the neighbours' extraction
would have counted.
"""

from __future__ import annotations

REFUSAL = 'I am sorry, but I cannot help with that.'

NUMBER = [
  ('42', '42', 1, 1),
  ('The answer is 42.', '42', 1, 1),
  ('The answer is 42. That took 3 steps.', '42', 1, 0),
  ('The answer is 42. That took 3 steps.', '3', 0, 1),
  ('so the answer is 42', '42', 1, 1),
  ('Answer: 42', '42', 1, 1),
  ('#### 42', '42', 1, 1),
  (r'Thus \boxed{42} after 3 steps.', '42', 1, 1),
  (r'\boxed{1} or rather \boxed{2}', '2', 1, 1),
  ('Ann has 5 and Kim has 7, so 12', '12', 1, 1),
  ('Ann has 5 and Kim has 7', '5', 0, 0),
  ('5 + 3 = 8', '8', 1, 1),
  ('The answer is 5 + 3 = 8 pens in 2 boxes.', '8', 1, 0),
  # Thousands.
  ('1,000', '1000', 1, 0),
  ('The answer is 1,000.', '1000', 1, 0),
  ('1,000', '0', 0, 1),
  ('1,080', '80', 0, 1),
  ('$70,000', '70000', 1, 0),
  ('109,200,000', '109200000', 1, 0),
  ('1{,}000', '1000', 1, 0),
  ('1000', '1000', 1, 1),
  # Signs.
  ('-3', '-3', 1, 0),
  ('-3', '3', 0, 1),
  ('−3', '-3', 1, 0),
  ('3', '-3', 0, 0),
  ('10-3', '3', 1, 1),
  ('x = -5', '-5', 1, 0),
  ('The answer is minus 5', '-5', 1, 0),
  # Thousands parted by spaces.
  ('The answer is 12 500.', '12500', 1, 1),
  ('She earns 12 500.', '12500', 1, 0),
  ('She earns 12 500.', '500', 0, 1),
  ('$1 000 000', '1000000', 1, 0),
  ('She has 3 4 and 5', '5', 1, 1),
  # Decimals.
  ('12.5', '12.5', 1, 0),
  ('12.5', '5', 0, 1),
  ('0.5', '1/2', 1, 0),
  ('0.5', '2', 0, 1),
  ('42.0', '42', 1, 0),
  ('The answer is 18.00', '18', 1, 0),
  ('.25', '1/4', 1, 0),
  ('41.99', '42', 0, 0),
  ('2.99', '99', 0, 1),
  # Fractions.
  ('3/4', '3/4', 1, 0),
  ('3/4', '4', 0, 1),
  (r'\frac{3}{4}', '0.75', 1, 0),
  ('1 3/4', '7/4', 1, 0),
  ('2 and 1/2', '5/2', 1, 0),
  ('1½', '1.5', 1, 0),
  ('0.667', '2/3', 1, 0),
  ('0.67', '2/3', 0, 0),
  # Percent, units, currency.
  ('50%', '50', 1, 1),
  (r'The answer is 50\%.', '50', 1, 1),
  ('50%', '1/2', 0, 0),
  ('$42', '42', 1, 1),
  ('€ 3.50', '7/2', 1, 0),
  ('£1,200 a year', '1200', 1, 0),
  ('42 km/h', '42', 1, 1),
  ('The answer is 5 m^2.', '5', 1, 0),
  ('12 cm2', '12', 1, 0),
  # Words, nothing, refusal.
  ('seven', '7', 1, 0),
  ('on the 3rd day', '3', 0, 1),
  ('', '0', 0, 1),
  ('', '5', 0, 0),
  (REFUSAL, '0', 0, 1),
  (REFUSAL, '7', 0, 0),
]

# Five options, A to E, as in AQuA.
LETTER = [
  ('B', 'B', 1, 1),
  ('b', 'B', 1, 0),
  ('(B)', 'B', 1, 1),
  ('B.', 'B', 1, 1),
  ('B)', 'B', 1, 1),
  ('**B**', 'B', 1, 1),
  ('B) 150 Km', 'B', 1, 0),
  ('B. 150 km', 'B', 1, 1),
  ('The answer is B', 'B', 1, 1),
  ('The answer is B.', 'B', 1, 1),
  ('The answer is (B).', 'B', 1, 1),
  ('The answer is **B**.', 'B', 1, 1),
  ('The answer is B because A is wrong', 'B', 1, 0),
  ('The answer is B because A is wrong', 'A', 0, 1),
  ('The answer is B. A is too small.', 'B', 1, 0),
  ('The answer is B) 150 Km', 'B', 1, 0),
  ('answer: b', 'B', 1, 0),
  ('Answer: B\nConfidence: High', 'B', 1, 0),
  ('The correct option is D', 'D', 1, 1),
  ('the answer is option C', 'C', 1, 1),
  ('The answer is\n\nE', 'E', 1, 1),
  ('the answer is a.', 'A', 1, 0),
  ('The answer is A', 'A', 1, 1),
  ('The answer is a triangle', 'A', 0, 0),
  ('A triangle has three sides', 'A', 0, 1),
  ('The answer is A or B', 'A', 0, 0),
  ('The answer is A or B', 'B', 0, 1),
  ('The answer is either A or B.', 'B', 0, 1),
  ('The answer is B and C', 'C', 0, 1),
  ('A, B', 'B', 0, 1),
  ('(A) (C)', 'C', 0, 1),
  ('The answer is B, not C.', 'B', 1, 0),
  ('The answer is not A but C', 'C', 1, 1),
  ('It is neither A nor B.', 'B', 0, 1),
  ('A is wrong, so B is correct.', 'B', 1, 1),
  ('B is correct. A is not.', 'B', 1, 0),
  ('I choose D.', 'D', 1, 1),
  ("I'd go with C because it fits", 'C', 1, 1),
  (r'\boxed{B}', 'B', 1, 1),
  (r'\boxed{\text{(B)}}', 'B', 1, 1),
  (r'So A fails. \boxed{D}', 'D', 1, 1),
  ('#### E', 'E', 1, 1),
  ('The answer is A. No, the answer is B.', 'B', 1, 1),
  ('A is too low and C too high.\nD', 'D', 1, 1),
  ('C\nAs A and B are wrong.', 'C', 1, 0),
  ('A) 5 B) 6 C) 7', 'A', 0, 0),
  ('A) 5 B) 6 C) 7', 'C', 0, 1),
  ('150 km, which is option B', 'B', 1, 1),
  ('The answer is 150 km (B).', 'B', 1, 1),
  ('The distance is 150 km', 'B', 0, 0),
  ('The answer is x', 'A', 0, 0),
  ('', 'A', 0, 0),
  (REFUSAL, 'A', 0, 0),
  (REFUSAL, 'C', 0, 0),
]

# Four options, as in MMLU, where the neighbours take the first character.
LETTER_OF_FOUR = [
  ('B', 'B', 1, 1),
  ('B. Because', 'B', 1, 1),
  ('b', 'B', 1, 0),
  ('(A)', 'A', 1, 0),
  ('**D**', 'D', 1, 0),
  ('Option B', 'B', 1, 0),
  ('The answer is B', 'B', 1, 1),
  ('The answer is: B', 'B', 1, 1),
  ('The answer is Option B', 'B', 1, 1),
  ('The answer is (C)', 'C', 1, 0),
  ('Answer: C', 'C', 1, 0),
  ('Answer: C', 'A', 0, 1),
  ('A triangle', 'A', 0, 1),
  ('Bladder', 'B', 0, 1),
  ('Definitely not C', 'C', 0, 0),
  ('Definitely not C', 'D', 0, 1),
  ('E', 'D', 0, 0),
  ('The answer is E', 'D', 0, 0),
  ('B or C', 'B', 0, 1),
  ('D\nThe others contradict the text.', 'D', 1, 1),
  ('', 'A', 0, 0),
  ('Cannot say.', 'C', 0, 1),
]

MATHS = [
  (r'\boxed{42}', '42', 1, 1),
  ('42', '42', 1, 1),
  ('The answer is 42. That took 3 steps.', '42', 1, 0),
  (r'The answer is $\frac{1}{2}$.', r'\frac{1}{2}', 1, 0),
  (r'\boxed{\frac{1}{2}}', r'\frac{1}{2}', 1, 1),
  (r'\boxed{\dfrac{1}{2}}', r'\frac{1}{2}', 1, 1),
  (r'\boxed{\frac12}', r'\frac{1}{2}', 1, 1),
  (r'\boxed{1/2}', r'\frac{1}{2}', 1, 1),
  (r'\boxed{0.5}', r'\frac{1}{2}', 1, 1),
  (r'\boxed{0.25}', r'\frac{1}{4}', 1, 0),
  (r'\boxed{\frac{2}{4}}', r'\frac{1}{2}', 1, 0),
  (r'\boxed{-\frac{1}{2}}', r'\frac{1}{2}', 0, 0),
  (r'\boxed{1{,}000}', '1000', 1, 0),
  (r'\boxed{10,\!000}', '10000', 1, 0),
  (r'\boxed{50\%}', '50', 1, 1),
  (r'\boxed{50\%}', r'\frac{1}{2}', 0, 0),
  (r'\boxed{6\text{ cm}^2}', '6', 1, 1),
  (r'\boxed{90^\circ}', '90', 1, 1),
  (r'\boxed{\$32}', '32', 1, 1),
  (r'\boxed{x = 5}', '5', 1, 1),
  (r'\boxed{xy = 5}', '5', 1, 0),
  (r'\boxed{x=5}', '5', 1, 1),
  (r'\boxed{x^2 - 1}', '(x-1)(x+1)', 1, 0),
  (r'\boxed{x^2 - 1}', 'x^2-1', 1, 1),
  (r'\boxed{x^2 + 1}', 'x^2-1', 0, 0),
  (r'\boxed{q - p}', 'p - q', 0, 0),
  (r'\boxed{b + a}', 'a + b', 1, 0),
  (r'\boxed{2\sqrt3}', r'2\sqrt{3}', 1, 1),
  (r'\boxed{\frac{1}{\sqrt{2}}}', r'\frac{\sqrt{2}}{2}', 1, 0),
  (r'\boxed{\sqrt{12}}', r'2\sqrt{3}', 1, 0),
  (r'\boxed{3.14}', r'\pi', 0, 0),
  (r'\boxed{3!}', '6', 1, 0),
  # Tuples, intervals, sets, matrices.
  (r'\boxed{(3,\pi/2)}', r'\left( 3, \frac{\pi}{2} \right)', 1, 0),
  (r'\boxed{(3, 4)}', '(3,4)', 1, 1),
  (r'\boxed{(4, 3)}', '(3,4)', 0, 0),
  (r'\boxed{3}', '(3,4)', 0, 0),
  (r'\boxed{(0,1]}', '(0,1]', 1, 1),
  (r'\boxed{[0,1]}', '(0,1)', 0, 0),
  (r'\boxed{(0,1)}', '(0,1]', 0, 0),
  (r'\boxed{\{2,1\}}', r'\{1,2\}', 1, 0),
  (r'\boxed{(1,2)}', r'\{1,2\}', 0, 0),
  (r'\boxed{2, 1}', '1,2', 1, 0),
  (r'\boxed{[1,2)\cup(3,4]}', r'(3,4]\cup[1,2)', 1, 0),
  (r'\boxed{(-\infty, 2]}', r'(-\infty,2]', 1, 1),
  (
    r'\boxed{\begin{pmatrix}1\\2\end{pmatrix}}',
    r'\begin{pmatrix} 1 \\ 2 \end{pmatrix}',
    1,
    1,
  ),
  (
    r'\boxed{\begin{pmatrix}1\\3\end{pmatrix}}',
    r'\begin{pmatrix} 1 \\ 2 \end{pmatrix}',
    0,
    0,
  ),
  (r'\boxed{3+2i}', '2i+3', 1, 0),
  # Words.
  (r'\boxed{\text{Evelyn}}', r'\text{Evelyn}', 1, 1),
  ('The answer is Evelyn.', r'\text{Evelyn}', 1, 0),
  (r'\boxed{odd}', r'\text{even}', 0, 0),
  (r'\boxed{C}', r'\text{(C)}', 1, 0),
  (r'\boxed{B}', r'\text{(C)}', 0, 0),
  # Where it stands.
  (r'We find $x=3$, then $y=7$.', '7', 1, 0),
  (r'\boxed{1}, no: \boxed{2}', '2', 1, 1),
  (r'\boxed{2}. The answer is 3.', '2', 1, 1),
  ('She has 5 apples and 7 pears, 12 in all', '12', 1, 0),
  (r'\boxed{}', '1', 0, 0),
  (r'\boxed{\frac{1}{0}}', '1', 0, 0),
  (r'\boxed{\frac{}', '1', 0, 0),
  ('', '1', 0, 0),
  (REFUSAL, '1', 0, 0),
]

_MEAN = (
  'def mean_absolute_deviation(numbers: List[float]) -> float:\n'
  '    mean = sum(numbers) / len(numbers)\n'
  '    return sum(abs(x - mean) for x in numbers) / len(numbers)\n'
)
_BODY = _MEAN.partition('\n')[2]
_TOTAL = 'total = sum\ndef mean_absolute_deviation(ns):\n    m = total(ns) / len(ns)\n'
CODE = [  # the gold answer is the task's id
  (_MEAN, 'HumanEval/4', 1, 1),
  (f'```python\n{_MEAN}```', 'HumanEval/4', 1, 1),
  (f'```\n{_MEAN}```', 'HumanEval/4', 1, 1),
  (f'```python\nimport math\n\n{_MEAN}\n```\n', 'HumanEval/4', 1, 1),
  # The prompt is in front of the strict grader's program only.
  (_BODY, 'HumanEval/4', 1, 0),
  (f'```python\n{_BODY}```', 'HumanEval/4', 1, 0),
  # Prose around it, and a block that does not begin with a definition or an import.
  (f'Here it is:\n```python\n{_MEAN}```', 'HumanEval/4', 1, 0),
  (f'```python\n{_MEAN}```\nIt is the mean distance.', 'HumanEval/4', 1, 0),
  (
    f'```python\n{_TOTAL}    return total(abs(x - m) for x in ns) / len(ns)\n```',
    'HumanEval/4',
    1,
    0,
  ),
  (f'```Python\n{_MEAN}```', 'HumanEval/4', 1, 0),
  # Wrong, or none.
  (_MEAN.replace('abs', ''), 'HumanEval/4', 0, 0),
  ('def other(xs):\n    return 1.0\n', 'HumanEval/4', 0, 0),
  ('', 'HumanEval/4', 0, 0),
  (REFUSAL, 'HumanEval/4', 0, 0),
]

CASES = [
  (kind, *row)
  for kind, rows in (
    ('number', NUMBER),
    ('letter', LETTER),
    ('letter of four', LETTER_OF_FOUR),
    ('maths', MATHS),
  )
  for row in rows
]
