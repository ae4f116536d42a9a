"""Splits a word problem into context sentences and its question; reads the numbers of a note."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from agent_gspo.tasks.grading.numeric import numbers_in

# A full stop after these does not end a sentence: titles, units and single capitals.
_ABBREVIATION = re.compile(
  r'(?:^|[\s(])'
  r'(?:(?i:mr|mrs|ms|dr|st|jr|sr|prof|vs|no|oz|lb|lbs|ft|sq|approx|[a-z]\.[a-z])|[A-Z])\.$'
)
_ENDS = re.compile(r'(?<=[.?!])["\')]*\s+')
# A condition ends with a comma or "then"; one that begins with "if" may do without.
_CONDITIONS = tuple(
  re.compile(rf'(?P<known>{known}){end}\s+(?P<asked>{asked}\b.+)', re.IGNORECASE | re.DOTALL)
  for known, end, asked in (
    (r'.+', r'(?:,(?: then| and)?|\s+then)', r'(?:how|what|which|who|find|calculate)'),
    (r'(?:if|when|since)\b.+', '', r'(?:how|what)'),
  )
)

# In a gold derivation these are 2 or 1/2; "the first half" and a "double decker" are neither.
_HALF = r'(?<!first )(?<!second )(?<!other )half|halve[sd]?|twice|double[sd]?'
_SCALES = tuple(
  (re.compile(rf'\b(?:{words})\b(?!-| decker)', re.IGNORECASE), frozenset(map(Fraction, numbers)))
  for words, numbers in ((_HALF, ('2', '1/2')), ('triple[sd]?', ('3',)), ('dozen', ('12',)))
)


@functools.lru_cache(maxsize=2**16)  # each sentence is compared with many problems
def numbers_of(note: str) -> frozenset[Fraction]:
  """Returns a note's numbers, rounded; "half" or "twice" gives both 2 and 1/2, "dozen" 12."""
  found = frozenset(map(rounded, numbers_in(note)))
  return found.union(*(numbers for words, numbers in _SCALES if words.search(note)))


def rounded(number: Fraction) -> Fraction:
  """Rounds to denominators up to 1000, so that 1/6 equals the file's 0.16666666666666666."""
  return number.limit_denominator(1000)


def sentences(text: str) -> list[str]:
  """Splits a text into sentences, ignoring case: 'Mr. Lee has 2.5 kg. he eats it.' has two."""
  found, start = [], 0
  for end in _ENDS.finditer(text):
    piece = text[start : end.start()]
    if not _ABBREVIATION.search(piece):
      found.append(text[start : end.end()].strip())
      start = end.end()
  return [*found, text[start:].strip()] if text[start:].strip() else found


def context_and_question(text: str) -> tuple[list[str], str]:
  """Returns the context sentences of a problem, and its question.

  The question is the last sentence with a question mark, or the last one. A condition before it
  in the same sentence ("If she eats 5, how many are left?") is context, as in SVAMP's own
  split; one after it is not.
  """
  found = sentences(text)
  asked = max((i for i, s in enumerate(found) if s.rstrip('"\')').endswith('?')), default=-1)
  question = found.pop(asked)
  cut = next(filter(None, (condition.fullmatch(question) for condition in _CONDITIONS)), None)
  known = cut['known'] if cut else ''  # context only if it has information: not 'on Monday'
  if cut and (numbers_in(known) or known.lower().startswith(('if ', 'when ', 'since '))):
    place = len(found) if asked == -1 else asked
    found.insert(place, _capital(known.strip(' ,')) + '.')
    question = cut['asked']
  return [_capital(sentence) for sentence in found], _capital(question)


def _capital(text: str) -> str:
  return text[:1].upper() + text[1:]
