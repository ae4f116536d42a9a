"""The `task` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section


@dataclasses.dataclass(frozen=True)
class TaskOptions(Section, name='task'):
  """Which questions are asked."""

  name: str = 'relay'  # of registry.task_names()
  # Of the task's class, see agent_gspo/tasks.
  options: dict = dataclasses.field(default_factory=dict)
