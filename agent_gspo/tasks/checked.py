"""Validates the questions, scores and texts that tasks return.

Tasks are often user code, and errors in a verifier are hard to notice: a score above 1 or NaN
would be trained on, or be blamed on the learning rate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from agent_gspo import plugins
from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.types import Question
from agent_gspo.values import is_text, shown

if TYPE_CHECKING:
  from agent_gspo.tasks.base import Task

_ROUNDING = 1e-6  # summed weights may exceed 0 or 1 by this much
_WHERE = '_called_in_messages'


def _where(task: Task) -> str:
  """Returns a task's name for error messages: config field and module for a plugin."""
  name = getattr(task, 'name', type(task).__name__)
  return vars(task).get(_WHERE) or f'task {name!r}'


def call(task: Task, what: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
  """Calls code of a task; `what` describes the call in error messages.

  Raises:
    PluginError: if the call fails, see `plugins.guard`.
  """
  with plugins.guard(f'{_where(task)}, {what}', type(task).__module__):
    return function(*args, **options)


def scores(task: Task, questions: Sequence[Question], answers: Sequence[str]) -> list[float]:
  """Returns the task's score of each answer, in `[0, 1]`.

  Raises:
    PluginError: if the verifier fails, returns too few scores or one that is not a number in
      `[0, 1]`; names the task, the question and the value.
  """
  must = f'must return a score for each of {len(answers)} answers'
  found = call(task, 'score_all', task.score_all, questions, answers)
  if isinstance(found, str | bytes | Mapping | Set) or not isinstance(found, Iterable):
    raise plugins.PluginError(
      f'{_where(task)}: score_all returned {plugins.kind_of(found)}; {must}.'
    )
  found = call(task, 'score_all', list, found)
  if len(found) != len(answers):
    raise plugins.PluginError(f'{_where(task)}: score_all returned {len(found)} scores; {must}.')
  score = lambda q, value: _score(task, f'score of question {q.id!r}', value)
  return [score(q, value) for q, value in zip(questions, found, strict=True)]


def graded_by(task: Task, grader: str, question: Question, answer: str) -> float:
  """Returns an answer's score by one of a task's graders; see `scores`."""
  what = f'score of question {question.id!r} by grader {grader!r}'
  return _score(task, what, call(task, what, task.graded_by, grader, question, answer))


def _score(task: Task, what: str, value: Any) -> float:
  """Returns a score as a float; a bool counts as 0 or 1."""
  number = _number(value)
  if number is None or not -_ROUNDING <= number <= 1 + _ROUNDING:
    raise plugins.PluginError(
      f'{_where(task)}: {what} is {shown(value)}; must be a number in [0, 1].'
    )
  return min(max(number, 0.0), 1.0)


def _number(value: Any) -> float | None:
  """Converts a scalar or 0-d array of any library to a float; returns None for others."""
  try:
    if getattr(value, 'ndim', 0):
      return None
    value = value.item() if hasattr(value, 'item') else value
    return None if isinstance(value, str | bytes | bytearray) else float(value)
  except Exception:  # None, a complex number, one too large, a deleted array
    return None


def questions(task: Task, found: Any, split: str) -> Sequence[Question]:
  """Returns the checked questions of a split; lazy ones are checked upon access.

  Raises:
    PluginError: if they are not a sequence, one is not a `Question` or has a field of another
      type, or two in a list have the same id.
  """
  what = f'split {split!r}'
  sized = hasattr(found, '__len__') and hasattr(found, '__getitem__')
  if not sized or isinstance(found, str | bytes | Mapping):
    raise plugins.PluginError(
      f'{_where(task)}, {what}: _split returned {plugins.kind_of(found)}; must return a list of '
      'agent_gspo.Question.'
    )
  if not isinstance(found, list | tuple):
    made = lambda i: _checked(task, what, i, found[i])
    return LazyQuestions(len(found), lambda i: call(task, what, made, i))
  places: dict[str, int] = {}
  for i, question in enumerate(found):
    first = places.setdefault(_checked(task, what, i, question).id, i)
    if first != i:
      raise plugins.PluginError(
        f'{_where(task)}, {what}: questions {first} and {i} have the same id {question.id!r}; must '
        'be unique.'
      )
  return list(found)


def _checked(task: Task, what: str, place: int, question: Any) -> Question:
  """Checks the question at one index of a split; see `questions`."""
  where = f'{_where(task)}, {what}: question {place}'
  if not isinstance(question, Question):
    raise plugins.PluginError(
      f'{where} is {plugins.kind_of(question)}; must be an agent_gspo.Question.'
    )
  for field in ('id', 'text', 'answer', 'derivation', 'story'):
    value = getattr(question, field)
    if not is_text(value) or (field == 'id' and not value):
      raise plugins.PluginError(f'{where}: {field} is {shown(value)}; must be a text.')
  notes = question.notes
  if not isinstance(notes, list | tuple) or not all(map(is_text, notes)):
    raise plugins.PluginError(f'{where}: notes is {shown(notes)}; must be a tuple of texts.')
  if not isinstance(question.relevant, list | tuple) or set(question.relevant) - {True, False}:
    raise plugins.PluginError(
      f'{where}: relevant is {shown(question.relevant)}; must be a tuple of True and False.'
    )
  return question


def _is_text_or_none(found: Any) -> bool:
  return found is None or is_text(found)


def _are_words(found: Any) -> bool:
  return not isinstance(found, str | bytes) and bool(found) and all(map(is_text, found))


_RETURNED: dict[str, tuple[Callable[[Any], bool], str]] = {
  'canonical': (_is_text_or_none, 'a text or None'),
  'demonstration': (_is_text_or_none, 'a text or None'),
  'note': (is_text, 'a text'),
  'vocabulary': (_are_words, 'a list of words'),
}


def adopt(task: Task, name: str) -> Task:
  """Wraps a user's own task so that errors in its methods name it.

  Args:
    task: Instance of the class that a config names.
    name: Config value, 'module:Class'.

  Raises:
    PluginError: if it has no name, or graders that are not names.
  """
  own = vars(task)
  own[_WHERE] = where = f'task.name={name!r}'
  if not is_text(getattr(task, 'name', None)):
    raise plugins.PluginError(f'{where}: {type(task).__name__}.name must be a text; set it.')
  if not isinstance(task.graders, list | tuple) or not all(map(is_text, task.graders)):
    raise plugins.PluginError(
      f'{where}: graders is {shown(task.graders)}; must be a tuple of texts.'
    )
  for method in _RETURNED:
    if hasattr(task, method):
      own[method] = functools.partial(_returned, task, method, getattr(task, method))
  return task


def _returned(task: Task, method: str, function: Callable, *args: Any, **options: Any) -> Any:
  """Calls a method of a user's own task and checks the type of its result."""
  fits, must = _RETURNED[method]
  found = call(task, method, function, *args, **options)
  if isinstance(found, Iterator):
    found = call(task, method, list, found)
  if not call(task, method, fits, found):
    raise plugins.PluginError(
      f'{_where(task)}: {method} returned {plugins.kind_of(found)}; must return {must}.'
    )
  return found
