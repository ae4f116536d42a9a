"""Writes SFT demonstrations of a verbose informant's messages about its note."""

from __future__ import annotations

import random
import re

from agent_gspo.tasks.dealt.sentences import numbers_of

_FRAMES = (
  'Hello team, my note says: {note} I hope that this helps you.',
  'My note says: {note} Please use it if you need it.',
  'Here is what I know: {note}',
)
_NUMBER = re.compile(r'\$?[0-9]')
# A phrase about a number ends before these, not before "of": "10 cups of flour".
_ENDS_PHRASE = frozenset(
  'a an and are at but by for from he if in into is it on or she so that the they to was were '
  'when which while who with'.split()
)
_DANGLING = frozenset(('of', 'than', 'as', 'more', 'less'))  # a phrase does not end with these
_PHRASE_WORDS = 3  # after a number


def message(
  note: str,
  relevant: bool,
  rng: random.Random,
  terse_probability: float,
  silence_probability: float,
) -> str:
  """Writes a message about a note, in one of three lengths; "" is silence.

  Args:
    note, relevant: Note of the informant, always sent if it is relevant.
    rng: Random generator.
    terse_probability: Share of messages with only the numbers and their words ("had 26 salty
      cookies, 17 sweet cookies"), or the note where they lose a number in words ("twice"); of the
      others, half are the note itself and half the note in a polite frame.
    silence_probability: Share of irrelevant notes that are not sent.
  """
  if not relevant and rng.random() < silence_probability:
    return ''
  if rng.random() < terse_probability:
    short = terse(note)
    return short if short and numbers_of(note) <= numbers_of(short) else note
  return note if rng.random() < 0.5 else rng.choice(_FRAMES).format(note=note)


def terse(note: str) -> str:
  """Returns a note's numbers, each with the word before and some after it; '' without numbers."""
  words, phrases, done = note.split(), [], 0
  for place, word in enumerate(words):
    if place < done or not _NUMBER.match(word):
      continue
    before = words[place - 1 : place] if place > done and _is_word(words[place - 1]) else []
    phrase = [*before, word]
    done = place + 1
    while done < len(words) and len(phrase) <= _PHRASE_WORDS + len(before):
      if phrase[-1][-1] in ',.;' or words[done].lower().strip('.,;') in _ENDS_PHRASE:
        break
      phrase.append(words[done])
      done += 1
    while phrase[-1].lower() in _DANGLING:
      phrase.pop()
    phrases.append(' '.join(phrase).rstrip(',.;'))
  return ', '.join(phrases)


def _is_word(word: str) -> bool:
  return word[-1].isalpha() and word.lower() not in _ENDS_PHRASE
