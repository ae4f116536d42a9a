"""Defines the `task` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section

SPLITS = ('train', 'validation', 'test')


@dataclasses.dataclass(frozen=True)
class TaskOptions(Section, name='task'):
  """Name and options of the task.

  Attributes:
    name: One of those in `tasks/registry.py`, or 'module:Class'.
    options: Keyword arguments of the task's class, see `agent_gspo/tasks`.
  """

  name: str = 'relay'
  options: dict = dataclasses.field(default_factory=dict)
