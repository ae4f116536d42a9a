r"""Removes questions that are near-duplicates of test questions.

Benchmarks leak into one another and into their own training files: MATH's training file
contains test problems, MultiArith has templates and no official split, MMLU repeats
questions. The rule is the same for all tasks. A text becomes a sequence of lower-case
tokens, with every number replaced by one sign, so that a problem with other numbers
counts as the same problem. Two texts are near-duplicates if the Jaccard similarity of
their sets of three-token shingles,

  J(a, b) = |S(a) & S(b)| / |S(a) | S(b)|,

is at least 0.8. Equal texts have J = 1.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable

from agent_gspo.types import Question

_THRESHOLD = 0.8
_WIDTH = 3
_NUMBER = re.compile(r'[0-9]+(?:[.,/][0-9]+)*')
# Typesetting commands without meaning.
_LOOKS = re.compile(
  r'(?<!\\)\\[()\[\]]|\\(?:left|right|displaystyle|[!,;: ]|quad|qquad)(?![a-z])|[${}]'
)
_TOKEN = re.compile(r'\\?[^\W\d_]+|[#+*/^=<>()-]')


def shingles(text: str) -> frozenset[str]:
  """Returns the three-token shingles of a text, numbers masked; all of it if it is shorter."""
  text = _LOOKS.sub(' ', text.lower().replace('\\dfrac', '\\frac').replace('\\tfrac', '\\frac'))
  tokens = _TOKEN.findall(_NUMBER.sub(' # ', text))
  last = max(1, len(tokens) - _WIDTH + 1)
  return frozenset(' '.join(tokens[i : i + _WIDTH]) for i in range(last))


def far_from(questions: Iterable[Question], test: Iterable[Question]) -> list[Question]:
  """Returns the questions that are near-duplicates of none of `test`."""
  sizes: list[int] = []
  holders: dict[str, list[int]] = collections.defaultdict(list)  # test questions with a shingle
  for index, question in enumerate(test):
    found = shingles(question.text)
    sizes.append(len(found))
    for shingle in found:
      holders[shingle].append(index)

  def near(question: Question) -> bool:
    mine = shingles(question.text)
    shared = collections.Counter(i for shingle in mine for i in holders.get(shingle, ()))
    return any(n / (len(mine) + sizes[i] - n) >= _THRESHOLD for i, n in shared.items())

  return [question for question in questions if not near(question)]
