"""Defines topologies: a directed acyclic graph within a round, and edges between rounds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterable, Sequence

from agent_gspo import plugins
from agent_gspo.values import is_whole

Edge = tuple[int, int]
TOPOLOGIES = ('single', 'chain', 'star', 'complete', 'debate', 'layered', 'dag')
# Far more than fits into a context; larger values are mistakes, and too slow to check.
MAX_AGENTS, MAX_TURNS = 100, 1000


@dataclasses.dataclass(frozen=True)
class Topology:
  """Reading order of a team.

  Attributes:
    num_agents: Number of agents, `0 .. num_agents - 1`.
    edges: Acyclic pairs `(i, j)`: `j` reads what `i` wrote in the same round.
    previous_round: Pairs `(i, j)`: `j` reads what `i` wrote in the round before.
    rounds: Turns of each agent.
    last_round_only: Agents that take a turn in the last round only (a judge).
  """

  num_agents: int
  edges: frozenset[Edge] = frozenset()
  previous_round: frozenset[Edge] = frozenset()
  rounds: int = 1
  last_round_only: frozenset[int] = frozenset()

  def __post_init__(self):
    # Python ints: a user's NumPy integers could not be written as JSON.
    whole, put = operator.index, functools.partial(object.__setattr__, self)
    put('num_agents', whole(self.num_agents))
    put('rounds', whole(self.rounds))
    put('last_round_only', frozenset(map(whole, self.last_round_only)))
    for field in ('edges', 'previous_round'):
      put(field, frozenset((whole(i), whole(j)) for i, j in getattr(self, field)))
    if self.num_agents < 1 or self.rounds < 1:
      raise ValueError(
        f'{self.num_agents} agents (team.agents) and team.rounds={self.rounds}: a team needs at '
        'least one of each.'
      )
    for field, edges in (('edges', self.edges), ('back_edges', self.previous_round)):
      for i, j in sorted(edges):
        if i == j or not (0 <= i < self.num_agents and 0 <= j < self.num_agents):
          raise ValueError(
            f'team.{field}: ({i}, {j}) must join two of the agents 0..{self.num_agents - 1}.'
          )
    if strangers := sorted(self.last_round_only - set(range(self.num_agents))):
      raise ValueError(
        f'last_round_only={strangers} must be among agents 0..{self.num_agents - 1}.'
      )
    _ = self.layers  # a cycle is an error
    if twice := sorted(self.edges & self.previous_round):
      raise ValueError(f'{twice} are read in the same round and again in the next one.')

  @functools.cached_property
  def layers(self) -> tuple[tuple[int, ...], ...]:
    """Returns agents in topological order; those of a layer do not read one another.

    Raises:
      ValueError: if the edges close a cycle.
    """
    left = set(range(self.num_agents))
    layers = []
    while left:
      waiting = {j for i, j in self.edges if i in left}
      ready = tuple(sorted(left - waiting))
      if not ready:
        raise ValueError(
          f'team.edges close a cycle through the agents {sorted(left)}; in a round an agent '
          'reads only those before it. Use more rounds for talk in both directions.'
        )
      layers.append(ready)
      left -= set(ready)
    return tuple(layers)

  def turns(self, round_: int) -> tuple[tuple[int, ...], ...]:
    """Returns the layers of a round, with the agents that take a turn in it."""
    return self.layers if round_ == self.rounds - 1 else self._early_layers

  @functools.cached_property
  def _early_layers(self) -> tuple[tuple[int, ...], ...]:
    layers = (tuple(a for a in layer if a not in self.last_round_only) for layer in self.layers)
    return tuple(layer for layer in layers if layer)

  def reads(self, agent: int, round_: int) -> tuple[tuple[int, int], ...]:
    """Returns the unread messages of an agent's turn as `(author, round)`, oldest first."""
    before = self._authors[1].get(agent, ()) if round_ else ()
    now = self._authors[0].get(agent, ())
    return tuple((i, round_ - 1) for i in before) + tuple((i, round_) for i in now)

  @functools.cached_property
  def _authors(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Returns the authors each agent reads within a round and from the round before, in order."""
    found: tuple[dict, dict] = ({}, {})
    place = {agent: n for n, agent in enumerate(itertools.chain(*self.layers))}
    for authors, edges in zip(found, (self.edges, self.previous_round), strict=True):
      for i, j in sorted(edges, key=lambda edge: place[edge[0]]):
        authors.setdefault(j, []).append(i)
    return found

  def readers(self, agent: int, round_: int) -> int:
    """Counts the later turns whose prompt contains an agent's message of a round.

    Transcripts are append-only: all later prompts of a message's readers and of its author
    contain it.
    """
    turns = [(r, a) for r in range(round_, self.rounds) for layer in self.turns(r) for a in layer]
    holders, count = set(), 0
    for r, reader in turns:
      if reader in holders or (agent, round_) in self.reads(reader, r):
        holders.add(reader)
        count += 1
      if (r, reader) == (round_, agent):
        holders.add(agent)
    return count

  def with_judge(self) -> Topology:
    """Adds one last agent, which reads each agent's last message."""
    judge = self.num_agents
    return dataclasses.replace(
      self,
      num_agents=judge + 1,
      edges=self.edges | {(i, judge) for i in range(judge)},
      last_round_only=self.last_round_only | {judge},
    )


def make_topology(
  name: str,
  num_agents: int,
  *,
  rounds: int = 1,
  edges: Iterable[Sequence[int]] = (),
  back_edges: Iterable[Sequence[int]] | None = None,
  layers: Sequence[int] = (),
  judged: bool = False,
) -> Topology:
  """Builds a topology by name.

  - 'single': one agent.
  - 'chain': each reads the one before it.
  - 'star': the last agent reads all others, who do not read one another.
  - 'complete': each reads all before it.
  - 'debate': no agent reads within a round, each reads all others' messages of the one before.
  - 'layered': `layers` gives the sizes of the layers; each reads the whole layer before.
  - 'dag': `edges` as given, and between rounds `back_edges`.
  - 'learned:<workdir>': see `config.learned_topology`, which makes it a 'dag'.
  - 'module:function': your own, called with `num_agents` and `rounds`, returns a `Topology`.

  From the second round on, all but debate (and a dag with back edges of its own) reverse the edges
  between rounds: authors read what their readers wrote in the round before. No agent reads
  a message twice. A dag needs an edge, unless `judged`: see `Topology.with_judge`.

  Raises:
    ValueError: if the name is unknown, or arguments do not fit it.
  """
  plugins.check_name('team.topology', name, TOPOLOGIES)
  for field, given in (('edges', edges), ('back_edges', back_edges)):
    if given and name != 'dag':
      raise ValueError(f'team.{field} is for team.topology="dag"; {name!r} makes its own edges.')
  if layers and name != 'layered':
    raise ValueError(f'team.layers is for team.topology="layered", not {name!r}.')
  n = num_agents
  if n > MAX_AGENTS or n * rounds > MAX_TURNS:
    raise ValueError(
      f'team.agents names {n} and team.rounds={rounds}: a team has at most {MAX_AGENTS} agents and '
      f'takes at most {MAX_TURNS} turns in a conversation. Lower team.rounds.'
    )
  if plugins.is_plugin(name):
    return _own(name, n, rounds)
  if name == 'single':
    if n != 1:
      raise ValueError(f'team.topology="single" has one agent, but team.agents names {n}.')
    return Topology(1, rounds=rounds)
  if name == 'debate':
    everybody = frozenset((i, j) for i in range(n) for j in range(n) if i != j)
    return Topology(n, previous_round=everybody, rounds=rounds)
  if name == 'complete':
    forward = frozenset((i, j) for j in range(n) for i in range(j))
  elif name == 'chain':
    forward = frozenset((i, i + 1) for i in range(n - 1))
  elif name == 'star':
    forward = frozenset((i, n - 1) for i in range(n - 1))
  elif name == 'layered':
    forward = _layered(layers, n)
  else:
    forward = _pairs('edges', edges)
    if n > 1 and not (forward or (back_edges and rounds > 1) or judged):
      raise ValueError(
        f"team.edges=() with team.topology='dag' and team.rounds={rounds}: no agent reads another. "
        'Give (author, reader) pairs of agent numbers, such as ((0, 1),).'
      )
  back = frozenset((j, i) for i, j in forward)
  if back_edges is not None:
    back = _pairs('back_edges', back_edges)
  return Topology(n, forward, back, rounds)


def _pairs(field: str, edges: Iterable[Sequence[int]]) -> frozenset[Edge]:
  for edge in edges:
    pair = isinstance(edge, list | tuple) and len(edge) == 2
    if not pair or not all(map(is_whole, edge)):
      raise ValueError(f'team.{field}: {edge!r} must be agent numbers (author, reader).')
  return frozenset((i, j) for i, j in edges)


def _own(name: str, num_agents: int, rounds: int) -> Topology:
  """Returns a user function's topology, checked for the number of agents and rounds."""
  function = plugins.load_function(name, 'team.topology')
  where = f'team.topology={name!r}, called with num_agents={num_agents} and rounds={rounds}'
  with plugins.guard(where, name.partition(':')[0]):
    made = function(num_agents=num_agents, rounds=rounds)
  if not isinstance(made, Topology):
    raise ValueError(f'team.topology={name!r} returned {type(made).__name__}, not a Topology.')
  if (made.num_agents, made.rounds) != (num_agents, rounds):
    raise ValueError(
      f'team.topology={name!r} returned {made.num_agents} agents and {made.rounds} rounds; '
      f'team.agents and team.rounds ask for {num_agents} and {rounds}.'
    )
  return made


def _layered(sizes: Sequence[int], num_agents: int) -> frozenset[Edge]:
  if not all(map(is_whole, sizes)) or sum(sizes) != num_agents or min(sizes, default=0) < 1:
    raise ValueError(
      f'team.layers={tuple(sizes)} must be positive sizes that add up to the {num_agents} '
      'agents of team.agents.'
    )
  bounds = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
  return frozenset(
    (i, j)
    for k in range(1, len(sizes))
    for i in range(bounds[k - 1], bounds[k])
    for j in range(bounds[k], bounds[k + 1])
  )
