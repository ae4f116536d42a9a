"""Provides a sequence of questions built on access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from agent_gspo.types import Question


class LazyQuestions(Sequence[Question]):
  """Sequence of questions built on access.

  `make(i)` must return the same question for the same `i`, in any order of calls. A
  slice returns a list.
  """

  def __init__(self, size: int, make: Callable[[int], Question]):
    self._size = size
    self._make = make

  def __len__(self) -> int:
    return self._size

  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self._make(i) for i in range(*index.indices(self._size))]
    position = index + self._size if index < 0 else index
    if not 0 <= position < self._size:
      raise IndexError(f'question {index} of a split with {self._size} questions')
    return self._make(int(position))

  def __iter__(self) -> Iterator[Question]:
    return (self._make(i) for i in range(self._size))
