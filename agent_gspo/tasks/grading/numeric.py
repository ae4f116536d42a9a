r"""Extracts a number from free text, and compares it with a gold number.

The first rule that finds a number counts:

1. `#### 42`, nothing but a number and its unit (for other lines, see `answer_marks`);
2. the last `\boxed{42}`;
3. the first number in the sentence after the last "the answer is", "answer:" or
   "answer =" (the last of these that has a number in its sentence);
4. the last number of the text.

If rules 1-3 find a chain of arithmetic ("5 + 3 = 8", "2^3 = 8", "40% of 50 = 20"), the
last right-hand side counts; if they find a list, the conclusion from it does ("10 and 4,
so 14"). Within a rule digits precede spelled-out numbers (zero to twenty), so "one" as a
pronoun does no harm. No arithmetic is carried out.

Numbers may have thousands commas, decimals, a sign that is not an operator ("10-3" is
ten and three), and the forms "3/4", "\frac{3}{4}", mixed numbers, "1e3", "2 x 10^3". Currency
signs, percent signs and units, "million" among them, are dropped: 50% is fifty. Digits that
belong to a word ("x2", "3rd") or an exponent ("m^2") are not numbers.

Spaces may separate thousands: one to three digits, then groups of exactly three, each
after a single space (thin or not), with no adjacent other number and no unit attached,
are one number. "12 500" is 12500, but "3 4 500", "3 500ml" and "1 500/1000" are several.
The price is that a bare list "100 200 300" reads as one number, and so does "2 500 g bags".

A repeating decimal equals its fraction: `0.1\overline{6}`, `0.1\dot{6}`, and "0.1666..." if
three equal blocks, or nothing but equal blocks, precede the dots.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable
from fractions import Fraction

from agent_gspo.tasks.grading import answer_marks

_CURRENCY = '$€£¥₹'
_MAX_DIGITS = 300
_WORDS = {
  word: Fraction(value)
  for value, word in enumerate(
    'zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen '
    'fifteen sixteen seventeen eighteen nineteen twenty'.split()
  )
}

_THOUSANDS = (
  r'(?<![\w.,/^])(?<![0-9] )[1-9][0-9]{0,2}(?: [0-9]{3})+(?! ?[0-9]|,[0-9]|-?[A-Za-z]|[%^/])'
)

_MARKED = r'(?:\\(?:overline|bar|dot)\s?(?:\{[0-9]{1,60}\}|[0-9])|[0-9][\u0304\u0305\u0307])'
_RECURRING = re.compile(
  rf"""
  (?<![0-9.]) (?P<whole>[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,9}} | [0-9]{{0,60}}) \.
  (?:
    (?P<first>[0-9]{{0,60}}) (?P<period>{_MARKED}(?:[0-9]{{0,60}}{_MARKED}){{0,60}})
    | (?P<shown>[0-9]{{2,24}}) (?:\s|\\,)? (?:\.\.\.|…|\\[lc]?dots(?![A-Za-z]))
  )
  """,
  re.VERBOSE,
)
_BLOCKS = re.compile(r'(?P<first>[0-9]*?)(?P<period>[0-9]+?)(?P=period)+')


def rewrite_recurring(text: str, write: Callable[[Fraction], str]) -> str:
  """Replaces each repeating decimal in a text by `write(value)`."""

  def rewritten(match: re.Match[str]) -> str:
    first, period = match['first'], re.sub('[^0-9]', '', match['period'] or '')
    if match['shown']:
      blocks = _BLOCKS.fullmatch(match['shown'])
      # Two equal blocks may be chance, as in 2.718281828... and 3.3166... (the root of 11).
      if not blocks or (
        blocks['first'] and blocks.end() - blocks.end('first') < 3 * len(blocks['period'])
      ):
        return match.group()
      first, period = blocks['first'], blocks['period']
    whole = int(match['whole'].replace(',', '') + first or '0')
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    return write((whole + repeated) / 10 ** len(first))

  return _RECURRING.sub(rewritten, text)


_REWRITES = tuple(
  (re.compile(pattern), replacement)
  for pattern, replacement in (
    (r'[\u00a0\u2002-\u200a\u202f]', ' '),
    (r'[\u2212\u2010-\u2013\uff0d]', '-'),
    (r'\n[^\S\n]*-[^\S\n]+', '\n'),  # the bullet of a list
    (r'\*\*|__|`', ' '),
    (r'\\([$%])', r'\1'),
    (r'\{,\}', ','),
    (r'\\[!,]', ''),
    (r'\\(?:times|cdot)(?![A-Za-z])', '×'),
    (r'\\div(?![A-Za-z])', '÷'),
    (r'(?<=[0-9])(?:\\[:; ]|~)(?=[0-9])', ' '),
    (_THOUSANDS, lambda match: match.group().replace(' ', '')),
    # A fraction after a digit is the second half of a mixed number.
    (r'(?<=[0-9])\s*(?=\\[dt]?frac\b|\\[dt]?frac[0-9])', ' '),
    (r'\\[dt]?frac\s*\{\s*(-?[0-9.,]+)\s*\}\s*\{\s*([0-9.,]+)\s*\}', r'\1/\2'),
    (r'\\[dt]?frac\s*([0-9])\s*([0-9])', r'\1/\2'),
    (r'([0-9]?)½', r'\1 1/2'),
    (r'([0-9]?)¼', r'\1 1/4'),
    (r'([0-9]?)¾', r'\1 3/4'),
  )
)
# Fast path: texts without any of this, which are most, need no rewriting.
_REWRITTEN = re.compile(r'[^\x00-\x7f]|[\\*_`{~]|[0-9] [0-9]|\.\.\.|\n[^\S\n]*-[^\S\n]')
_FULL_WIDTH = {0xFF10 + digit: str(digit) for digit in range(10)}

# Possessive quantifiers: no backtracking into digits to satisfy a lookahead.
_PLAIN = r'(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?+'
_NUMBER = re.compile(
  rf"""
  (?<![A-Za-z0-9_^]) (?<!\^\{{)
  (?:
    (?P<whole>[0-9]++) \s+ (?:and\s+)? (?P<part>[0-9]++/[0-9]++) (?![0-9/])
    | (?P<top>{_PLAIN}) \s?/\s? (?P<bottom>{_PLAIN}) (?!/?[0-9])
    | (?P<plain>{_PLAIN} | (?<!\.)\.[0-9]++)
      (?P<exponent>[eE][+-]?[0-9]{{1,2}}(?![0-9A-Za-z]))?+
      (?:\s*[×x*]\s*10\s*\^\s*\{{?\s*(?P<power>-?[0-9]{{1,2}})\s*\}}?)?+
  )
  (?!(?:st|nd|rd|th)\b)
  """,
  re.VERBOSE,
)
# Text before a negative number. A minus after a number, word or bracket is an
# operator; one before a space is a sign only after "=", ":" or "is".
_NEGATIVE = re.compile(
  rf"""
  (?<![0-9A-Za-z)\]}}%.]) -[{_CURRENCY}]?\s?(?<!-\s)$
  | (?:[=:]|\b(?:is|equals))\s*(?:-|minus\b)\s*[{_CURRENCY}]?\s*$
  | \bnegative\s+[{_CURRENCY}]?$
  """,
  re.VERBOSE,
)
_WORD = re.compile(
  rf'(?<![a-z]-)\b(?:(negative|minus)\s+)?({"|".join(sorted(_WORDS, key=len, reverse=True))})\b'
  r'(?!-[a-z]|[\s-]+(?:hundred|thousand|million|billion|dozen|half|thirds?|quarters?)\b)',
  re.IGNORECASE,
)
# Unit after a number on a line of its own: "dollars a day" and "USD", not "Add the paper".
_UNIT = re.compile(
  r'[^\w.:;!?)-]*+(?:(?![A-Z][a-z]{2})[^\W\d_]++[\s/.-]*+){0,3}+(?:\^?\{?[23]\}?)?\W*'
)
# Between two numbers of a chain: a unit ("days", "km/h", "per hour", "square feet"), an exponent,
# and an operator, or only a bracket as in "3(4)".
_GAP = re.compile(
  r"""
  [\s)}\]%$€£]*+ (?:
    [A-Za-z]{1,20}(?:(?:/|[ ]per[ ])[A-Za-z]{1,20})?
    | (?!.*\b(?:where|when|while|which|that|if|since|because|so|then|with|for|and|or|but|is|are)\b)
      [A-Za-z]{3,20}(?:[ ][A-Za-z]{3,20}){1,2}  # several words, but no clause
  )?
  (?:\^\{?[0-9]{1,3}\}?|[²³])? [\s)}\]%$€£]*+
  (=|≈|\bequals\b|[-+*/×÷x]|\b(?:of|plus|minus|times|divided\s+by)\b) [\s({\[$€£-]*
  | \)?(\()[({\[$€£-]*
  """,
  re.VERBOSE,
)
_EQUALS = ('=', '≈', 'equals')
# Between two numbers of which neither is the answer: "3 or 5", not "3 hours or 180 minutes".
_OR = re.compile(r'[\s)}\]$€£]*+,?\s*\bor\b[\s({\[$€£]*')


@dataclasses.dataclass(frozen=True)
class _Found:
  """Number in a text: its span, value and number of decimal places (0 if none)."""

  start: int
  end: int
  value: Fraction
  decimals: int


def extract_number(text: str) -> Fraction | None:
  """Returns the number that `text` gives as its answer, or None (rules: see the module)."""
  found = _extract(text)
  return None if found is None else found.value


def numbers_in(text: str) -> list[Fraction]:
  """Returns all numbers of a text: in digits, then spelled out from two to twenty."""
  text = _rewritten(text)
  spelled = [found.value for found in _spelled(text) if abs(found.value) > 1]
  return [found.value for found in _numbers(text)] + spelled


def grade_number(text: str, gold: str) -> float:
  """Returns 1.0 if `text` answers with the gold number, else 0.0.

  Exact for whole gold numbers. Otherwise a decimal may be the other number rounded to
  its places, within 0.1 %, if an answer has three of them or a gold number four: 0.667
  is 2/3, 0.67 is not; 0.6251 is not 0.625.

  Args:
    text: Answer in free text.
    gold: Gold number, in any form that `extract_number` reads.

  Raises:
    ValueError: if `gold` contains no number.
  """
  want = _extract(gold)
  if want is None:
    raise ValueError(f"gold answer {gold!r} holds no number; give one such as '42'")
  have = _extract(text)
  if have is None:
    return 0.0
  difference = abs(have.value - want.value)
  if difference == 0:
    return 1.0
  if want.value.denominator == 1 or difference > abs(want.value) / 1000:
    return 0.0
  shown = ((have.decimals, 3), (want.decimals, 4))
  return float(any(n >= least and difference <= Fraction(1, 2 * 10**n) for n, least in shown))


@functools.lru_cache(maxsize=4096)  # gold answers, and answers of a group, repeat
def _extract(text: str) -> _Found | None:
  text = _rewritten(answer_marks.passage(text))
  for passage, _ in answer_marks.marked(text, _is_bare, _begins):
    # "=" replaces the mark before it, so that a minus is a sign.
    found = _first('= ' + passage)
    if found is not None:
      return None if _leaves_open('= ' + passage) else found
  matches = list(_NUMBER.finditer(text))
  numbers = filter(None, (_read(text, match) for match in reversed(matches)))
  return next(numbers, None) or next(reversed(_spelled(text)), None)


def _rewritten(text: str) -> str:
  """Normalizes the spelling of signs, spaces and fractions in a text."""
  if _REWRITTEN.search(text):
    text = text.translate(_FULL_WIDTH)
    # 1.0/3 cannot be read as part of a mixed number: "5 and 0.333..." are two.
    text = rewrite_recurring(text, lambda value: f'{value.numerator}.0/{value.denominator}')
    for pattern, replacement in _REWRITES:
      text = pattern.sub(replacement, text)
  return text


def _begins(line: str) -> bool:
  """Returns whether a line begins with a number that is not a list index, as in "2. Add"."""
  first = re.search(r'[^\W_]', line)
  return bool(first and first[0] in '0123456789' and not answer_marks.NUMBERED.match(line))


def _is_bare(line: str) -> bool:
  """Returns whether a line is nothing but a number and its unit."""
  number = _NUMBER.search(line) if _begins(line) else None
  return bool(number and _UNIT.fullmatch(line, number.end()))


def _first(passage: str) -> _Found | None:
  """Returns the first number, or the last right-hand side of the arithmetic that it begins."""
  numbers = _numbers(passage) or _spelled(passage)
  if not numbers:
    return None
  behind = answer_marks.conclusion(passage, [(found.start, found.end) for found in numbers])
  if behind is not None:
    return _first('= ' + behind)
  result = numbers[0]
  for left, right in itertools.pairwise(numbers):
    gap = passage[left.end : right.start]
    operator = _GAP.fullmatch(gap)
    if not operator and not (right.value < 0 and not gap.strip()):
      break
    if operator and operator.group(1) in _EQUALS:
      result = right
  return result


def _leaves_open(passage: str) -> bool:
  """Returns whether a passage is no more than a choice of two numbers."""
  if not _OR.search(passage):  # most answers: their numbers need not be read again
    return False
  numbers = _numbers(passage) or _spelled(passage)
  if len(numbers) != 2 or numbers[0].value == numbers[1].value:
    return False
  first, second = numbers
  return bool(_OR.fullmatch(passage, first.end, second.start)) and not re.search(
    r'\w', passage[second.end :]
  )


def _numbers(text: str) -> list[_Found]:
  return list(filter(None, (_read(text, match) for match in _NUMBER.finditer(text))))


def _read(text: str, match: re.Match[str]) -> _Found | None:
  value = _value(match)
  if value is None:
    return None
  if _NEGATIVE.search(text[max(0, match.start() - 24) : match.start()]):
    value = -value
  _, _, decimals = (match['plain'] or '').partition('.')
  return _Found(match.start(), match.end(), value, len(decimals))


def _value(match: re.Match[str]) -> Fraction | None:
  if match.end() - match.start() > _MAX_DIGITS:
    return None
  if match['part'] is not None:
    top, bottom = match['part'].split('/')
    if int(bottom) == 0:
      return None
    return int(match['whole']) + Fraction(int(top), int(bottom))
  if match['bottom'] is not None:
    bottom = _fraction(match['bottom'])
    return _fraction(match['top']) / bottom if bottom else None
  value = _fraction(match['plain'] + (match['exponent'] or ''))
  return value * Fraction(10) ** int(match['power'] or 0)


def _fraction(digits: str) -> Fraction:
  return Fraction(digits.replace(',', ''))


def _spelled(text: str) -> list[_Found]:
  # Most texts have none, and the pattern is slow.
  if _WORDS.keys().isdisjoint(re.findall('[a-z]+', text.casefold())):
    return []
  found = []
  for match in _WORD.finditer(text):
    value = _WORDS[match.group(2).lower()]
    found.append(_Found(match.start(), match.end(), -value if match.group(1) else value, 0))
  return found


def canonical_number(text: str) -> str | None:
  """Returns the number in an answer, normalized ("1,000.50" and "2001/2" agree), or None."""
  number = extract_number(text)
  return None if number is None else str(number)
