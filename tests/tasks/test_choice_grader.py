"""Tests which option the choice grader reads from a text."""

from __future__ import annotations

import pytest

from agent_gspo.tasks.grading.choice_grader import extract_choice

CONCLUSIONS = [
  ('A, B and C are all true, so D', 'D'),
  ('A, B and C are all true, so D.', 'D'),
  ('A, B, and C are all true; therefore, D.', 'D'),
  ('A, B and C are all true. So D.', 'D'),
  ('A is true. B is true. C is true. Hence D.', 'D'),
  ('The answer is A, B and C are all true, so D', 'D'),
  ('The answer is A, B and C are all true, so it must be (D).', 'D'),
  ('The answer is A or B, so B', 'B'),
  ('#### A, B and C hold, so D', 'D'),
  (r'\boxed{A, B and C hold, so D}', 'D'),
  ('Both A and B are wrong, so C', 'C'),
  ('A and B are wrong, thus (C)', 'C'),
  ('A and B are wrong, therefore option C.', 'C'),
  ('A and B are wrong, so the correct option is C', 'C'),
  ('A and B are wrong, so it is C!', 'C'),
  ("A and B are wrong, so it's C", 'C'),
  ('A and B are wrong, so: **C**', 'C'),
  ('A is too small, therefore B', 'B'),
  ('A is too small, so B. It has 150 km.', 'B'),
  ('B is too large and C too small, so A.', 'A'),
  ('Of A and B only the second holds, so B\nThat is all.', 'B'),
  ('Since A, B and C are true, D is the answer', 'D'),
  ('B is correct, so A is not. So B.', 'B'),
  ('So D? No, B is correct.', 'B'),
  ('Perhaps A, so A. Wait, C is true as well, so D.', 'D'),
]
NO_CONCLUSIONS = [
  ('A, B and C are all true', None),
  ('A, B', None),
  ('A, B and C are all true, so', None),
  ('A, B and C are all true, so what?', None),
  ('A and B are true, so A and B', None),
  ('A and B are true, so A or B.', None),
  ('A and B are true, so (A) (B)', None),
  ('A and B are true, so C, D.', None),
  ('A and B are true, so C remains', None),
  ('A and B are wrong, so not C', None),
  ('A and B are wrong, so not C.', None),
  ('A and B are wrong, so a triangle', None),
  ('A and B are wrong, so A triangle it is', None),
  ('A and B are wrong, so x', None),
  ('A and B are wrong, so c', None),
  ('A and B or so C', None),
  ('A and B so far, C', None),
  ('A and B hold, so C = 5 and D = 6', None),
  ('A and B hold, so E. coli grows', None),
  ('A and B hold, so D-glucose', None),
  ("A and B hold, so C's sum", None),
  ('A and B hold, also D', None),
  ('A or B, so Z', None),
  # The answer is given; its consequences are not an answer.
  ('The answer is B, so A is wrong', 'B'),
  ('The answer is B, so A is wrong.', 'B'),
  ('The answer is B because A and C are too small, so D is not needed', 'B'),
  ('The answer is B.\nA and C fail, so D', 'B'),
  ('#### B\nA and C fail, so D', 'B'),
  (r'\boxed{B} as A and C fail, so D', 'B'),
  ('The answer is B, A and C are too small, so D is not needed', None),
]
QUOTED = [
  ("The correct answer is 'B'.", 'B'),
  ('The answer is ‘B’.', 'B'),
  ("So the answer is 'C' because it fits.", 'C'),
  ("The answer is 'B.'", 'B'),
  ("The answer is '(b)'", 'B'),
  ("'D'", 'D'),
  ("It's 'B'", 'B'),
  ("The answer is 'A' or 'B'.", None),
  # Apostrophes.
  ("The answer is D, as it's larger than A's sum", 'D'),
  ("The answer is A'B'", None),
  ("The answer is B's sum", None),
  ("It isn't 'B'.", None),
]
FORMULAS = [
  ('So P(B) = 0.5.', None),
  ('The answer is P(A)', None),
  ('The answer is 25 °C.', None),
  ('6,000 B.P.', None),
  ('Option B.', 'B'),
  ('It must be (B)', 'B'),
]
WRONG_ANSWERS = [
  ('The incorrect answer is A', None),
  ('Incorrect answer: A', None),
  ('Wrong answer: (A)', None),
  ('The wrong answer is D.', None),
  ('A false answer would be C.', None),
  ('The answer is B. A common incorrect answer is C.', 'B'),
  ('The answer is B. The wrong answer to this is C.', 'B'),
  ('The wrong answer is D, so B', 'B'),
  ('The incorrect answer is A, B is correct.', 'B'),
  # Another sentence, and a question for the option that is wrong.
  ('A is wrong. Answer: B', 'B'),
  ('A is wrong\nAnswer: B', 'B'),
  ('The incorrect option is C', 'C'),
]


@pytest.mark.parametrize(
  ('text', 'letter'), [*CONCLUSIONS, *NO_CONCLUSIONS, *QUOTED, *FORMULAS, *WRONG_ANSWERS]
)
def test_extract(text, letter):
  assert extract_choice(text) == letter
