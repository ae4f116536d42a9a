r"""Passages of a text that its author marked as the answer.

Best first: what stands behind the last `####`, in the last `\boxed{}`, in the sentence
behind the last "the answer is", "answer:" or "answer =". Graders of all answer types
begin here, so that "The answer is 42. That took 3 steps." means 42 to each of them. "The wrong
answer is" marks nothing.

A list is no answer, nor is a sum that is not worked out, but what is concluded from it is:
"the answer is 10 apples and 4 pears, so 14" means 14. A single answer stays one, whatever
follows from it: "the answer is 42, so 3 are left" means 42.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

# Bounds on what is looked at, so that no sampled text can make grading slow.
MAX_PASSAGE = 1_000
_MAX_MARKERS = 10

# "The wrong answer is 6" marks no answer; one on the line before "answer" says nothing of it.
ANSWER = r"""
  (?<!\bwrong[ ])(?<!\bfalse[ ])(?<!\bincorrect[ ])\bans(?:wer)?
  (?:\s+(?:to|for)\b[^.\n:=]{0,80}?)?
  (?:,?\s+(?:here|then|thus|therefore|so|now|finally),?)?
"""
_ANSWER = re.compile(
  rf"""
  {ANSWER}
  \s*
  (?:\b(?:is|are|was|equals|(?:would|will|must|should)\s+be)\b(?!\s+not\b)|[:=])
  [\s:=]*
  """,
  re.VERBOSE | re.IGNORECASE,
)
CONCLUSION = (
  r'(?:(?<!\bor\s)\bso\b(?!-|\s+(?:far|many|much)\b)|\b(?:thus|therefore|hence|making'
  r'|for\s+a\s+total\s+of|which\s+(?:is|makes|gives))\b)'
)
_CONCLUSION = re.compile(CONCLUSION, re.IGNORECASE)
# How the gap between two items of a list ends.
_JOIN = re.compile(
  r'(?:(?P<list>\band|&)|(?P<operator>\b(?:plus|times|x)|[-+*/×÷])|[,=])[\s$€£(}]*$'
)
_SENTENCE_END = re.compile(r'(?<!\\)[.!?](?=\s|$)|\n')
_BOXED = re.compile(r'\\boxed\b')


def last(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
  """The last few matches, last one first."""
  return list(pattern.finditer(text))[: -_MAX_MARKERS - 1 : -1]


def boxed(text: str) -> Iterator[str]:
  r"""What stands in `\boxed{}`, last one first."""
  for match in last(_BOXED, text):
    yield _braced(text[match.end() : match.end() + MAX_PASSAGE])


def answer_sentences(
  text: str, marker: re.Pattern[str] = _ANSWER, end: re.Pattern[str] = _SENTENCE_END
) -> Iterator[str]:
  """What follows "the answer is" in its sentence, last one first."""
  for match in last(marker, text):
    passage = text[match.end() : match.end() + MAX_PASSAGE]
    stop = end.search(passage)
    yield passage[: stop.start()] if stop else passage


def conclusion(passage: str, items: Sequence[tuple[int, int]]) -> str | None:
  """What follows "so" behind a list that the passage begins with, or None.

  Args:
    passage: what is marked as the answer.
    items: where it has a number, a formula or what else may be an answer: starts and ends.
  """
  if not items:
    return None
  so = _CONCLUSION.search(passage, items[0][1])
  if so is None or items[-1][0] < so.end():
    return None
  listed = [item for item in items if item[1] <= so.start()]
  gaps = [passage[left[1] : right[0]] for left, right in itertools.pairwise(listed)]
  joins = [join for gap in gaps if (join := _JOIN.search(gap))]
  if not joins or len(joins) < len(gaps):
    return None
  answered = not joins[-1]['operator'] and not any(join['list'] for join in joins)
  return None if answered else passage[so.end() :]


def _braced(text: str) -> str:
  """The content of the braces that `text` starts with, or its first word."""
  text = text.lstrip()
  if not text.startswith('{'):
    return text.split()[0] if text.split() else ''
  return in_braces(text)


def in_braces(text: str) -> str:
  """What stands in the braces that `text` starts with; all the rest if they never close."""
  depth = 0
  for i, char in enumerate(text):
    depth += (char == '{') - (char == '}')
    if depth == 0:
      return text[1:i]
  return text[1:]
