r"""Passages of a text that its author marked as the answer.

`passage` says which part of a message is read. In it, best first: the last line behind `####`
that holds nothing but an answer, the last `\boxed{}`, the sentence behind the last "the answer
is", "answer:" or "answer =". Graders of all answer types begin here, so that "The answer is 42.
That took 3 steps." means 42 to each of them. "The wrong answer is" marks nothing.

`####` is GSM8K's mark and Markdown's heading. So a `\boxed{}` or "the answer is" behind it goes
first, five hashes mark nothing, and a line that says more than an answer counts only where it
ends the text, begins with an answer and nothing else is marked.

A list is no answer, nor is a sum that is not worked out, but what is concluded from it is:
"the answer is 10 apples and 4 pears, so 14" means 14. A single answer stays one, whatever
follows from it: "the answer is 42, so 3 are left" means 42.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence

# Bounds on what is looked at, so that no sampled text can make grading slow.
MAX_PASSAGE = 1_000
_MAX_MARKERS = 10

# "The wrong answer is 6" marks no answer; one on the line before "answer" says nothing of it.
ANSWER = r"""
  \bans(?<!\bwrong[ ]ans)(?<!\bfalse[ ]ans)(?<!\bincorrect[ ]ans)(?:wer)?
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
_HASHES = re.compile(r'(?<!#)####(?!#)([^\n#]*[^\s#][^\n#]*)')
# "1. Add", "b) Add": a heading, whatever follows.
NUMBERED = re.compile(r'\W*(?:\d+|[a-z])\s*[.):]\s*[^\W\d]', re.IGNORECASE)
# Line breaks behind a tag are its own; indentation is not.
_THOUGHT_END = re.compile(r'</think(?:ing)?\s*>\n*', re.IGNORECASE)
_TAG = re.compile(r'<answer\s*>\n*', re.IGNORECASE)
_TAG_END = re.compile(r'</answer\s*>', re.IGNORECASE)


def passage(text: str) -> str:
  """Returns the part of a message that every grader and every vote reads.

  Reasoning is no answer: all up to the last `</think>` is left out. An opening tag alone means
  nothing, since many templates write it into the prompt: reasoning that never ends is read as a
  message without tags is. Of what is left, the last `<answer>...</answer>` that is not blank is
  read alone; without an opening tag it begins with the text. Indentation is kept, for code.
  """
  text = _THOUGHT_END.split(text)[-1]
  *tagged, _ = _TAG_END.split(text)
  contents = (_TAG.split(part)[-1] for part in reversed(tagged))
  return next((content for content in contents if content.strip()), text)


def last(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
  """The last few matches, last one first."""
  return list(reversed(deque(pattern.finditer(text), _MAX_MARKERS)))


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


def marked(
  text: str,
  bare: Callable[[str], object],
  begun: Callable[[str], object],
  sentences: Callable[[str], Iterator[str]] = answer_sentences,
) -> Iterator[tuple[str, bool]]:
  """Yields the passages that are marked as the answer, best first.

  Each comes with True if it is a sentence, which may say more than the answer.

  Args:
    text: what `passage` returns.
    bare: true of a line behind `####` that holds nothing but an answer.
    begun: true of one that begins with an answer.
    sentences: finds what follows "the answer is", last one first.
  """

  def others(start: int) -> Iterator[tuple[str, bool]]:
    yield from ((content, False) for content in boxed(text[start:]))
    yield from ((sentence, True) for sentence in sentences(text[start:]))

  lines = [match for match in _HASHES.finditer(text) if len(match[1]) <= MAX_PASSAGE]
  best = next((line for line in reversed(lines) if bare(line[1].strip())), None)
  if best:
    yield from others(best.start())
    yield best[1].strip(), False
  yield from others(0)
  if lines and not text[lines[-1].end() :].strip(' \n#') and begun(lines[-1][1].strip()):
    yield lines[-1][1].strip(), False


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
