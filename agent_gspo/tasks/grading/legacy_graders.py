r"""Reproduces the answer extraction of AgentPrune, G-Designer and AgentDropout, faults included.

For comparison with the tables of those projects only: these functions read "1,000" as
000, "-3" as 3, "12.5" as 5 and "(A)" as "(". They are reimplemented after reading
the public code, and reproduce its results, not its structure. Choose them
with `task.options.grader = 'legacy'`, and state it beside the numbers. The part of a message
that they read is the same as for all graders (`answer_marks.passage`).
"""

from __future__ import annotations

import re

from agent_gspo.tasks.grading import answer_marks

_NUMBER = re.compile(r'-?[0-9]*\.?[0-9]+')


def number(text: str) -> str:
  """Extracts a GSM8K, MultiArith or SVAMP answer: a run of digits, '0' if there is none."""
  found = _answer_part(text, _NUMBER)
  return _last(re.compile(r'[0-9]+'), found, '0')


def grade_number(text: str, gold: str) -> float:
  """Returns 1.0 if the digits that `number` finds and the gold number are equal as floats.

  Raises:
    ValueError: if `gold` is not a number.
  """
  top, _, bottom = gold.partition('/')
  return float(float(number(text)) == float(top) / float(bottom or 1))


def aqua_letter(text: str) -> str:
  """Extracts an AQuA answer: the last capital letter, 'None.' if there is none."""
  capital = re.compile('[A-Z]')
  return _last(capital, _answer_part(text, capital), 'None.')


def mmlu_letter(text: str) -> str:
  """Extracts an MMLU answer: the first character, after the first "answer is" if there is one.

  An empty answer gives ''; the original code fails.
  """
  text = answer_marks.passage(text)
  _, mark, behind = text.partition('answer is')
  if mark:
    text = behind.strip(':').strip().strip('Option').strip()
  return text[:1]


def maths(text: str) -> str:
  r"""Extracts a MATH answer: the last `\boxed{}`, normalized; the whole text without one."""
  text = answer_marks.passage(text)
  return tidy(_boxed(text) if 'boxed' in text else text).strip('.')


def grade_maths(text: str, gold: str) -> float:
  """Returns 1.0 if the normalized texts are equal, else 0.0."""
  return float(maths(text) == tidy(gold).strip('.'))


def program(text: str) -> str:
  """Returns the program of a HumanEval answer, to which tests are appended.

  The characters of "```python" are stripped from the beginning one by one, so that a block
  "total = 1" becomes "al = 1". The prompt is not prepended: an answer must repeat the
  function, its helpers and its imports, except `typing`.
  """
  code = answer_marks.passage(text).lstrip('`python\n').rstrip('\n`')
  return f'from typing import *\n{code}\n'


def _answer_part(text: str, pattern: re.Pattern[str]) -> str:
  """Returns the text after the last "The answer is ", else the boxed text, else the last match."""
  text = answer_marks.passage(text)
  for mark in ('The answer is ', 'the answer is '):
    if mark in text:
      found = text.rpartition(mark)[2].strip()
      break
  else:
    found = tidy(_boxed(text)) if 'boxed' in text else _last(pattern, text, '')
  found = found.removesuffix('.').removesuffix('/')
  found = tidy(found)
  return tidy(_boxed(found)) if 'boxed' in found else found


def _last(pattern: re.Pattern[str], text: str, default: str) -> str:
  found = pattern.findall(text)
  return found[-1] if found else default


def _boxed(text: str) -> str:
  """Returns the content of the braces after the last "boxed", or up to the next dollar sign."""
  behind = text.rpartition('boxed')[2]
  if not behind.startswith('{'):
    return behind.partition('$')[0].strip()
  return answer_marks.in_braces(behind)


_REMOVED = ('\n', '\\!', '\\left', '\\right', '^{\\circ}', '^\\circ', '\\$')


def tidy(text: str) -> str:
  r"""Normalizes answers like the code of MATH (Hendrycks et al., arXiv 2103.03874).

  Among others: no line breaks, sizes, degrees, dollar signs, percent signs or spaces, no
  unit that begins with `\text{ `, no short left side ("x="), braces around the arguments
  of `\sqrt` and `\frac`, and a/b as well as 0.5 as a `\frac`.
  """
  text = text.replace('\\\\', '\\').replace('tfrac', 'frac').replace('dfrac', 'frac')
  for removed in _REMOVED:
    text = text.replace(removed, '')
  text = text.partition('\\text{ ')[0].replace('\\%', '')
  text = text.replace(' .', ' 0.').replace('{.', '{0.')
  text = f'0{text}' if text.startswith('.') else text
  left, equals, right = text.partition('=')
  if equals and '=' not in right and len(left) <= 2:
    text = right
  text = re.sub(r'\\sqrt([^{])', r'\\sqrt{\1}', text).replace(' ', '')
  text = re.sub(r'\\frac([^{])([^{])', r'\\frac{\1}{\2}', text)
  text = re.sub(r'\\frac([^{])(?=\{)', r'\\frac{\1}', text)
  if text == '0.5':
    return '\\frac{1}{2}'
  return re.sub(r'^(-?(?:0|[1-9][0-9]*))/(-?(?:0|[1-9][0-9]*))$', r'\\frac{\1}{\2}', text)
