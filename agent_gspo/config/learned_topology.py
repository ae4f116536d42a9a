"""`team.topology='learned:<workdir>'`: the graph that the agents of a run made, as a fixed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gspo.teams.team import make_team, unique_names
from agent_gspo.workdir import records

_PREFIX = 'learned:'
_SPEAKS = 0.05  # of the turns; who says less says nothing
_SPEAKS_TO = 0.5  # of what an author says


def resolve(section: Mapping[str, Any]) -> dict[str, Any]:
  """The `team` section with the learned graph in it as a 'dag', others as they are.

  An edge stays if its author is not silent in at least 5 % of the turns in which the reader could
  hear it, and at least half of what it says there is for this reader, in the run's newest
  evaluation.

  Args:
    section: of a config.

  Raises:
    FileNotFoundError: the folder holds no run.
    ValueError: the run has not been evaluated, or its agents are others.
  """
  name = section['topology']
  if not name.startswith(_PREFIX):
    return dict(section)
  run = records.load_run(name.removeprefix(_PREFIX))
  found = [evaluation['edges'] for evaluation in run.evaluations if evaluation.get('edges')]
  if not found or 'team' not in run.config:
    raise ValueError(
      f'team.topology={name!r}: {records.EVALUATIONS} of that run does not say who spoke to whom. '
      'Name the workdir of a run that has been evaluated, of a team with edges.'
    )
  team = make_team(run.config['team'])
  judged = section['decision'] == 'judge'
  names = unique_names([*section['agents'], *['judge'] * judged])
  strangers = {edge[end] for edge in found[-1] for end in ('author', 'reader')} - {*team.names}
  if names != team.names or strangers:
    raise ValueError(
      f'team.topology={name!r}: the agents of that run are '
      f'{", ".join([*team.names, *sorted(strangers)])}, those of team.agents {", ".join(names)}.'
    )
  kept = {
    (names.index(edge['author']), names.index(edge['reader']))
    for edge in found[-1]
    if edge['said'] >= _SPEAKS * edge['turns'] and edge['told'] >= _SPEAKS_TO * edge['said']
  }
  to_agents = {(i, j) for i, j in kept if not judged or j < len(names) - 1}
  pairs = lambda of: tuple(sorted(to_agents & of))
  return {
    **section,
    'topology': 'dag',
    'edges': pairs(team.topology.edges),
    'back_edges': pairs(team.topology.previous_round),
  }
