"""Adds distractors to word problems: numbers of things that the question does not ask for.

SVAMP's test questions contain such distractors (Patel et al., arXiv 2103.07191, section 4.2:
irrelevant information); its training file has few.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Sequence

from agent_gspo.tasks.dealt.redrawn import WHOLE_NUMBER, numbers_of
from agent_gspo.tasks.dealt.sentences import context_and_question
from agent_gspo.tasks.grading.numeric import numbers_in
from agent_gspo.types import Question

_HOW_MANY = re.compile(r'\bhow many\b(.*)', re.IGNORECASE | re.DOTALL)
_COMPARED = frozenset(('more', 'fewer', 'less', 'other', 'additional', 'extra', 'total', 'the'))
# Words that end the name of a thing in a question.
_ENDS_THING = frozenset(
  'am are can could did do does had has have he i if in is it left must need needs now of on per '
  'remain she should than that there they to was we were will would you'.split()
)
_MEASURES = frozenset(  # measures, not things that could have a distractor beside them
  'blocks cents centimeters cups days degrees dimes dollars feet gallons grams hours inches '
  'kilograms kilometers liters meters miles minutes months nickels ounces pennies pieces points '
  'pounds quarters rows seconds times tons weeks yards years'.split()
)
_NUMBER = re.compile(rf'(?<!\$){WHOLE_NUMBER.pattern}')
# Words between a number and its thing: "64 of the marbles", "5 green marbles".
_BETWEEN = r'(?:(?!and\b|or\b|in\b|to\b|for\b|with\b|from\b|at\b|on\b|by\b)[A-Za-z-]+ ){0,2}'
_BESIDE = 0.75  # share of mentions of the thing asked for that get a distractor beside them


def misled(question: Question, things: Sequence[str], rng: random.Random) -> Question | None:
  """Adds numbers of another thing to a problem; equation and answer stay the same.

  If the question asks for marbles, "Dan has 64 marbles." becomes "Dan has 64 marbles and 23
  pears.", or "Dan has 23 pears." is inserted after it. The thing is one of `things`, plural names,
  that the problem does not mention.

  Returns:
    The problem, or None if it asks for no thing, gives no number of it, has a number without a
    thing ("he gave 14 to Mary" would become ambiguous), or no distractor fits.
  """
  sentences, asked = context_and_question(question.text)
  thing = thing_asked(asked)
  if thing is None or not all(map(_says_of_what, sentences)):
    return None
  mention = re.compile(rf'{_NUMBER.pattern} {_BETWEEN}{thing}\b', re.IGNORECASE)
  places = [place for place, sentence in enumerate(sentences) if mention.search(sentence)]
  named = set(re.findall('[a-z]+', question.text.lower()))
  others = [other for other in things if other not in named]
  if not places or not others:
    return None
  taken = set(map(int, numbers_in(f'{question.text} {question.derivation}')))
  other = _Other(rng.choice(others), taken, rng)
  apart, place = rng.random() < 0.5, rng.choice(places)
  if not apart:
    for here in places:
      beside = lambda found, here=here: other.beside(found[0], always=here == place)
      sentences[here] = mention.sub(beside, sentences[here])
  elif len(_NUMBER.findall(sentences[place])) > 1:
    return None  # its other number would be repeated
  else:
    alike = mention.sub(lambda found: other.as_many(found[0]), sentences[place])
    sentences.insert(place + 1, alike)
  return dataclasses.replace(question, text=' '.join([*sentences, asked]))


class _Other:
  """Distractor of a problem: another thing, with numbers that the problem does not use."""

  def __init__(self, thing: str, taken: set[int], rng: random.Random):
    self._thing, self._taken, self._rng = thing, taken, rng

  def as_many(self, mention: str) -> str:
    """Returns a number with as many digits, and the thing: '23 pears' for '64 marbles'."""
    digits = len(mention.split()[0])
    while not (free := set(numbers_of(digits)) - self._taken):
      digits += 1  # all of one digit are taken
    number = self._rng.choice(sorted(free))
    self._taken.add(number)
    return f'{number} {self._thing}'

  def beside(self, mention: str, always: bool) -> str:
    """Adds the thing to a mention, at random unless `always`: '23 pears and 64 marbles'."""
    if self._rng.random() > _BESIDE and not always:
      return mention
    pair = [mention, self.as_many(mention)]
    self._rng.shuffle(pair)
    return ' and '.join(pair)


def things_asked(texts: Iterable[str]) -> list[str]:
  """Returns the things that problems ask for and give a number of, in alphabetical order."""
  found = {(thing_asked(context_and_question(text)[1]), text.lower()) for text in texts}
  return sorted({thing for thing, text in found if thing and re.search(rf'\d {thing}\b', text)})


def thing_asked(question: str) -> str | None:
  """Finds 'marbles' in 'How many more green marbles has he?'; None for a measure or no plural."""
  found = _HOW_MANY.search(question)
  thing = ''
  for word in re.findall(r"[a-z'-]+|[^\w\s]", found[1].lower()) if found else ():
    if word in _ENDS_THING or not word[0].isalpha():
      break
    if word not in _COMPARED:
      thing = word
  return thing if re.fullmatch('[a-z]{2,}s', thing) and thing not in _MEASURES else None


def _says_of_what(sentence: str) -> bool:
  """Returns whether a plural follows each number closely, as in "64 green marbles"."""
  return all(
    re.match(r'(?: [A-Za-z-]+){0,2} [A-Za-z-]{2,}s\b', sentence[found.end() :])
    for found in _NUMBER.finditer(sentence)
  )
