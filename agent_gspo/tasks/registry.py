"""Builds tasks by name, for configs and the command line."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from agent_gspo import plugins
from agent_gspo.options import check_choice, did_you_mean
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task

_TASKS = {
  'relay': ('agent_gspo.tasks.relay.task', 'RelayTask'),
  'half_maze': ('agent_gspo.environments.half_maze', 'HalfMaze'),
  'kuhn': ('agent_gspo.environments.kuhn', 'Kuhn'),
  'memory': ('agent_gspo.environments.memory', 'Memory'),
  'saboteur': ('agent_gspo.environments.saboteur', 'Saboteur'),
  'refine_code': ('agent_gspo.environments.refine_code', 'RefineCode'),
  'common_pool': ('agent_gspo.environments.common_pool', 'CommonPool'),
  'text_game': ('agent_gspo.environments.text_game', 'TextGame'),
  'reasoning_gym': ('agent_gspo.tasks.reasoning_gym', 'ReasoningGym'),
  'questions': ('agent_gspo.tasks.own_questions', 'OwnQuestions'),
  'gsm8k': ('agent_gspo.tasks.benchmarks.word_problems', 'GSM8K'),
  'svamp': ('agent_gspo.tasks.benchmarks.word_problems', 'SVAMP'),
  'multiarith': ('agent_gspo.tasks.benchmarks.word_problems', 'MultiArith'),
  'dealt': ('agent_gspo.tasks.dealt.task', 'DealtTask'),
  'human_eval': ('agent_gspo.tasks.benchmarks.human_eval', 'HumanEval'),
  'aqua': ('agent_gspo.tasks.benchmarks.multiple_choice', 'AQuA'),
  'mmlu': ('agent_gspo.tasks.benchmarks.multiple_choice', 'MMLU'),
  'math500': ('agent_gspo.tasks.benchmarks.competition_math', 'Math500'),
  'math': ('agent_gspo.tasks.benchmarks.competition_math', 'Math'),
}


def make_task(name: str, /, **options: Any) -> Task:
  """Builds a task.

  Args:
    name: Built-in task, or 'module:Class' of your own.
    **options: Keyword arguments of the task's class.

  Raises:
    ValueError: if the name or an option is unknown, or an option is out of range.
    FileNotFoundError: if the task's data is not available.
  """
  make = _task_class(name)
  known = inspect.signature(make).parameters
  for option in options:
    if option not in known:
      raise ValueError(
        f'task.options.{option} is unknown; task {name!r} has {", ".join(sorted(known)) or "none"}.'
        f'{did_you_mean(option, known)}'
      )
  if not plugins.is_plugin(name):
    return make(**options)
  task = plugins.call('task.name', name, make, **options)
  if not isinstance(task, Task):
    raise ValueError(f'task.name={name!r} makes a {type(task).__name__}, no agent_gspo.Task.')
  plugins.call('task.name', name, checked.adopt, task, name)
  return task


def _task_class(name: str) -> Callable[..., Task]:
  if plugins.is_plugin(name):
    return plugins.load_function(name, 'task.name')
  check_choice('task.name', name, tuple(_TASKS))
  module, attribute = _TASKS[name]
  try:  # on use: the relay task does not need the dataset libraries
    return getattr(importlib.import_module(module), attribute)
  except ModuleNotFoundError as error:
    if (error.name or '').startswith(__package__.partition('.')[0]):
      raise
    raise ModuleNotFoundError(
      f'task {name!r} needs {error.name}, which is not installed; it comes with the extra `data`: '
      "pip install '.[data]' in the repository",
      name=error.name,
    ) from error
