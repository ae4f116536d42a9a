r"""The answer extraction of AgentPrune, G-Designer and AgentDropout, faults included.

For comparison with the tables of those projects only: these functions read "1,000" as
000, "-3" as 3, "12.5" as 5 and "(A)" as "(". They are written anew from a reading of
the public code, and reproduce what it does with a text, not how it does it. Choose them
with `task.options.grader = 'legacy'`, and state it beside the numbers. Which part of a message
they read is ours to say, and the same for all graders (`answer_marks.passage`).
"""

from __future__ import annotations

import re

from agent_gspo.tasks.grading import answer_marks

_NUMBER = re.compile(r'-?[0-9]*\.?[0-9]+')


def number(text: str) -> str:
  """Their GSM8K, MultiArith and SVAMP answer: a run of digits, '0' if there is none."""
  found = _answer_part(text, _NUMBER)
  return _last(re.compile(r'[0-9]+'), found, '0')


def grade_number(text: str, gold: str) -> float:
  """1.0 if the digits that `number` finds and the gold number are equal as floats.

  Raises:
    ValueError: if `gold` is no number.
  """
  top, _, bottom = gold.partition('/')
  return float(float(number(text)) == float(top) / float(bottom or 1))


def aqua_letter(text: str) -> str:
  """Their AQuA answer: the last capital letter, 'None.' if there is none."""
  capital = re.compile('[A-Z]')
  return _last(capital, _answer_part(text, capital), 'None.')


def mmlu_letter(text: str) -> str:
  """Their MMLU answer: the first character, behind the first "answer is" if there is one.

  An empty answer, at which their code stops with an error, gives ''.
  """
  text = answer_marks.passage(text)
  _, mark, behind = text.partition('answer is')
  if mark:
    text = behind.strip(':').strip().strip('Option').strip()
  return text[:1]


def maths(text: str) -> str:
  r"""Their MATH answer: the last `\boxed{}`, normalised; the whole text if there is none."""
  text = answer_marks.passage(text)
  return tidy(_boxed(text) if 'boxed' in text else text).strip('.')


def grade_maths(text: str, gold: str) -> float:
  """1.0 if the normalised texts are equal."""
  return float(maths(text) == tidy(gold).strip('.'))


def program(text: str) -> str:
  """The program that they take a HumanEval answer for; their tests are run below it.

  The characters of "```python" are taken off the beginning one by one, so that a block
  "total = 1" becomes "al = 1", and the prompt is not put in front: an answer must restate the
  function, its helpers and what it imports, `typing` aside.
  """
  code = answer_marks.passage(text).lstrip('`python\n').rstrip('\n`')
  return f'from typing import *\n{code}\n'


def _answer_part(text: str, pattern: re.Pattern[str]) -> str:
  """What follows the last "The answer is ", else is boxed, else the last match."""
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
  """What stands in the braces behind the last "boxed", or up to the next dollar sign."""
  behind = text.rpartition('boxed')[2]
  if not behind.startswith('{'):
    return behind.partition('$')[0].strip()
  return answer_marks.in_braces(behind)


_REMOVED = ('\n', '\\!', '\\left', '\\right', '^{\\circ}', '^\\circ', '\\$')


def tidy(text: str) -> str:
  r"""The normalisation of answers that came with MATH (Hendrycks et al., arXiv 2103.03874).

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
