"""Validates the questions, scores and texts that tasks return.

Tasks are often user code, and errors in a verifier are hard to notice: a score above 1 or NaN
would be trained on, or be blamed on the learning rate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

from agent_gspo import plugins
from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.types import Question
from agent_gspo.values import finite, is_text, shown

_ROUNDING = 1e-6  # summed weights may exceed 0 or 1 by this much
_WHERE = '_called_in_messages'


class Task(Protocol):
  """Declares the checked methods of a `base.Task`, whose module imports this one."""

  name: str
  graders: Sequence[str]

  def score_all(self, questions: Sequence[Question], answer_texts: Sequence[str]) -> list[float]:
    """Returns the score of each answer."""

  def graded_by(self, grader: str, question: Question, answer_text: str) -> float:
    """Returns an answer's score by one of `graders`."""


def name_of(task: Task) -> str:
  """Returns a task's name for error messages: config field and module for a plugin."""
  name = getattr(task, 'name', type(task).__name__)
  return vars(task).get(_WHERE) or f'task {name!r}'


def call(task: Task, what: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
  """Calls code of a task; `what` describes the call in error messages.

  Raises:
    PluginError: if the call fails, see `plugins.guard`.
  """
  with plugins.guard(f'{name_of(task)}, {what}', type(task).__module__):
    return function(*args, **options)


def scores(task: Task, questions: Sequence[Question], answers: Sequence[str]) -> list[float]:
  """Returns the task's score of each answer, in `[0, 1]`.

  Raises:
    PluginError: if the verifier fails, or does not return as many scores as answers, numbers in
      `[0, 1]`; names the task, the question and the value.
  """
  returned = call(task, 'score_all', task.score_all, questions, answers)
  found = call(task, 'score_all', list, returned)
  if isinstance(returned, Mapping | Set) or len(found) != len(answers):
    raise plugins.PluginError(
      f'{name_of(task)}: score_all returned {plugins.kind_of(returned)}; must return a list with a '
      f'score for each of {len(answers)} answers.'
    )
  score = lambda q, value: _score(task, f'score of question {q.id!r}', value)
  return [score(q, value) for q, value in zip(questions, found, strict=True)]


def graded_by(task: Task, grader: str, question: Question, answer: str) -> float:
  """Returns an answer's score by one of a task's graders; see `scores`."""
  what = f'score of question {question.id!r} by grader {grader!r}'
  return _score(task, what, call(task, what, task.graded_by, grader, question, answer))


def _score(task: Task, what: str, value: Any) -> float:
  """Returns a score as a float: a scalar or 0-d array of any library; a bool counts as 0 or 1."""
  try:
    plain = value.item() if hasattr(value, 'item') and not value.ndim else value
    number = math.nan if isinstance(plain, str | bytes) or hasattr(plain, 'ndim') else float(plain)
  except Exception:  # such as None, a complex or too large number, a deleted array
    number = math.nan
  if not -_ROUNDING <= number <= 1 + _ROUNDING:
    raise plugins.PluginError(
      f'{name_of(task)}: {what} is {shown(value)}; must be a number in [0, 1].'
    )
  return 1.0 if number >= 1 - _ROUNDING else max(number, 0.0)  # gates compare with 1


def questions(task: Task, found: Any, split: str) -> Sequence[Question]:
  """Returns the checked questions of a split; lazy ones are checked upon access.

  Raises:
    PluginError: if they are not a sequence, one is not a `Question` or has a field of another
      type, or two in a list have the same id.
  """
  where = f'{name_of(task)}, split {split!r}'
  sized = hasattr(found, '__len__') and hasattr(found, '__getitem__')
  if not sized or isinstance(found, str | bytes | Mapping):
    raise plugins.PluginError(
      f'{where}: _split returned {plugins.kind_of(found)}; must return a list of '
      'agent_gspo.Question.'
    )
  if not isinstance(found, list | tuple):
    made = lambda i: _checked(where, i, found[i])
    return LazyQuestions(len(found), lambda i: call(task, f'split {split!r}', made, i))
  places: dict[str, int] = {}
  for i, question in enumerate(found):
    first = places.setdefault(_checked(where, i, question).id, i)
    if first != i:
      raise plugins.PluginError(
        f'{where}: questions {first} and {i} have the same id {question.id!r}; must be unique.'
      )
  return list(found)


def _checked(where: str, place: int, question: Any) -> Question:
  """Returns the question at one index of a split if its fields are valid; see `questions`."""
  if not isinstance(question, Question):
    raise plugins.PluginError(
      f'{where}: question {place} is {plugins.kind_of(question)}; must be an agent_gspo.Question.'
    )
  texts = lambda found: isinstance(found, list | tuple) and all(map(is_text, found))
  flags = lambda found: isinstance(found, list | tuple) and not set(found) - {True, False}
  for fields, fits, must in (
    (('text', 'answer', 'derivation', 'story'), is_text, 'a text'),
    (('id',), lambda found: is_text(found) and found, 'a unique text'),
    (('notes', 'documents'), texts, 'a tuple of texts'),
    (('relevant',), flags, 'a tuple of True and False'),
  ):
    for field in fields:
      if not fits(value := getattr(question, field)):
        raise plugins.PluginError(
          f'{where}: question {place}: {field} is {shown(value)}; must be {must}.'
        )
  return question


_text_or_none = (lambda found: found is None or is_text(found), 'a text or None')
_words = (
  lambda found: not isinstance(found, str) and found and all(map(is_text, found)),
  'a list of words',
)


def _are_forms(found: Any) -> bool:
  """Returns whether gold answers are pairs of texts; a text of two characters is not a pair."""
  pair = lambda form: isinstance(form, list | tuple) and len(form) == 2 and all(map(is_text, form))
  return not isinstance(found, str | Mapping) and all(map(pair, found))


def _are_questions(found: Any) -> bool:
  """Returns whether a value is a list of questions, or a lazy sequence, which is not built."""
  if isinstance(found, list | tuple):
    return all(isinstance(question, Question) for question in found)
  return isinstance(found, Sequence) and not isinstance(found, str | bytes)


def _are_figures(found: Any) -> bool:
  """Returns whether a value has a finite number for each of some names."""
  return isinstance(found, Mapping) and all(
    is_text(name) and finite(number) is not None for name, number in found.items()
  )


_RETURNED: dict[str, tuple[Callable[[Any], bool], str]] = {
  'canonical': _text_or_none,
  'demonstration': _text_or_none,
  'further_demonstrations': (_are_questions, 'a list of agent_gspo.Question'),
  'gold_messages': (_are_forms, 'a list of pairs of texts, see Task.gold_messages'),
  'kind': (is_text, 'a text'),
  'needs': (is_text, 'a text'),
  'note': (is_text, 'a text'),
  'plain_message': (is_text, 'a text'),
  'policy_figures': (_are_figures, 'a dict of numbers'),
  'story': (is_text, 'a text'),
  'vocabulary': _words,
}


def adopt(task: Task, name: str) -> None:
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


def _returned(task: Task, method: str, function: Callable, *args: Any, **options: Any) -> Any:
  """Calls a method of a user's own task and checks the type of its result."""
  fits, must = _RETURNED[method]
  found = call(task, method, function, *args, **options)
  if isinstance(found, Iterator):
    found = call(task, method, list, found)
  if not call(task, method, fits, found):
    raise plugins.PluginError(
      f'{name_of(task)}: {method} returned {plugins.kind_of(found)}; must return {must}.'
    )
  return found
