r"""Finds training questions that are near-duplicates of test questions.

Benchmarks leak into one another and into their own training files: MATH's training file
contains test problems, MultiArith has templates and no official split, MMLU repeats
questions. The rule is the same for all tasks. A text becomes a sequence of lower-case
tokens, with every number replaced by one sign, so that a problem with other numbers
counts as the same problem. Two texts are near-duplicates if the Jaccard similarity of
their sets of three-token shingles,

  J(a, b) = |S(a) & S(b)| / |S(a) | S(b)|,

is at least `THRESHOLD`. Equal texts have J = 1.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence

from agent_gspo.types import Question

THRESHOLD = 0.8
_WIDTH = 3
_NUMBER = re.compile(r'[0-9]+(?:[.,/][0-9]+)*')
# Typesetting commands without meaning.
_LOOKS = re.compile(
  r'(?<!\\)\\[()\[\]]|\\(?:left|right|displaystyle|[!,;: ]|quad|qquad)(?![a-z])|[${}]'
)
_TOKEN = re.compile(r'\\?[^\W\d_]+|[#+*/^=<>()-]')

Pair = tuple[Question, Question, float]


def shingles(text: str) -> frozenset[str]:
  """Returns the three-token shingles of a text, numbers masked; all of it if it is shorter."""
  text = _LOOKS.sub(' ', text.lower().replace('\\dfrac', '\\frac').replace('\\tfrac', '\\frac'))
  tokens = _TOKEN.findall(_NUMBER.sub(' # ', text))
  last = max(1, len(tokens) - _WIDTH + 1)
  return frozenset(' '.join(tokens[i : i + _WIDTH]) for i in range(last))


def near_duplicates(
  train: Iterable[Question], test: Sequence[Question], threshold: float = THRESHOLD
) -> list[Pair]:
  """Finds questions of `train` near one of `test`, with the nearest one and their J.

  Args:
    train: Candidate training questions.
    test: Test questions.
    threshold: Minimum similarity, in (0, 1].
  """
  sets = [shingles(question.text) for question in test]
  holders = collections.defaultdict(list)
  for index, found in enumerate(sets):
    for shingle in found:
      holders[shingle].append(index)
  pairs = []
  for question in train:
    mine = shingles(question.text)
    shared = collections.Counter(i for s in _rare(mine, holders, threshold) for i in holders[s])
    near = [(_jaccard(mine, sets[i]), -i) for i in shared]
    similarity, index = max(near, default=(0.0, 0))
    if similarity >= threshold:
      pairs.append((question, test[-index], similarity))
  return pairs


def without_near_duplicates(
  splits: dict[str, list[Question]], threshold: float = THRESHOLD
) -> dict[str, list[Question]]:
  """Removes near-duplicates of test questions from all other splits."""
  test = splits['test']
  return {
    split: questions if split == 'test' else far_from(questions, test, threshold)
    for split, questions in splits.items()
  }


def far_from(
  questions: list[Question], test: list[Question], threshold: float = THRESHOLD
) -> list[Question]:
  """Returns the questions that are not near any of `test`."""
  near = {question.id for question, _, _ in near_duplicates(questions, test, threshold)}
  return [question for question in questions if question.id not in near]


def _rare(mine: frozenset[str], holders: dict[str, list[int]], threshold: float) -> list[str]:
  """Returns the rarest shingles, so many that every near-duplicate shares one of them.

  J >= t needs at least t |mine| shared shingles, so any |mine| - ceil(t |mine|) + 1 of
  them contain a shared one.
  """
  enough = int((1 - threshold) * len(mine) + 1e-9) + 1
  return sorted(mine, key=lambda shingle: (len(holders.get(shingle, ())), shingle))[:enough]


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
  return len(a & b) / len(a | b)
