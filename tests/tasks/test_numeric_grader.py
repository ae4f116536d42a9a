"""Tests which numbers the numeric grader reads and accepts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo.tasks.grading.numeric import extract_number, grade_number

CASES = [
  # Plain numbers.
  ('0', 0),
  ('007', 7),
  ('42.', 42),
  ('42!', 42),
  ('.5', '1/2'),
  ('It is .25 of it', '1/4'),
  ('1,234.50', '2469/2'),
  (r'1\,000\,000', 1000000),
  ('1e3', 1000),
  ('1.5E2', 150),
  ('2.5e-1', '1/4'),
  ('2 x 10^3', 2000),
  (r'1.2 \times 10^{2}', 120),
  (r'\boxed{2.5\times10^{3}}', 2500),
  ('１２', 12),
  # Signs.
  ('–3', -3),
  ('+3', 3),
  ('x = - 5', -5),
  ('The answer is - 5 .', -5),
  ('a loss of negative 8', -8),
  ('-$5', -5),
  ('$-5', -5),
  ('(-7)', -7),
  ('from 3-4 hours', 4),
  ('COVID-19', 19),
  ('- 5 apples', 5),
  ('**Answer:**\n- 18 apples', 18),
  ('The answer is:\n  – 5 red', 5),
  ('Answer:\n-18', -18),
  ('total:\n\t- 5', 5),
  (r'\boxed{- 18}', -18),
  ('#### - 18', -18),
  # Fractions.
  ('-3/4', '-3/4'),
  ('3 / 4', '3/4'),
  ('1½ hours', '3/2'),
  ('¾', '3/4'),
  (r'\dfrac{10}{4}', '5/2'),
  (r'-\frac{1}{2}', '-1/2'),
  (r'\frac{-1}{2}', '-1/2'),
  (r'2\frac{1}{2}', '5/2'),
  (r'\frac12', '1/2'),
  ('3/0', None),
  # Units, currency, percent.
  (r'50\%', 50),
  ('42km', 42),
  ('5 m^2', 5),
  ('5 cm²', 5),
  (r'$42$', 42),
  (r'\$42', 42),
  ('£1,200', 1200),
  ('USD 15', 15),
  ('Rs.500', 500),
  ('答案是42', 42),
  # Digits that are no number.
  ('x2', None),
  ('the 3rd', None),
  ('the 12th of them', None),
  ('She has 12 on the 3rd day', 12),
  # The last number of a text.
  ('Ann 7', 7),
  ('5+3=8', 8),
  ('5 + 3 = 8 pens.', 8),
  ('8 - 3 = 5', 5),
  ('8 -3 = 5', 5),
  ('6 / 2 = 3', 3),
  ('First 5 + 3 = 8. Then 8 - 2 = 6.', 6),
  # Marked answers.
  ('the answer is 42', 42),
  ('The final answer is: 42', 42),
  ('Answer: 42\nConfidence: 90', 42),
  ('**Answer:** 42 (3 steps)', 42),
  ('Answer = 42', 42),
  ('ANSWER IS 42', 42),
  ('The answer is **42**.', 42),
  ('The answer is $42.50.', '85/2'),
  ('The answer is 1,000 after 3 days.', 1000),
  ('The answer is 5 + 3 = 8 after 2 steps.', 8),
  ('The answer is 5 pens + 3 pens = 8 pens in 2 boxes.', 8),
  ('The answer is 40 - 2 * 3 = 40 - 6 = 34, so 34 in 1.', 34),
  ('The answer is 8 -3 = 5.', 5),
  ('The answer to question 3 is 42. I used 7 lines.', 42),
  ('The answer, then, is 42 for 6 people.', 42),
  ('The answer is 41. No, the answer is 42. Took 2 tries.', 42),
  ('The answer is 42. This answer is right.', 42),
  ('The answer is unknown. She has 5.', 5),
  ('The answer is not 5 but 8', 8),
  ('The answer is\n\n42\n7 steps', 42),
  ('the answer is seven . that took 3 steps', 7),
  ('we add 7 and 5 , so the answer is 12 .', 12),
  ('The answer is 18.The next question has 5', 18),
  ('She has 5.\n#### 1,234', 1234),
  ('#### -5\n', -5),
  ('#### $42 and 3 cents', 42),
  ('#### 5 + 3 = 8', 8),
  ('#### Step 1\nThe answer is 42. #### Step 2', 42),
  (r'\boxed{42} in 3 steps', 42),
  (r'\boxed{\frac{3}{4}}', '3/4'),
  (r'\boxed{42\text{ km in }3}', 42),
  (r'\boxed{x = 5}', 5),
  (r'\boxed{1} or \boxed{2}', 2),
  (r'\boxed{-\dfrac{1}{2}}', '-1/2'),
  (r'\boxed 7', 7),
  (r'\boxed{none}, so 5', 5),
  (r'The answer is 3. \boxed{4}', 4),
  ('\\boxed{3}\n#### 4', 4),
  # Spelled out.
  ('Twenty pens', 20),
  ('minus two', -2),
  ('zero', 0),
  ('This one has 7', 7),
  ('one hundred', None),
  ('twenty-one', None),
  # No number.
  ('', None),
  ('I do not know.', None),
  ('....', None),
  ('9' * 5000, None),
]


REPEATING_DECIMALS = [
  (r'0.\overline{3}', '1/3'),
  (r'The answer is $-0.1\bar 6$.', '-1/6'),
  (r'\boxed{12.3\overline{45}}', '679/55'),
  (r'1,234.\overline{5}', '11111/9'),
  (r'0.\dot{1}4285\dot{7}', '1/7'),
  ('0.16\u0305', '1/6'),
  ('The answer is 0.333..., or so.', '1/3'),
  ('It is 0.1666… of 5 m. So 0.1212…', '4/33'),
  ('#### 0.999...', 1),
  ('It is 5 and 0.333...', '1/3'),
  (r'$3.\overline{3}$ a pen', '10/3'),
  # Digits that are only cut off.
  ('3.14159...', '314159/100000'),
  ('2.718281828...', '2718281828/1000000000'),
  ('3.3166...', '33166/10000'),
  ('12... or 13', 13),
  (r'5\overline{3}', 3),
]


SPACED_THOUSANDS = [
  # One number.
  ('12 500', 12500),
  ('The answer is 12 500', 12500),
  ('the answer is 12 500.', 12500),
  ('The answer is 12 500 km in 3 days.', 12500),
  ('Answer: $12 500', 12500),
  ('#### 12 500', 12500),
  (r'\boxed{12 500}', 12500),
  (r'\boxed{12~500}', 12500),
  (r'\boxed{12\ 500}', 12500),
  (r'\boxed{12\;500}', 12500),
  (r'\boxed{12\,500}', 12500),
  ('The answer is 1 000 000', 1000000),
  ('The answer is 1 234.50', '2469/2'),
  ('The answer is -2 300', -2300),
  ('The answer is - 2 300', -2300),
  ('The answer is 5 000 + 7 500 = 12 500 in 2 years', 12500),
  ('The answer is 12 500 / 2 = 6 250', 6250),
  ('He pays $80 000 + $20 000 = $100 000.', 100000),
  ('She has 999 999', 999999),
  ('12\u2009500', 12500),
  ('12\u202f500', 12500),
  ('12\u00a0500 people', 12500),
  ('Ann has 5 and gets 1\u2009234\u2009567', 1234567),
  ('100 200 300', 100200300),
  # Several numbers, of which the last counts.
  ('I have 3 4 and 5', 5),
  ('3 4 500', 500),
  ('1 234 5', 5),
  ('1 234 56', 56),
  ('1 234 5678', 5678),
  ('1234 567', 567),
  ('12 50', 50),
  ('12 5000', 5000),
  ('0 500', 500),
  ('007 500', 500),
  ('1.5 200', 200),
  ('1,500 200', 200),
  ('1/2 500', 500),
  ('12  500', 500),
  ('12\n500', 500),
  ('12, 500', 500),
  ('12 and 500', 500),
  ('12 500,000', 500000),
  ('3 500ml', 500),
  ('3 500-gram bags', 500),
  ('7 100%', 100),
  ('2 125/1000', '17/8'),
  ('Room B12 500', 500),
  # The first number after a mark.
  ('The answer is 3 4 500', 3),
  ('The answer is 7 100% sure', 7),
  ('#### 3 500ml bottles', 3),
]


CONCLUSIONS = [
  # A list and what follows from it.
  ('The answer is 10 apples and 4 pears, so 14', 14),
  ('The answer is 10 apples and 4 pears, so 14 fruits in 2 bags.', 14),
  ('The answer is 10 apples and 4 pears so she has 14.', 14),
  ('#### 10 apples and 4 pears, so 14', 14),
  (r'\boxed{10 \text{ and } 4, \text{ so } 14}', 14),
  ('Answer: 3, 5 and 6, so the total is 14', 14),
  ('Answer: 3, 5, and 6; thus 14', 14),
  ('The answer is 10 and 4, hence 14', 14),
  ('The answer is 10 plus 4, therefore, 14.', 14),
  ('The answer is $10 & $4, therefore $14.', 14),
  ('The answer is $5 and 50 cents, so $5.50.', '11/2'),
  ('The answer is 3 hours and 20 minutes, so 200 minutes', 200),
  ('The answer is 2 hours and 1/2 hour, so 2.5 hours', '5/2'),
  ('The answer is 10 red and 4 blue pens, so 10 + 4 = 14 pens for 7 people', 14),
  ('The answer is 5 + 5 = 10 apples and 2 + 2 = 4 pears, so 14', 14),
  ('The answer is 1,000 and 2 500, so 3 500 in all', 3500),
  ('The answer is 4 and 10, so minus 6', -6),
  ('The answer is ten apples and four pears, so fourteen', 14),
  ('The answer is 10 for Ann and 4 for Bob, making 14', 14),
  ('The answer is 10 apples and 4 pears, which makes 14 fruits', 14),
  ('The answer is 10 apples and 4 pears, for a total of 14', 14),
  ('The answer is 10 + 4, so 14', 14),
  ('The answer is 7 x 2, hence 14', 14),
  ('The answer is 7 times $2, therefore $14', 14),
  ('The answer is (10 + 4) * 2, so 28', 28),
  # One answer, then its consequences.
  ('The answer is 42, so 3 are left', 42),
  ('The answer is 42, so 3 and 4 fit.', 42),
  ('The answer is 42 pens, therefore 3 boxes of 14', 42),
  ('The answer is 42 because 40 and 2 are left, so 42 - 0', 42),
  ('The answer is 5 + 3 = 8, so 2 are left', 8),
  ('The answer is 40 of the 60 pens, so 20 are left', 40),
  ('The answer is 42, not 40, so 3 failed', 42),
  ('The answer is 42 and not 40, so 3 failed', 42),
  ('The answer is 42 and it took 3 days, so 14 a day', 42),
  ('The answer is 42, 3 more than 39, so 3', 42),
  ('The answer is 12, 4 of which are red, so 8 are blue', 12),
  ('The answer is 2 and 1/2, so 3 boxes', '5/2'),
  ('The answer is 42 (3 and 4 do not fit), so 1', 42),
  ('The answer is 42: 40 and 2, so 42', 42),
  ('#### 42, so 3 are left', 42),
  (r'\boxed{42}, so 3 and 4, so 7', 42),
  ('The answer is 10 + 4 = 14, so 3 are left', 14),
  ('The answer is 42, 3, so 45', 42),
  # A list and no conclusion.
  ('The answer is 10 apples and 4 pears', 10),
  ('The answer is 10 apples and 4 pears. So 14', 10),
  ('The answer is 10 and 4 or so, 3 are left', 10),
  ('The answer is 10 and 4 so far, 3 are left', 10),
  ('The answer is 10 and 4, so both', 10),
  ('The answer is 10 and 4, so-called 3s', 10),
  ('The answer is 10 or 4, so 14', 10),
  ('The answer is 10 and 4 so many times, 3', 10),
]


CHAINS = [
  ('The answer is 2^3 = 8', 8),
  ('The answer is 2^{10} = 1024 bytes in 8 bits', 1024),
  ('The answer is 4² = 16', 16),
  ('The answer is (1/2)^2 = 1/4', '1/4'),
  ('The answer is 5 m^2 + 3 m^2 = 8 m^2 in 2 rooms', 8),
  ('The answer is 40% of 50 = 20', 20),
  (r'The answer is 40\% of \$50 = \$20.', 20),
  ('The answer is 1/2 of 50 = 25 in 2 boxes', 25),
  ('The answer is 3(4) = 12', 12),
  ('The answer is (3)(4) = 12', 12),
  ('The answer is 3(-4) = -12', -12),
  ('The answer is 7 days/week * 4 weeks = 28 days', 28),
  ('The answer is 60 km per hour * 3 hours = 180 km', 180),
  ('The answer is $5 per hour * 8 hours = $40.', 40),
  ('The answer is 20 square feet * 3 = 60 square feet', 60),
  ('Answer: 10 big apples - 3 small apples = 7 apples', 7),
  ('The answer is 60 * 0.1 ≈ 6', 6),
  ('The answer is 2 plus 3 equals 5', 5),
  (r'\boxed{2^3 = 8}', 8),
  (r'\boxed{3\cdot4=12}', 12),
  (r'\boxed{12\div4=3}', 3),
  ('#### 40% of 50 = 20', 20),
  # No chain.
  ('The answer is 40 of the 60 pens', 40),
  ('The answer is 40 of 60 pens, as 20 = 60 - 40', 40),
  ('The answer is 5^2', 5),
  ('The answer is 12 (8 + 4 = 12, and 3 = 7 - 4)', 12),
  ('The answer is 42 km/h', 42),
  ('The answer is 42 km/h for 3 hours', 42),
  ('The answer is 5 where n = 8', 5),
  ('The answer is 5 when the total = 8', 5),
  ('The answer is 9 more than 3 times 2 = 6', 9),
]
WRONG_ANSWERS = [
  ('The answer is 5. A common incorrect answer is 6.', 5),
  ('Answer: 5\nWrong answer: 6', 5),
  ('6 is wrong. The answer is 5 in 2 steps.', 5),
  ('6 is wrong\nAnswer: 5 in 2 steps', 5),
]


TABLES = [*CASES, *REPEATING_DECIMALS, *SPACED_THOUSANDS, *CONCLUSIONS, *CHAINS, *WRONG_ANSWERS]


@pytest.mark.parametrize(('text', 'value'), TABLES, ids=[repr(text)[:40] for text, _ in TABLES])
def test_extract(text, value):
  assert extract_number(text) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(('text', 'value'), REPEATING_DECIMALS)
def test_grades_a_repeating_decimal(text, value):
  assert grade_number(text, str(Fraction(value))) == 1


@given(st.integers(1, 999), st.lists(st.integers(0, 999), min_size=1, max_size=3))
def test_grouped_thousands_are_one_number(first, groups):
  digits = [str(first), *(f'{group:03}' for group in groups)]
  for space in (' ', '\u2009', '\u202f', '\u00a0'):
    text = space.join(digits)
    assert extract_number(f'7 men run {text} metres.') == int(''.join(digits))
    assert extract_number(f'The answer is {text}. That took 3 steps.') == int(''.join(digits))


@pytest.mark.parametrize(
  ('text', 'gold', 'score'),
  [
    ('1,080', '1080', 1),
    ('080', '1080', 0),
    ('42.0', '42', 1),
    ('42.00001', '42', 0),
    ('41.9999', '42', 0),
    ('-3', '3', 0),
    ('The answer is 3 or 5.', '3', 0),
    (r'\boxed{either 3 or 5}', '5', 0),
    ('The answer is three or five.', '5', 0),
    ('The answer is 3 hours or 180 minutes.', '3', 1),
    ('The answer is 0.5 or 1/2.', '0.5', 1),
    ('The answer is 10 divided by 2 = 5.', '5', 1),
    ('The answer is 5 plus 3, which equals 8.', '8', 1),
    ('3', '-3', 0),
    ('0.75', '3/4', 1),
    (r'\frac{6}{8}', '0.75', 1),
    ('0.667', '2/3', 1),
    ('0.6667', '2/3', 1),
    ('0.67', '2/3', 0),
    ('0.666', '2/3', 0),
    ('2/3', '0.6667', 1),
    ('0.66667', '0.6667', 1),
    ('0.66667', '0.667', 0),
    ('0.6251', '0.625', 0),
    ('12.55', '12.56', 0),
    ('3.14', '3.14159', 0),
    ('3.142', '3.14159', 1),
    ('0.000', '0.0004', 0),
    ('1', '0.9999', 0),
    ('50%', '50', 1),
    ('50%', '1/2', 0),
    ('', '0', 0),
    ('no idea', '0', 0),
  ],
)
def test_grade(text, gold, score):
  assert grade_number(text, gold) == score


def test_gold_without_number():
  with pytest.raises(ValueError, match="gold answer 'none' holds no number"):
    grade_number('5', 'none')


@given(st.integers(-(10**12), 10**12))
def test_integers_in_every_dress(number):
  value = Fraction(number)
  for text in (
    f'{number}',
    f'{number:,}',
    f'The answer is {number:,}. That took 3 steps.',
    f'17 pens, 4 cups\n#### {number}',
    rf'so 3 \boxed{{{number}}} of 5',
    f'5 + 3 = {number}',
    f'${number:,}.',
    f'= {str(number).replace("-", "−")}',
  ):
    assert extract_number(text) == value, text


@given(st.decimals(-(10**6), 10**6, places=4))
def test_decimals(number):
  assert extract_number(f'it costs {number} euros') == Fraction(number)
  assert grade_number(f'{number}', str(Fraction(number))) == 1


@given(st.integers(-999, 999), st.integers(1, 999))
def test_fractions(top, bottom):
  value = Fraction(top, bottom)
  assert extract_number(f'{top}/{bottom}') == value
  assert extract_number(rf'\frac{{{top}}}{{{bottom}}}') == value
  assert grade_number(f'{top}/{bottom}', str(value)) == 1


@given(st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_whole_numbers_are_exact(answer, gold):
  assert grade_number(f'The answer is {answer}.', str(gold)) == (answer == gold)


@given(st.text(max_size=200))
def test_any_text_is_read_without_error(text):
  value = extract_number(text)
  assert value is None or isinstance(value, Fraction)


@given(st.text(alphabet='0123456789.,-+/*=$%^{}\\ xe#frcaboed\n', max_size=120))
def test_number_soup_is_read_without_error(text):
  assert grade_number(text, '1') in (0.0, 1.0)
