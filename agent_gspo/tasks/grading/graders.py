r"""Collects graders by answer type and name.

'strict' graders read what a text says. 'legacy' ones reproduce the answer extraction of
AgentPrune, G-Designer and AgentDropout, faults included, for comparison with the tables of those
projects only: they read "1,000" as 000, "-3" as 3, "12.5" as 5 and "(A)" as "(". They are
reimplemented after reading the public code, and reproduce its results, not its structure; state
them beside the numbers. All graders read the same part of a message (`answer_marks.passage`).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping

from agent_gspo.tasks.grading import answer_marks, choice_grader, equations, math_grader, numeric


@dataclasses.dataclass(frozen=True)
class Grader:
  """Extraction and comparison for one answer type.

  Attributes:
    extract: text -> normalized answer for votes, None if the text has none.
    grade: (text, gold) -> 1.0 if the text answers with the gold answer, else 0.0.
  """

  extract: Callable[[str], str | None]
  grade: Callable[[str, str], float]


def choice(letters: str, legacy: Callable[[str], str]) -> Mapping[str, Grader]:
  """Returns the graders of a multiple-choice task.

  Args:
    letters: Letters of the options, e.g. 'ABCD'.
    legacy: Legacy extraction for this benchmark.
  """
  return {
    'strict': Grader(
      functools.partial(choice_grader.extract_choice, letters=letters),
      functools.partial(choice_grader.grade_choice, letters=letters),
    ),
    'legacy': Grader(legacy, lambda text, gold: float(legacy(text) == gold)),
  }


# Legacy extraction


def legacy_number(text: str) -> str:
  """Extracts a GSM8K, MultiArith or SVAMP answer: a run of digits, '0' if there is none."""
  found = _answer_part(text, r'-?[0-9]*\.?[0-9]+')
  return _last(r'[0-9]+', found) or '0'


def _grade_legacy_number(text: str, gold: str) -> float:
  top, _, bottom = gold.partition('/')
  return float(float(legacy_number(text)) == float(top) / float(bottom or 1))


def legacy_aqua(text: str) -> str:
  """Extracts an AQuA answer: the last capital letter, 'None.' if there is none."""
  return _last('[A-Z]', _answer_part(text, '[A-Z]')) or 'None.'


def legacy_mmlu(text: str) -> str:
  """Extracts an MMLU answer: the first character, after the first "answer is" if there is one.

  An empty answer gives ''; the original code fails.
  """
  text = answer_marks.passage(text)
  _, mark, behind = text.partition('answer is')
  if mark:
    text = behind.strip(':').strip().strip('Option').strip()
  return text[:1]


def legacy_math(text: str) -> str:
  r"""Extracts a MATH answer: the last `\boxed{}`, normalized; the whole text without one."""
  text = answer_marks.passage(text)
  return _tidy(_boxed(text) if 'boxed' in text else text).strip('.')


def legacy_program(text: str) -> str:
  """Returns the program of a HumanEval answer, to which tests are appended.

  The characters of "```python" are stripped from the beginning one by one, so that a block
  "total = 1" becomes "al = 1". The prompt is not prepended: an answer must repeat the
  function, its helpers and its imports, except `typing`.
  """
  code = answer_marks.passage(text).lstrip('`python\n').rstrip('\n`')
  return f'from typing import *\n{code}\n'


def _answer_part(text: str, pattern: str) -> str:
  """Returns the text after the last "The answer is ", else the boxed text, else the last match."""
  text = answer_marks.passage(text)
  for mark in ('The answer is ', 'the answer is '):
    if mark in text:
      found = text.rpartition(mark)[2].strip()
      break
  else:
    found = _tidy(_boxed(text)) if 'boxed' in text else _last(pattern, text)
  found = _tidy(found.removesuffix('.').removesuffix('/'))
  return _tidy(_boxed(found)) if 'boxed' in found else found


def _last(pattern: str, text: str) -> str:
  """Returns the last match of a pattern, '' if there is none."""
  return (re.findall(pattern, text) or [''])[-1]


def _boxed(text: str) -> str:
  """Returns the content of the braces after the last "boxed", or up to the next dollar sign."""
  behind = text.rpartition('boxed')[2]
  if not behind.startswith('{'):
    return behind.partition('$')[0].strip()
  return answer_marks.in_braces(behind)


def _tidy(text: str) -> str:
  r"""Normalizes answers like the code of MATH (Hendrycks et al., arXiv 2103.03874).

  Among others: no line breaks, sizes, degrees, dollar signs, percent signs or spaces, no
  unit that begins with `\text{ `, no short left side ("x="), braces around the arguments
  of `\sqrt` and `\frac`, and a/b as well as 0.5 as a `\frac`.
  """
  text = text.replace('\\\\', '\\').replace('tfrac', 'frac').replace('dfrac', 'frac')
  for removed in ('\n', '\\!', '\\left', '\\right', '^{\\circ}', '^\\circ', '\\$'):
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


NUMBER: Mapping[str, Grader] = {
  'strict': Grader(numeric.canonical_number, numeric.grade_number),
  'legacy': Grader(legacy_number, _grade_legacy_number),
  'equation': Grader(
    lambda text: equations.answer(answer_marks.passage(text)),
    lambda text, gold: equations.grade(answer_marks.passage(text), gold),
  ),
}
MATH: Mapping[str, Grader] = {
  'strict': Grader(math_grader.canonical_math, math_grader.grade_math),
  'legacy': Grader(
    legacy_math, lambda text, gold: float(legacy_math(text) == _tidy(gold).strip('.'))
  ),
}
