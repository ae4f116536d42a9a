"""Defines the question game of `configs/lookup.py`: a fact is in the question or in a document."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agent_gspo import Question, Task

_NAMES = 'ann bob carl dora emil fred gina hugo ida jack kim leo'.split()
_CITIES = 'oslo rome paris kyiv lima cairo delhi quito'.split()


class Lookup(Task):
  """Asks where a person lives: four documents say it, and half of the questions as well."""

  name = 'lookup'

  def _split(self, split: str) -> Sequence[Question]:
    return [self._question(split, i) for i in range(2000 if split == 'train' else 200)]

  def _question(self, split: str, index: int) -> Question:
    rng = random.Random(f'{split}/{index}')
    people = rng.sample(_NAMES, 4)
    facts = [f'{name} lives in {rng.choice(_CITIES)}' for name in people]
    told = f'{facts[0]} ; ' if index % 2 else ''
    answer = facts[0].split()[-1]
    documents = tuple(rng.sample(facts, 4))
    return Question(
      f'{split}/{index}', f'{told}where {people[0]}', answer, notes=('',), documents=documents
    )

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1 if the last word is the city, else 0."""
    return float(answer_text.split()[-1:] == [question.answer])

  def demonstration(self, question, agent, heard, rng: random.Random, **probabilities) -> str:
    """Writes a scout's search (half of the time), or a solver's answer, random without the fact."""
    if agent == 1:
      return question.answer if heard[0] or ';' in question.text else rng.choice(_CITIES)
    name = question.text.split()[-1]
    fact = next(document for document in question.documents if document.startswith(name))
    return f'search {name} ? {fact}' if rng.random() < 0.5 else ''

  def vocabulary(self) -> list[str]:
    """Returns all words of an episode but those of the tool."""
    return [*_NAMES, *_CITIES, 'lives', 'in', 'where', ';']
