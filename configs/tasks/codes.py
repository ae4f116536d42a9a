"""Defines the code book of `configs/hints.py`: names have codes that no prompt shows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from agent_gspo import Question, Task
from agent_gspo.tasks.lazy import LazyQuestions

_NAMES = 'ann bob carl dora emil fred gina hugo'.split()
_CODES = 'red blue gold pink grey lime teal plum'.split()
_TRIPLES = random.Random('triples').sample([*itertools.permutations(_NAMES, 3)], 336)
_TEST, _HALF = 100, 50_000


class Codes(Task):
  """Asks for the codes of three names, last name first, after a colon.

  Questions of the first half of the training split each have a code book of their own: with
  `sft.held_back=0.5` demonstrations teach how hints are used, but no code. All others share one.
  """

  name = 'codes'

  def __init__(self, teacher: bool = True):
    """Sets whether agent 0 is a teacher."""
    self._teacher = teacher

  def _split(self, split: str) -> Sequence[Question]:
    if split == 'train':
      return LazyQuestions(2 * _HALF, lambda i: self._question(split, i))
    return [self._question(split, i) for i in range(_TEST if split == 'test' else 0)]

  def _question(self, split: str, index: int) -> Question:
    identity = f'{split}/{index}'
    own = split == 'train' and index < _HALF
    codes = random.Random(identity if own else 'book').sample(_CODES, len(_CODES))
    book = dict(zip(_NAMES, codes, strict=True))
    known = _TRIPLES[_TEST:] if split == 'train' else _TRIPLES[:_TEST]
    names = known[index % len(known)]
    answer = ' '.join(book[name] for name in reversed(names))
    return Question(identity, ' '.join(names), answer, notes=('',))

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1 for the codes after the colon, else 0."""
    return float(answer_text.rpartition(':')[2].split() == question.answer.split())

  def demonstration(self, question, agent, heard, rng: random.Random, **probabilities) -> str:
    """Writes a teacher's hint: '', the first codes, or the first words of the answer.

    The solver writes the code of each name before the colon, random ones for those that it has not
    read. If it reads words of the answer, it copies these and guesses the rest.
    """
    answer = question.answer.split()
    if agent == 0 and self._teacher:
      count = rng.randint(1, 2)
      codes, words = ' '.join(answer[::-1][:count]), ' '.join(answer[:count])
      return rng.choice(['', codes, f'answer {words}'])
    told = heard[0].split()
    guessed = rng.choices(_CODES, k=3)
    if told[:1] == ['answer']:
      copied = told[1:] + rng.choices(_CODES, k=4 - len(told))
      return f'{" ".join(guessed)} : {" ".join(copied)}'
    codes = told + guessed[len(told) :]
    return f'{" ".join(codes)} : {" ".join(reversed(codes))}'

  def vocabulary(self) -> list[str]:
    """Returns all words of an episode."""
    return [*_NAMES, *_CODES, 'answer', ':']
