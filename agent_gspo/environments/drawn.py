"""Defines base classes of environments that are drawn from a seed."""

from __future__ import annotations

import abc
import dataclasses
import functools
import random
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

from agent_gspo.environments.base import Environment
from agent_gspo.options import check_fields, option
from agent_gspo.tasks.data import draws
from agent_gspo.tasks.grading.numeric import canonical_number, grade_number
from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.types import Question

OWNERS = ('Ann', 'Bob', 'Eva', 'Joe', 'Kim', 'Lea', 'Max', 'Pia', 'Sam', 'Tom', 'Una', 'Vic')
_BUCKETS = {  # of 10
  'train': range(2, 10),
  'sft': range(2, 10),
  'validation': range(1, 2),
  'test': range(1),
}

_MOST_DRAWS = 10_000  # of which about one in ten or more belongs to a split


@dataclasses.dataclass(eq=False, kw_only=True)
class DrawnWorld(Environment, abc.ABC):
  """Environment whose questions are drawn; splits share no world, whatever the seed is.

  Question `i` of a split depends on `(seed, split, i)` and the options alone.

  Attributes:
    noun: Word for a world in errors.
    drawn_by: Options that choose other worlds for the same question, besides the seed.

  Raises:
    ValueError: if an option is out of range.
  """

  hears_silence = True
  noun = 'world'
  drawn_by: ClassVar[tuple[str, ...]] = ()

  seed: int = 0
  train_size: int = option(100_000, least=0, most=10**7)
  validation_size: int = option(200, least=0, most=10**7)
  test_size: int = option(500, least=0, most=10**7)

  def __post_init__(self):
    check_fields(self, 'task.options')

  @abc.abstractmethod
  def draw(self, rng: random.Random, split: str) -> tuple[Hashable, str, str, Any]:
    """Draws the key that decides the split, a question's text and answer, and its first state.

    Split 'sft' is for questions of SFT alone, see `further_demonstrations`.
    """

  def _split(self, split: str) -> Sequence[Question]:
    return LazyQuestions(getattr(self, f'{split}_size'), lambda i: self._drawn(f'{split}/{i}')[0])

  def begin(self, question: Question, sample: int) -> Any:
    """Returns the first state of a question; all its episodes have the same."""
    return self._drawn(question.id)[1]

  @functools.lru_cache(maxsize=4096)  # noqa: B019  as long as the task itself
  def _drawn(self, id_: str) -> tuple[Question, Any]:
    """Draws worlds until one belongs to the question's split."""
    split = id_.partition('/')[0]
    if split not in _BUCKETS:
      raise ValueError(
        f'question {id_!r} has no {self.noun}: {self.noun}s are drawn for the questions of splits'
      )
    rng = draws.rng(self.seed, *(getattr(self, name) for name in self.drawn_by), id_)
    for _ in range(_MOST_DRAWS):
      key, text, answer, state = self.draw(rng, split)
      if draws.rng(key).randrange(10) in _BUCKETS[split]:
        return Question(id_, text, answer), state
    shared = {field.name for field in dataclasses.fields(DrawnWorld)}
    names = [field.name for field in dataclasses.fields(self) if field.name not in shared]
    own = ', '.join(f'{name}={getattr(self, name)!r}' for name in names)
    raise ValueError(
      f'task.options: {own} must allow more {self.noun}s; of {_MOST_DRAWS} draws none is for '
      f'split {split!r}. Widen them.'
    )


class NumberWorld(DrawnWorld, abc.ABC):
  """World whose episodes end with an answer that is graded as a number (`state.answer`)."""

  def outcome(self, state: Any) -> str:
    """Returns the answer of an episode."""
    return state.answer

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1 if the number in the answer is the gold number, else 0."""
    return grade_number(answer_text, question.answer)

  def canonical(self, answer_text: str) -> str | None:
    """Returns the number in the answer."""
    return canonical_number(answer_text)
