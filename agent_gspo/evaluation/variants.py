"""Derives comparison teams from a team's own agents: fewer agents or other edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

from agent_gspo.teams.policies import Policy, Reply, Turn
from agent_gspo.teams.team import Team
from agent_gspo.teams.topology import Edge, Topology, make_topology
from agent_gspo.types import Question

SHAPES = ('chain', 'star', 'complete', 'debate')
"""Topologies that fit any team."""


@dataclasses.dataclass(frozen=True)
class Variant:
  """Team made of the agents of another team.

  Attributes:
    team: Derived team.
    agents: Agents of the other team: member `i` has note and policy of agent `agents[i]`.
  """

  team: Team
  agents: tuple[int, ...]

  def question(self, question: Question) -> Question:
    """Returns the question with its notes in the order of the members."""
    held = [a for a in self.agents if a < len(question.notes)]
    return dataclasses.replace(
      question,
      notes=tuple(question.notes[a] for a in held),
      relevant=tuple(question.relevant[a] for a in held if question.relevant),
    )

  def policy(self, policy: Policy) -> Policy:
    """Returns the members' policy, which calls `policy` of the other team with its indices.

    Copies of one agent draw different noise.
    """
    copies = [self.agents[:i].count(a) for i, a in enumerate(self.agents)]
    most = max(copies) + 1

    def speak(turns: Sequence[Turn]) -> list[Reply]:
      return policy(
        [
          dataclasses.replace(
            turn,
            question=self._dealt_back(turn.question),
            agent=self.agents[turn.agent],
            sample=turn.sample * most + copies[turn.agent],
            delivered={self.agents[author]: text for author, text in turn.delivered.items()},
          )
          for turn in turns
        ]
      )

    return speak

  def _dealt_back(self, question: Question) -> Question:
    """Returns the question with its notes in the order of the other team."""
    place = {agent: i for i, agent in enumerate(self.agents[: len(question.notes)])}
    dealt = range(max(place, default=-1) + 1)
    relevant = question.relevant
    return dataclasses.replace(
      question,
      notes=tuple(question.notes[place[a]] if a in place else '' for a in dealt),
      relevant=tuple(a in place and relevant[place[a]] for a in dealt if relevant),
    )


def itself(team: Team) -> Variant:
  """Returns the team unchanged, as a variant."""
  return Variant(team, tuple(range(team.num_agents)))


def self_consistency(team: Team, samples: int) -> Variant:
  """Samples the last agent alone and takes the majority answer (Wang et al., arXiv 2203.11171).

  It has neither teammates nor their notes; one sample is the single-agent baseline.
  """
  last = team.num_agents - 1
  names = tuple(f'{team.names[last]}{i + 1}' for i in range(samples))
  alone = dataclasses.replace(
    team,
    roles=team.roles[-1:] * samples,
    names=names if samples > 1 else team.names[-1:],
    topology=Topology(samples),
    decision='majority' if samples > 1 else 'last',
    max_episode_tokens=0,
    sides=(),
  )
  return Variant(alone, (last,) * samples)


def samples_at_equal_tokens(target: float, one: float) -> int:
  """Returns the number of samples of `one` tokens closest to `target` tokens, at least 1."""
  return max(1, round(target / one)) if one > 0 else 1


def rewired(team: Team, shape: str) -> Variant:
  """Returns the agents in another topology; raises the rounds of 'debate' to at least 2."""
  judge = team.decision == 'judge'
  rounds = team.topology.rounds
  if shape == 'debate':
    rounds = max(2, rounds)
  topology = make_topology(shape, team.num_agents - judge, rounds=rounds)
  topology = topology.with_judge() if judge else topology
  return itself(dataclasses.replace(team, topology=topology))


def edges(team: Team) -> tuple[Edge, ...]:
  """Returns the edges for pruning: those within a round, then (several rounds) between rounds."""
  between = team.topology.previous_round if team.topology.rounds > 1 else ()
  return (*sorted(team.topology.edges), *sorted(between))


def pruned(team: Team, kept: Collection[int], dropped: Collection[int] = ()) -> Variant:
  """Returns the team with some of its edges, without agents that cannot reach the answer.

  Args:
    team: Whole team.
    kept: Indices into `edges(team)`.
    dropped: Agents to remove in any case; never the last one.
  """
  within = len(team.topology.edges)
  chosen = [
    (edge, i < within)
    for i, edge in enumerate(edges(team))
    if i in set(kept) and not set(edge) & set(dropped)
  ]
  deciders = {team.num_agents - 1}
  if team.decision == 'majority':
    deciders = set(range(team.num_agents)) - set(dropped)
  stay = _reaching(deciders, [edge for edge, _ in chosen])
  number = {agent: i for i, agent in enumerate(sorted(stay))}
  renumber = lambda same: frozenset(
    (number[i], number[j]) for (i, j), own in chosen if own == same and i in stay and j in stay
  )
  topology = Topology(
    num_agents=len(stay),
    edges=renumber(True),
    previous_round=renumber(False),
    rounds=team.topology.rounds,
    last_round_only=frozenset(number[a] for a in team.topology.last_round_only & stay),
  )
  keep: Callable[[tuple], tuple] = lambda members: tuple(members[a] for a in sorted(stay))
  smaller = dataclasses.replace(
    team,
    roles=keep(team.roles),
    names=keep(team.names),
    topology=topology,
    sides=keep(team.sides) if team.sides else (),
  )
  return Variant(smaller, tuple(sorted(stay)))


def _reaching(deciders: set[int], chosen: Sequence[Edge]) -> set[int]:
  stay = set(deciders)
  while more := {i for i, j in chosen if j in stay} - stay:
    stay |= more
  return stay
