"""Defines a team: agents with roles, a topology and a decision rule."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.teams import addressing
from agent_gspo.teams.options import TeamOptions
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.roles import Role, make_role
from agent_gspo.teams.tools import Toolbox
from agent_gspo.teams.topology import Topology, make_topology
from agent_gspo.types import Message, Terms


@dataclasses.dataclass(frozen=True)
class Team:
  """Agents, topology and decision rule.

  Attributes:
    roles: Role of each agent.
    names: Unique name of each agent.
    topology: Reading order of the agents.
    decision: 'last' (the last agent's message is the answer), 'majority' (the most common
      answer among all agents' last messages; the earliest wins a tie) or 'judge' (an
      additional last agent).
    max_message_tokens: Cap on a message, its stop token included.
    max_episode_tokens: Cap on all messages of an episode together, 0 for none; agents of a
      layer share the remainder evenly.
    addressing: Whether messages may begin with addressees, see `teams.addressing`.
    blanked: Delivers no message to any agent (a probe).
    sides: Side of each agent; empty if all are on one side.
    tokenizers: Tokenizer of each model of `Role.model`; the others' is that of `model.source`.
      Set once models are opened.
  """

  roles: tuple[Role, ...]
  names: tuple[str, ...]
  topology: Topology
  decision: str
  max_message_tokens: int
  max_episode_tokens: int = 0
  addressing: bool = False
  blanked: bool = False
  sides: tuple[str, ...] = ()
  tokenizers: Mapping[str, Tokenizer] = dataclasses.field(default_factory=dict, compare=False)

  @property
  def num_agents(self) -> int:
    return len(self.roles)

  @property
  def others(self) -> frozenset[int]:
    """Returns the agents whose messages another model than `model.source` writes."""
    return frozenset(agent for agent, role in enumerate(self.roles) if role.model)

  @property
  def trained(self) -> dict[str, str]:
    """Returns the other models that learn: source to name, that of its first role."""
    return {role.model: role.name for role in reversed(self.roles) if role.trains}

  @property
  def hinters(self) -> frozenset[int]:
    """Returns the agents that read the gold answer."""
    return frozenset(agent for agent, role in enumerate(self.roles) if role.shows_answer)

  def written_by(self, model: str) -> frozenset[int]:
    """Returns the agents of a model, by `Role.model`."""
    return frozenset(agent for agent, role in enumerate(self.roles) if role.model == model)

  @property
  def turns(self) -> list[tuple[int, int, tuple[int, ...]]]:
    """Returns all turns of a conversation: `(round, index of the layer, agents of the layer)`."""
    return [
      (round_, place, layer)
      for round_ in range(self.topology.rounds)
      for place, layer in enumerate(self.topology.turns(round_))
    ]

  @functools.cached_property  # read at each turn
  def max_tokens(self) -> int:
    """Returns the most tokens that an episode can write."""
    by_message = sum(self.message_cap(agent) for _, _, layer in self.turns for agent in layer)
    return min(by_message, self.max_episode_tokens or by_message)

  def capped(self, most: int) -> Team:
    """Returns the team with at most `most` tokens in an episode; 0 leaves its own cap."""
    caps = [cap for cap in (most, self.max_episode_tokens) if cap]
    return dataclasses.replace(self, max_episode_tokens=min(caps, default=0))

  def tokens_left(self, spent: int) -> int:
    """Returns the most tokens an episode can still write after `spent`, stop tokens included."""
    return max(self.max_tokens - spent, 0)  # an endpoint may exceed its cap

  def told_left(self, terms: Terms | None, spent: int, written: int) -> int:
    """Returns the value of `{left}` in a cue: the rest of the question's budget, or of the caps."""
    if terms is None or terms.kind != 'budget':
      return self.tokens_left(spent)
    return max(round(terms.value) - written, 0)

  def message_cap(self, agent: int) -> int:
    """Returns the cap on an agent's messages, stop token included."""
    return min(self.roles[agent].max_tokens or self.max_message_tokens, self.max_message_tokens)

  def hearers(self, agent: int, round_: int) -> list[str]:
    """Returns the potential readers of an agent's message in a round, in the order of turns."""
    return [self.names[hearer] for hearer in self._hearers(agent, round_)]

  def readers(self, message: Message) -> list[str]:
    """Returns the readers of a message, in the order of turns."""
    hearers = self._hearers(message.agent, message.round)
    return [self.names[hearer] for hearer in hearers if message.reaches(hearer)]

  def _hearers(self, agent: int, round_: int) -> list[int]:
    found = [
      hearer
      for when, _, layer in self.turns
      for hearer in layer
      if (agent, round_) in self.topology.reads(hearer, when)
    ]
    return list(dict.fromkeys(found))

  def addressees(self, text: str) -> frozenset[int] | None:
    """Returns the agents that a message addresses; None for all potential readers."""
    if self.blanked:
      return frozenset()
    called = addressing.split(text)[0] if self.addressing else None
    if called is None:
      return None
    return frozenset(agent for agent, name in enumerate(self.names) if name in called)

  def body(self, text: str) -> str:
    """Returns a message without its addressees."""
    return addressing.split(text)[1] if self.addressing else text

  @property
  def read_by_answerer(self) -> list[tuple[int, int]]:
    """Returns author and round of each message that the last agent may read."""
    agent = self.num_agents - 1
    return [turn for r in range(self.topology.rounds) for turn in self.topology.reads(agent, r)]

  @property
  def has_tools(self) -> bool:
    """Returns whether an agent may call tools."""
    return any(role.tools for role in self.roles)

  def prompt_writers(self, tokenizer: Tokenizer) -> tuple[PromptWriter, ...]:
    """Returns the prompt writer of each agent, shared by the agents of a role."""
    writers = {role: PromptWriter(role, self._of(role, tokenizer)) for role in set(self.roles)}
    return tuple(writers[role] for role in self.roles)

  def toolboxes(self, tokenizer: Tokenizer) -> tuple[Toolbox, ...]:
    """Returns the tools of each agent, shared by the agents of a role."""
    boxes = {
      role: Toolbox(role.tools, self._of(role, tokenizer), role.tool_calls, role.tool_tokens)
      for role in set(self.roles)
    }
    return tuple(boxes[role] for role in self.roles)

  def tokenizers_of_agents(self, tokenizer: Tokenizer) -> tuple[Tokenizer, ...]:
    """Returns the tokenizer of each agent; `tokenizer` is that of the trained model."""
    return tuple(self._of(role, tokenizer) for role in self.roles)

  def _of(self, role: Role, tokenizer: Tokenizer) -> Tokenizer:
    return self.tokenizers.get(role.model, tokenizer)

  def decide(self, last_messages: Sequence[str], canonical: Callable[[str], str | None]) -> str:
    """Returns the team's answer from each agent's message in the last round."""
    if self.decision != 'majority':
      return last_messages[-1]
    votes = [(vote, text) for text in last_messages if (vote := canonical(text)) is not None]
    counts = collections.Counter(vote for vote, _ in votes)
    return max(votes, key=lambda pair: counts[pair[0]], default=('', ''))[1]


