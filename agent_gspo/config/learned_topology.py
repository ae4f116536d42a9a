"""Resolves `team.topology='learned:<workdir>'` to the graph that agents of a run converged to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from agent_gspo.teams.options import TeamOptions
from agent_gspo.teams.team import Team, make_team, unique_names
from agent_gspo.workdir import disk, records

_PREFIX = 'learned:'
_SPEAKS = 0.05  # least share of turns with a message
_SPEAKS_TO = 0.5  # least share of an author's messages that address the reader


def resolve(options: TeamOptions) -> TeamOptions:
  """Returns the `team` section with a learned graph as a 'dag'; other topologies are unchanged.

  An edge stays if its author is not silent in at least 5 % of the turns that the reader can
  read, and addresses at least half of these messages to the reader, in the evaluation chosen by
  `records.with_edges` (the trained team's if there is one). A judge reads everybody.

  Args:
    options: Section `team` of the config.

  Raises:
    FileNotFoundError: The folder holds no run.
    ValueError: No folder of this machine is named, the run has not been evaluated, its config.json
      describes no team, or its agents differ.
  """
  name = options.topology
  if not name.startswith(_PREFIX):
    return options
  folder = name.removeprefix(_PREFIX)
  if not folder.strip():  # else it would be the working directory
    raise ValueError(
      f'team.topology={name!r} has no folder: name the workdir of a run after the colon.'
    )
  try:
    run = records.load_run(disk.folder(folder, 'team.topology'))
  except FileNotFoundError as error:
    raise FileNotFoundError(f'team.topology={name!r}: {error}') from error
  evaluation = records.with_edges(run.evaluations)
  if evaluation is None or 'team' not in run.config:
    raise ValueError(
      f'team.topology={name!r}: {records.EVALUATIONS} of that run has no evaluation with edges. '
      'Name the workdir of a run that has been evaluated, of a team with edges.'
    )
  team, edges = _team(run, name), evaluation['edges']
  judged = options.decision == 'judge'
  names = unique_names([*options.agents, *['judge'] * judged])
  strangers = {edge[end] for edge in edges for end in ('author', 'reader')} - {*team.names}
  if names != team.names or strangers:
    raise ValueError(
      f'team.topology={name!r}: the agents of that run are '
      f'{", ".join([*team.names, *sorted(strangers)])}, those of team.agents {", ".join(names)}.'
    )
  kept = {
    (names.index(edge['author']), names.index(edge['reader']))
    for edge in edges
    if edge['said'] >= _SPEAKS * edge['turns'] and edge['told'] >= _SPEAKS_TO * edge['said']
  }
  to_agents = {(i, j) for i, j in kept if not judged or j < len(names) - 1}
  pairs = lambda of: tuple(sorted(to_agents & of))
  return dataclasses.replace(
    options,
    topology='dag',
    edges=pairs(team.topology.edges),
    back_edges=pairs(team.topology.previous_round),
  )


def _team(run: records.Run, name: str) -> Team:
  """Returns the other run's team; errors name that run's config.json."""
  section = run.config.get('team')
  try:
    if not isinstance(section, Mapping):
      raise ValueError(f'team={section!r} must be a section of fields.')
    return make_team(section)
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'team.topology={name!r}: {run.workdir / records.CONFIG} has no valid team: {error}'
    ) from error
