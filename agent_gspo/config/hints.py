"""Validates teams with agents that read the gold answer, and the estimator that rewards hints."""

from __future__ import annotations

from agent_gspo.config.defaults import Config
from agent_gspo.tasks.base import Task, asked
from agent_gspo.teams.sharing import Sharing
from agent_gspo.teams.team import Team


def check(config: Config, task: Task, team: Team, sharing: Sharing) -> None:
  """Raises ValueError if hints cannot be given, or cannot be learned from."""
  hinters = sorted(team.hinters)
  if hinters:
    where = f'team.roles.{team.roles[hinters[0]].name}.opening'
    if task.converse:
      raise ValueError(
        f'{where} shows the gold answer, and task {task.name!r} brings its own episode, where any '
        'message may be graded. Remove {answer}.'
      )
    if not asked(task, config.sft.held_back)[0].answer.strip():
      raise ValueError(
        f'{where} shows the gold answer, and task {task.name!r} has none as text. Remove '
        '{answer}.'
      )
  if config.advantage.name != 'hill':
    return
  where, reader = "advantage.name='hill'", team.num_agents - 1
  read = {author for author, _ in team.read_by_answerer}
  if not hinters:
    raise ValueError(
      f'{where} needs an agent that reads the gold answer. Add {{answer}} to the '
      "opening of a role, or set advantage.name='worth'."
    )
  if unread := [team.names[agent] for agent in hinters if agent not in read]:
    raise ValueError(
      f'{where}: {unread[0]!r} gives hints, but the last agent does not read it. Choose '
      'another team.topology.'
    )
  if not sharing.learns(reader):
    raise ValueError(
      f'{where} rewards what {team.names[reader]!r} learns, but it is frozen '
      '(policy.frozen, policy.learning_rates, or trains of its role). Train it, or set '
      "advantage.name='worth'."
    )