def make_team(options: TeamOptions | Mapping[str, Any]) -> Team:
  """Builds a team from the `team` section of a config, or from a dict of some of its fields.

  Raises:
    ValueError: if a field is invalid; names the field.
  """
  if not isinstance(options, TeamOptions):
    options = TeamOptions(**options)
  roles = {name: make_role(name, fields) for name, fields in options.roles.items()}
  members = list(options.agents)
  for member in members:
    if not isinstance(member, str):
      raise ValueError(f'team.agents holds {member!r}; each entry must be the name of a role.')
  topology = make_topology(
    options.topology,
    len(members),
    rounds=options.rounds,
    edges=options.edges,
    back_edges=options.back_edges,
    layers=options.layers,
    judged=options.decision == 'judge',
  )
  if options.decision == 'judge':
    members.append('judge')
    topology = topology.with_judge()
  for member in members:
    if member not in roles:
      raise ValueError(
        f'team.agents (or team.decision) names the role {member!r}, which team.roles does not '
        f'define; it defines {", ".join(sorted(roles)) or "none"}.'
      )
    if roles[member].max_tokens > options.max_message_tokens:
      raise ValueError(
        f'team.roles.{member}.max_tokens={roles[member].max_tokens} is above '
        f'team.max_message_tokens={options.max_message_tokens}, which no message may exceed. Raise '
        "team.max_message_tokens or lower the role's, where 0 means the team's."
      )
  answering = members if options.decision == 'majority' else members[-1:]
  for member in answering:
    if roles[member].shows_answer:
      raise ValueError(
        f'team.roles.{member}.opening={roles[member].opening!r} shows the gold answer to an agent '
        'that answers. Remove {answer}, or let another agent answer.'
      )
  names = unique_names(members)
  if len(set(names)) < len(names):
    raise ValueError(f'team.agents has repeated names: {", ".join(names)}; rename a role.')
  if options.addressing:
    for name in names:
      if addressing.split(addressing.tag(name)) != ((name,), ''):
        raise ValueError(
          f'team.addressing=True needs one-word names, but one is called {name!r}; rename its role.'
        )
  return Team(
    roles=tuple(roles[member] for member in members),
    names=names,
    topology=topology,
    decision=options.decision,
    max_message_tokens=options.max_message_tokens,
    max_episode_tokens=options.max_episode_tokens,
    addressing=options.addressing,
    sides=_sides(options.sides, names),
  )


def _sides(sides: Mapping[str, Sequence[str]], names: Sequence[str]) -> tuple[str, ...]:
  """Returns the side of each agent, () without sides.

  Raises:
    ValueError: An agent is unknown, on two sides or on none, or there is one side only.
  """
  found: dict[str, str] = {}
  for side, members in sides.items():
    if isinstance(members, str) or not isinstance(members, Sequence) or not members:
      raise ValueError(f'team.sides.{side}={members!r} must be a tuple of names of agents.')
    for member in members:
      if member not in names:
        raise ValueError(f'team.sides.{side} names {member!r}; the agents are {", ".join(names)}.')
      if member in found:
        raise ValueError(
          f'team.sides.{side} names {member!r}, which is on side {found[member]!r} too; name each '
          'agent once.'
        )
      found[member] = side
  if len(sides) == 1 or (sides and len(found) < len(names)):
    left = ', '.join(name for name in names if name not in found) or 'nobody'
    raise ValueError(
      f'team.sides={dict(sides)} leaves {left} without a side; give two or more sides that '
      'have all agents, or none.'
    )
  return tuple(found[name] for name in names) if sides else ()


def unique_names(members: Sequence[str]) -> tuple[str, ...]:
  """Makes names unique: two 'informant' become 'informant1' and 'informant2'."""
  seen: collections.Counter[str] = collections.Counter()
  total, names = collections.Counter(members), []
  for member in members:
    seen[member] += 1
    names.append(member if total[member] == 1 else f'{member}{seen[member]}')
  return tuple(names)
