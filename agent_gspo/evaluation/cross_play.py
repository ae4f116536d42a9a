"""Evaluates teams whose agents were trained in different runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from agent_gspo.teams.policies import Policy, Reply, Turn, divided


@dataclasses.dataclass(frozen=True)
class CrossPlay:
  """A policy under which some agents are played by another policy.

  Attributes:
    policy: Policy of the other agents.
    partner: Policy of `agents`.
    agents: Indices of the partner's agents.
  """

  policy: Policy
  partner: Policy
  agents: Collection[int]

  def __call__(self, turns: Sequence[Turn]) -> list[Reply]:
    policies = {False: self.policy, True: self.partner}
    return divided(turns, lambda turn: turn.agent in self.agents, policies)


def partner_agents(names: Sequence[str], chosen: Sequence[str]) -> tuple[int, ...]:
  """Returns the indices of the `chosen` agents, which a partner plays.

  Raises:
    ValueError: None is chosen, or one is no agent of the team.
  """
  unknown = [name for name in chosen if name not in names]
  if unknown or not chosen:
    raise ValueError(
      f'--partner_agents={",".join(chosen)}: must name agents of the team that --partner plays; '
      f'there are {", ".join(names)}.'
    )
  return tuple(names.index(name) for name in chosen)
