"""Defines names, objects and a grammar of irrelevant sentences for notes of the relay task.

Every pool is partitioned by split: no name, object or frame of an irrelevant note occurs in two
splits. Silence about irrelevant notes of the test split therefore shows generalization, not
memorized sentences.

Words of the default pools are spelled in pieces, 'Mar-ia', each of which occurs in the training
split: for a policy trained from scratch, test names are new combinations of known pieces.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

# Each line is a block of five: three words for training, one for validation, one for test.
NAMES = tuple(
  """
  Mar-ia     Ann-ie     Ann-a      Jul-ie     Mar-ie
  Jul-ian    Soph-ia    Hel-ena    Soph-ie    Jul-ia
  Kar-en     Clar-e     Luc-as     Flor-a     Hel-en
  Bill-y     Er-ic      Lou-ise    Jo-an      Clar-a
  Franc-is   Al-an      Ro-bert    Steph-en   Luc-y
  Jack-son   Laur-a     Flor-ence  Dan-a      Er-in
  Dav-id     Sar-ah     Jo-el      Ann-e      Lou-is
  Bob-by     Tom-my     Steph-anie Laur-en    Al-bert
  Vict-or    Dan-iel    Carl-os    Sand-y     Jack-ie
  Mart-in    Sam-uel    Nic-ole    Sar-a      Laur-ence
  Ro-sa      Mar-io     Patr-ick   Carl-a     Dav-e
  Ed-win     Sand-ra    Sim-on     Tom-as     Mar-y
  """.split()
)
OBJECTS = tuple(
  """
  snow-balls   hand-bags    note-books   hand-books   song-birds
  post-cards   key-boards   tool-boxes   snow-boards  hand-balls
  black-birds  egg-shells   foot-balls   mail-bags    tool-bags
  mail-boxes   song-books   sand-bags    bank-books   key-cards
  score-cards  clip-boards  bank-cards   score-boards sand-boxes
  """.split()
)

_FILLERS = {
  'animal': ('cat', 'dog', 'bird', 'horse', 'fox'),
  'color': ('red', 'blue', 'green', 'white', 'yellow', 'brown'),
  'day': ('Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'),
  'place': ('park', 'market', 'kitchen', 'garden', 'station', 'school', 'library', 'harbour'),
  'state': ('new', 'old', 'clean', 'cold', 'warm', 'small'),
  'thing': ('door', 'window', 'soup', 'lamp', 'chair', 'clock', 'radio', 'map', 'table', 'bread'),
  'vehicle': ('bus', 'train', 'boat', 'tram'),
  'weather': ('raining', 'snowing', 'sunny', 'windy', 'cloudy', 'foggy'),
}
# {name} is a person that the question does not mention, {n} a number in the range of facts.
IDLE_FRAMES = {
  'train': (
    'The {thing} is {state} .',
    'The {thing} in the {place} is {color} .',
    'It is {weather} in the {place} .',
    'It was {weather} on {day} .',
    'It is number {n} today .',
    '{name} is in the {place} .',
    '{name} went to the {place} on {day} .',
    '{name} is {n} years old .',
    '{name} lives on floor {n} .',
    '{name} likes {color} more than {color} .',
    '{name} called {name} on {day} .',
    '{name} and {name} are friends .',
    '{name} can sing .',
    '{name} works in the {place} .',
    '{name} waited for the {vehicle} .',
    '{name} was late on {day} .',
    'The {vehicle} leaves at {n} .',
    'The {vehicle} is {n} minutes late .',
    'The {vehicle} stops near the {place} .',
    'The {vehicle} to the {place} is {color} .',
    'This {vehicle} has no {thing} .',
    'The {place} opens at {n} .',
    'The {place} has {n} doors .',
    'On {day} the {place} is closed .',
    'A {animal} sleeps near the {thing} .',
    'The {animal} of {name} is {state} .',
    'There is a {thing} in the {place} .',
    'Dinner is at {n} on {day} .',
    'My {thing} is {color} and {state} .',
    'We meet in the {place} on {day} .',
    'Page {n} is about a {animal} .',
    'Music is playing in the {place} .',
    'Nobody is in the {place} now .',
    'Room {n} is {state} .',
    'Today the {thing} is for {name} .',
    'Tomorrow it is warm .',
    'Please close the {thing} .',
    'I saw a {color} {animal} .',
  ),
  'validation': (
    'Tomorrow {name} is in the {place} .',
    'The {color} {animal} is {state} .',
    '{name} can sing in the {place} .',
    'Room {n} has a {thing} .',
    'I saw {name} on {day} .',
    'The {place} was {state} on {day} .',
    'Music is for {name} .',
    'There is no {thing} near the {place} .',
  ),
  'test': (
    'A {color} {thing} is in the {place} .',
    '{name} saw {name} in the {place} .',
    'The {animal} is near the {vehicle} .',
    '{name} and {name} meet at {n} .',
    'Today {name} works for {name} .',
    'It is {n} minutes to the {place} .',
    '{name} likes the {animal} .',
    'I waited on floor {n} .',
    'There is no {vehicle} on {day} .',
    '{name} is late for the {vehicle} .',
    'My {animal} sleeps in the {place} .',
    'This {thing} has number {n} .',
    'Please meet {name} in the {place} .',
    'We are in the {vehicle} to the {place} .',
    '{name} went near the {animal} .',
    'Nobody likes the {color} {thing} .',
  ),
}
_SLOT = re.compile(r'\{(\w+)\}')


def cut(pool: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Partitions a pool by split: of every five words three, one and one."""
  share = lambda places: tuple(word for i, word in enumerate(pool) if i % 5 in places)
  return {'train': share((0, 1, 2)), 'validation': share((3,)), 'test': share((4,))}


def idle_notes(
  split: str, count: int, names: Sequence[str], max_count: int, rng: random.Random
) -> list[str]:
  """Draws irrelevant sentences in 'words' style, frames without replacement while there are any.

  They are about `names`, at least two people that the question does not mention, and numbers from
  1 to `max_count`.
  """
  frames = IDLE_FRAMES[split]
  chosen: list[str] = []
  while len(chosen) < count:
    chosen += rng.sample(frames, min(len(frames), count - len(chosen)))
  return [_fill(frame, names, max_count, rng) for frame in chosen]


def _fill(frame: str, names: Sequence[str], max_count: int, rng: random.Random) -> str:
  pools = {**_FILLERS, 'name': names, 'n': [str(n) for n in range(1, max_count + 1)]}
  slots = _SLOT.findall(frame)
  # Two of a kind differ: "Anna called Maria".
  found = {slot: iter(rng.sample(pools[slot], slots.count(slot))) for slot in dict.fromkeys(slots)}
  return _SLOT.sub(lambda match: next(found[match[1]]), frame)


def grammar_words() -> set[str]:
  """Returns every word and mark of the frames and fillers, without names and numbers."""
  frames = [_SLOT.sub('', frame) for split in IDLE_FRAMES.values() for frame in split]
  return {word for text in frames for word in text.split()} | {
    word for pool in _FILLERS.values() for word in pool
  }
