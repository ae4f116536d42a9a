"""Checks that a team has the agents, rounds and turns that a task needs."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gspo.environments.base import Environment
from agent_gspo.plugins import PluginError
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task, drawn_already, note_holders
from agent_gspo.teams.team import Team
from agent_gspo.values import is_whole, shown


def check(task: Task, team: Team, splits: Sequence[str]) -> None:
  """Checks that a team fits the notes of some splits, and an environment.

  Raises:
    ValueError: It does not.
    PluginError: `least_team` of the environment is no property of two numbers.
  """
  for split in splits:
    questions = task.questions(split)
    holders = note_holders(questions)
    if holders > team.num_agents:
      raise ValueError(
        f'team.agents: task {task.name!r} deals notes to {holders} agents, but the team has '
        f'{team.num_agents}. Add agents, or remove notes.'
      )
    searched = any('retriever' in role.tools for role in team.roles)
    for agent, (name, role) in enumerate(zip(team.names, team.roles, strict=True)):
      reads = role.shows_note or role.shows_answer or searched
      if not reads and any(q.note(agent) for q in drawn_already(questions)):
        raise ValueError(
          f'team.roles.{role.name}.opening={role.opening!r} shows no note, but task {task.name!r} '
          f'deals one to {name}: write {{note}} into it.'
        )
  if not isinstance(task, Environment):
    return
  if team.decision != 'last':
    raise ValueError(
      f'team.decision={team.decision!r} with task {task.name!r}, whose environment knows the '
      "outcome: set team.decision='last'."
    )
  has = {'agents': team.num_agents, 'rounds': team.topology.rounds}
  needed = checked.call(task, 'least_team', lambda: task.least_team)
  if not isinstance(needed, tuple | list) or [*map(is_whole, needed)] != [True, True]:
    raise PluginError(
      f'{checked.name_of(task)}: least_team is {shown(needed)}; must be a property that returns '
      'two whole numbers, agents and rounds.'
    )
  for (field, count), least in zip(has.items(), needed, strict=True):
    if count < least:
      raise ValueError(
        f'team.{field}: the team has {count} {field}, but task {task.name!r} with its '
        f'task.options must have {least} or more. Add some, or change task.options.'
      )
  if lacking := task.needs(team.topology):
    raise ValueError(
      f'team.topology: task {task.name!r} needs {lacking}; set another team.topology, or more '
      'team.rounds.'
    )
