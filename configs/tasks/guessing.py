"""Defines the number game of `configs/guessing.py`: a task with an episode of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agent_gspo import Question, Task

NUMBERS, GUESSES = 7, 3
_WORDS = [str(number) for number in range(1, NUMBERS + 1)]


class Guessing(Task):
  """Questions are the numbers from 1 to `NUMBERS`, in many copies."""

  name = 'guessing'

  def _split(self, split: str) -> Sequence[Question]:
    copies = 40 if split == 'train' else 8
    return [
      Question(f'{split}/{word}/{copy}', 'guess', word) for copy in range(copies) for word in _WORDS
    ]

  def converse(self, talk):
    """Asks the players in turn, until a guess is right or no number, or all are used."""
    said = ''
    for turn in range(GUESSES):
      guess = yield from talk.turn(turn % 2, turn // 2)
      said = guess.text.strip() if guess else ''
      if said == talk.question.answer or said not in _WORDS:
        break
      for player in range(2):
        talk.tell(player, 'higher' if int(said) < int(talk.question.answer) else 'lower')
    return said

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1 for the number, else 0."""
    return float(answer_text == question.answer)

  def demonstration(self, question, agent, heard, rng: random.Random, **probabilities) -> str:
    """Returns a random guess."""
    return rng.choice(_WORDS)

  def vocabulary(self) -> list[str]:
    """Returns all words of an episode."""
    return [*_WORDS, 'guess', 'higher', 'lower']
