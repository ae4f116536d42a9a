"""The `team`, `policy` and `rollout` sections of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option
from agent_gspo.teams.topology import MAX_TURNS

DECISIONS = ('last', 'majority', 'judge')
SHARING = ('shared', 'adapters', 'mix')
MAX_MESSAGE_TOKENS = 2**20  # as long as the longest contexts


@dataclasses.dataclass(frozen=True)
class TeamOptions(Section, name='team'):
  """Who is in the team, who reads whom, and how long messages may be."""

  agents: tuple = ('solver',)  # the role of each agent
  roles: dict = dataclasses.field(default_factory=dict)  # name -> fields of teams.roles.Role
  role_set: str = ''  # 'module:NAME', a dict of further roles as `roles` is
  topology: str = 'single'  # see teams.topology.make_topology
  rounds: int = option(1, least=1)  # at most topology.MAX_TURNS turns together
  edges: tuple = ()  # of topology 'dag': (author, reader) pairs
  # Of topology 'dag': pairs whose reader reads what the author wrote in the round before. None:
  # the edges the other way round.
  back_edges: tuple | None = None
  layers: tuple = ()  # of topology 'layered': sizes
  # A message may begin with the agents it is for ('@solver 7'); others who could hear it do not.
  addressing: bool = False
  decision: str = option('last', choices=DECISIONS)  # judge needs a role called judge
  # Cap on a message, its stop token included.
  max_message_tokens: int = option(32, least=1, most=MAX_MESSAGE_TOKENS)
  # Hard cap on an episode's messages together, 0 for none.
  max_episode_tokens: int = option(0, least=0, most=MAX_MESSAGE_TOKENS * MAX_TURNS)


@dataclasses.dataclass(frozen=True)
class PolicyOptions(Section, name='policy'):
  """Which agents share a policy, and which of them learn."""

  # All agents are one policy (shared), each has a LoRA of its own (adapters), or the frozen ones
  # are the base model and each other one has a LoRA (mix).
  sharing: str = option('shared', choices=SHARING)
  # Names of agents that RL leaves as they are (those of 'adapters' learn in the supervised stage).
  frozen: tuple = ()
  # One an agent, not read for frozen ones; with 0 it has an adapter that does not learn. Empty:
  # learner.learning_rate for all.
  learning_rates: tuple = ()

  @property
  def rate_field(self) -> str:
    """The field of the config that the learning rates are taken from."""
    return 'policy.learning_rates' if self.learning_rates else 'learner.learning_rate'


@dataclasses.dataclass(frozen=True)
class RolloutOptions(Section, name='rollout'):
  """How many conversations a training step holds."""

  questions: int = option(8, least=1, most=10**5)  # a step (B)
  group_size: int = option(8, least=1, most=10**4)  # episodes a question (G)
  temperature: float = option(1.0, above=0)
  # Of the questions: while a device writes for one part, the host prepares and grades the others.
  # 0: two on an accelerator, where each still fills its decode batches, else one. Results depend on
  # it by rounding alone.
  parts: int = option(0, least=0, most=64)
