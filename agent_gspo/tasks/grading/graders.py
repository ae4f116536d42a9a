"""Collects graders by answer type and name."""

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
  """Extraction and comparison for one answer type.

  Attributes:
    extract: text -> normalized answer for votes, None if the text has none.
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
  """Returns the graders of a multiple-choice task.

  Args:
    letters: Letters of the options, e.g. 'ABCD'.
    legacy: Extraction of `legacy_graders` for this benchmark.
  """
  return {
    'strict': Grader(
      functools.partial(choice_grader.extract_choice, letters=letters),
      functools.partial(choice_grader.grade_choice, letters=letters),
    ),
    'legacy': Grader(legacy, lambda text, gold: float(legacy(text) == gold)),
  }
