"""Builds tasks by name, for configs and the command line."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from agent_gspo import plugins
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task

_TASKS = {
  'relay': ('agent_gspo.tasks.relay.task', 'RelayTask'),
  'questions': ('agent_gspo.tasks.own_questions', 'OwnQuestions'),
  'gsm8k': ('agent_gspo.tasks.benchmarks.word_problems', 'GSM8K'),
  'svamp': ('agent_gspo.tasks.benchmarks.word_problems', 'SVAMP'),
  'multiarith': ('agent_gspo.tasks.benchmarks.word_problems', 'MultiArith'),
  'dealt': ('agent_gspo.tasks.dealt.task', 'DealtTask'),
  'human_eval': ('agent_gspo.tasks.benchmarks.human_eval', 'HumanEval'),
  'aqua': ('agent_gspo.tasks.benchmarks.multiple_choice', 'AQuA'),
  'mmlu': ('agent_gspo.tasks.benchmarks.multiple_choice', 'MMLU'),
  'math500': ('agent_gspo.tasks.benchmarks.competition_maths', 'Math500'),
  'math': ('agent_gspo.tasks.benchmarks.competition_maths', 'Math'),
}


def task_names() -> tuple[str, ...]:
  """Returns the names of built-in tasks."""
  return tuple(_TASKS)


def task_options(name: str) -> dict[str, Any]:
  """Returns the options of a task with their defaults.

  Raises:
    ValueError: if the name is unknown.
  """
  return {
    option: parameter.default
    for option, parameter in inspect.signature(_task_class(name)).parameters.items()
  }


def make_task(name: str, /, **options: Any) -> Task:
  """Builds a task.

  Args:
    name: One of `task_names()`, or 'module:Class' of your own.
    **options: Keyword arguments of the task's class.

  Raises:
    ValueError: if the name or an option is unknown, or an option is out of range.
    FileNotFoundError: if the task's data is not available.
  """
  known = task_options(name)
  for option in options:
    if option not in known:
      raise ValueError(f'unknown option {option!r} of task {name}{_hint(option, known)}')
  make = _task_class(name)
  if not plugins.is_plugin(name):
    return make(**options)
  task = plugins.call('task.name', name, make, **options)
  if not isinstance(task, Task):
    raise ValueError(f'task.name={name!r} makes a {type(task).__name__}, no agent_gspo.Task.')
  return plugins.call('task.name', name, checked.adopt, task, name)


def _task_class(name: str) -> Callable[..., Task]:
  if plugins.is_plugin(name):
    return plugins.load_function(name, 'task.name')
  if name not in _TASKS:
    raise ValueError(f'unknown task {name!r}{_hint(name, _TASKS)}')
  module, attribute = _TASKS[name]
  # Imported on use: the relay task does not need the dataset libraries.
  try:
    return getattr(importlib.import_module(module), attribute)
  except ModuleNotFoundError as error:
    if (error.name or '').startswith(__package__.partition('.')[0]):
      raise
    raise ModuleNotFoundError(
      f'task {name!r} needs {error.name}, which is not installed; it comes with the extra `data`: '
      "pip install '.[data]' in the repository",
      name=error.name,
    ) from error


def _hint(given: str, known) -> str:
  close = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
  meant = f'; did you mean {close[0]!r}?' if close else ';'
  return f'{meant} Known: {", ".join(sorted(known))}'
