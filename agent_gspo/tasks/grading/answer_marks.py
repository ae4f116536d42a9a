r"""Finds passages of a text that are marked as the answer.

`passage` selects the part of a message that is read. In it, best first: the last line after
`####` that is nothing but an answer, the last `\boxed{}`, the sentence after the last "the answer
is", "answer:" or "answer =". Graders of all answer types begin here, so that "The answer is 42.
That took 3 steps." means 42 to each of them. "The wrong answer is" marks nothing.

`####` is GSM8K's mark and Markdown's heading. So a `\boxed{}` or "the answer is" after it takes
precedence, five hashes mark nothing, and a line with more than an answer counts only if it
ends the text, begins with an answer and nothing else is marked.

A list or an unevaluated sum is not an answer, but a conclusion from it is:
"the answer is 10 apples and 4 pears, so 14" means 14. After a single answer, conclusions are
ignored: "the answer is 42, so 3 are left" means 42.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence

# Bounds on searched text, so that no sampled text can make grading slow.
MAX_PASSAGE = 1_000
_MAX_MARKERS = 10

# "The wrong answer is 6" marks no answer; "wrong" must be on the same line.
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
  r'|for\s+a\s+total\s+of|which\s+(?:is|makes|gives|equals))\b)'
)
_CONCLUSION = re.compile(CONCLUSION, re.IGNORECASE)
# End of the gap between two items of a list.
_JOIN = re.compile(
  r'(?:(?P<list>\band|&)|(?P<operator>\b(?:plus|times|x|divided\s+by)|[-+*/×÷])|[,=])[\s$€£(}]*$'
)
SENTENCE_END = re.compile(r'(?<!\\)[.!?](?=\s|$)|\n')
_BOXED = re.compile(r'\\boxed\b')
_HASHES = re.compile(r'(?<!#)####(?!#)([^\n#]*[^\s#][^\n#]*)')
# "1. Add", "b) Add": a heading, whatever follows.
NUMBERED = re.compile(r'\W*(?:\d+|[a-z])\s*[.):]\s*[^\W\d]', re.IGNORECASE)
# Line breaks after a tag belong to it; indentation does not.
_THOUGHT_END = re.compile(r'</think(?:ing)?\s*>\n*', re.IGNORECASE)
_TAG = re.compile(r'<answer\s*>\n*', re.IGNORECASE)
_TAG_END = re.compile(r'</answer\s*>', re.IGNORECASE)


def passage(text: str) -> str:
  """Returns the part of a message that every grader and every vote reads.

  Everything up to the last `</think>` is reasoning and is left out. An opening tag alone means
  nothing, since many templates write it into the prompt: unclosed reasoning is read like a
  message without tags. Of the rest, the last `<answer>...</answer>` that is not blank is
  read alone; without an opening tag it begins with the text. Indentation is kept, for code.
  """
  text = _THOUGHT_END.split(text)[-1]
  *tagged, _ = _TAG_END.split(text)
  contents = (_TAG.split(part)[-1] for part in reversed(tagged))
  return next((content for content in contents if content.strip()), text)


def last(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
  """Returns the last few matches, last one first."""
  return list(reversed(deque(pattern.finditer(text), _MAX_MARKERS)))


def boxed(text: str) -> Iterator[str]:
  r"""Yields the contents of `\boxed{}`, last one first."""
  for match in last(_BOXED, text):
    yield _braced(text[match.end() : match.end() + MAX_PASSAGE])


def answer_sentences(
  text: str, marker: re.Pattern[str] = _ANSWER, end: re.Pattern[str] = SENTENCE_END
) -> Iterator[str]:
  """Yields the text after "the answer is" in its sentence, last one first."""
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

  Each comes with True if it is a sentence, which may contain more than the answer.

  Args:
    text: Output of `passage`.
    bare: Predicate for a line after `####` that is nothing but an answer.
    begun: Predicate for one that begins with an answer.
    sentences: Iterator of the texts after "the answer is", last one first.
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
  """Returns the text after "so" following a list at the beginning of the passage, or None.

  Args:
    passage: Passage marked as the answer.
    items: Spans `(start, end)` of possible answers in it, such as numbers or formulas.
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
  """Returns the content of the braces that `text` starts with, or its first word."""
  text = text.lstrip()
  if not text.startswith('{'):
    return text.split()[0] if text.split() else ''
  return in_braces(text)


def in_braces(text: str) -> str:
  """Returns the content of the braces that `text` starts with; all the rest if unclosed."""
  depth = 0
  for i, char in enumerate(text):
    depth += (char == '{') - (char == '}')
    if depth == 0:
      return text[1:i]
  return text[1:]
