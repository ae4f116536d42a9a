"""Graders by answer type and name: what an answer is, and whether it is right."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from agent_gspo.tasks.grading import (
  answer_marks,
  choice_grader,
  equations,
  legacy_graders,
  math_grader,
  numeric,
)


@dataclasses.dataclass(frozen=True)
class Grader:
  """How one answer type is read and compared.

  Attributes:
    extract: text -> the answer in one spelling, None if the text has none. For votes.
    grade: (text, gold) -> 1.0 if the text answers with the gold answer, else 0.0.
  """

  extract: Callable[[str], str | None]
  grade: Callable[[str, str], float]


NUMBER: Mapping[str, Grader] = {
  'strict': Grader(numeric.canonical_number, numeric.grade_number),
  'legacy': Grader(legacy_graders.number, legacy_graders.grade_number),
  'equation': Grader(
    lambda text: equations.answer(answer_marks.passage(text)),
    lambda text, gold: equations.grade(answer_marks.passage(text), gold),
  ),
}
MATHS: Mapping[str, Grader] = {
  'strict': Grader(math_grader.canonical_maths, math_grader.grade_maths),
  'legacy': Grader(legacy_graders.maths, legacy_graders.grade_maths),
}


def choice(letters: str, legacy: Callable[[str], str]) -> Mapping[str, Grader]:
  """Graders of a multiple-choice task.

  Args:
    letters: the letters of the options, e.g. 'ABCD'.
    legacy: the neighbours' extraction for this benchmark; each has its own.
  """
  return {
    'strict': Grader(
      functools.partial(choice_grader.extract_choice, letters=letters),
      functools.partial(choice_grader.grade_choice, letters=letters),
    ),
    'legacy': Grader(legacy, lambda text, gold: float(legacy(text) == gold)),
  }
