"""Trains teams of language-model agents to solve tasks with few tokens (arXiv 2510.22477).

Public names are imported on first use, so `import agent_gspo` is fast:

    import agent_gspo

    config = agent_gspo.default_config()
    agent_gspo.train(config.to_dict(), 'runs/first')

`agent_gspo.algorithms` has objectives and advantages as pure functions of arrays.
"""

from __future__ import annotations

from typing import Any

from agent_gspo import lazy

__version__ = '0.1.0'

_PUBLIC = {
  'Environment': 'agent_gspo.environments.base',
  'Message': 'agent_gspo.types',
  'ObjectiveSpec': 'agent_gspo.algorithms.objectives.losses',
  'Question': 'agent_gspo.types',
  'Role': 'agent_gspo.teams.roles',
  'RolloutBatch': 'agent_gspo.types',
  'Task': 'agent_gspo.tasks.base',
  'Team': 'agent_gspo.teams.team',
  'Tokenizer': 'agent_gspo.models.text.tokenizer',
  'Topology': 'agent_gspo.teams.topology',
  'algorithms': 'agent_gspo.algorithms',
  'build': 'agent_gspo.training.setup',
  'check': 'agent_gspo.config.check',
  'default_config': 'agent_gspo.config.defaults',
  'load_model': 'agent_gspo.models.load',
  'make_task': 'agent_gspo.tasks.registry',
  'make_team': 'agent_gspo.teams.team',
  'rollout': 'agent_gspo.teams.rollout',
  'train': 'agent_gspo.training.loop',
  'train_step': 'agent_gspo.training.train_step',
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
  return lazy.find(__name__, _PUBLIC, name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
