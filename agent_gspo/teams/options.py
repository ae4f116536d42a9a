"""Defines the `team`, `policy` and `rollout` sections of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option
from agent_gspo.teams.topology import MAX_TURNS

DECISIONS = ('last', 'majority', 'judge')
SHARING = ('shared', 'adapters', 'mix')
MAX_MESSAGE_TOKENS = 2**20  # as long as the longest contexts


@dataclasses.dataclass(frozen=True)
class TeamOptions(Section, name='team'):
  """Agents of the team, topology, and caps on messages."""

  agents: tuple = ('solver',)  # the role of each agent
  roles: dict = dataclasses.field(default_factory=dict)  # name -> fields of teams.roles.Role
  role_set: str = ''  # 'module:NAME', a dict of further roles as `roles` is
  topology: str = 'single'  # see teams.topology.make_topology
  rounds: int = option(1, least=1)  # at most topology.MAX_TURNS turns together
  edges: tuple = ()  # of topology 'dag': (author, reader) pairs
  # Of topology 'dag': (author, reader) pairs from one round to the next. None: `edges` reversed.
  back_edges: tuple | None = None
  layers: tuple = ()  # of topology 'layered': sizes
  # A message may begin with its addressees ('@solver 7'); other readers do not receive it.
  addressing: bool = False
  decision: str = option('last', choices=DECISIONS)  # judge needs a role called judge
  # Cap on a message, its stop token included.
  max_message_tokens: int = option(32, least=1, most=MAX_MESSAGE_TOKENS)
  # Hard cap on all messages of an episode together, 0 for none.
  max_episode_tokens: int = option(0, least=0, most=MAX_MESSAGE_TOKENS * MAX_TURNS)


@dataclasses.dataclass(frozen=True)
class PolicyOptions(Section, name='policy'):
  """Parameter sharing between agents, frozen agents and learning rates."""

  # One policy for all agents (shared), one LoRA adapter for each (adapters), or the base model
  # for frozen agents and one LoRA adapter for each other agent (mix).
  sharing: str = option('shared', choices=SHARING)
  # Names of agents that RL does not train (with 'adapters', SFT does).
  frozen: tuple = ()
  # One for each agent, ignored for frozen ones; 0: an adapter that is not trained. Empty:
  # learner.learning_rate for all.
  learning_rates: tuple = ()

  @property
  def rate_field(self) -> str:
    """Returns the name of the config field that sets the learning rates."""
    return 'policy.learning_rates' if self.learning_rates else 'learner.learning_rate'


@dataclasses.dataclass(frozen=True)
class RolloutOptions(Section, name='rollout'):
  """Questions and episodes of a training step."""

  questions: int = option(8, least=1, most=10**5)  # a step (B)
  group_size: int = option(8, least=1, most=10**4)  # episodes a question (G)
  temperature: float = option(1.0, above=0)
  # Parts of the questions: while the device decodes one, the host prepares and grades the others.
  # 0: two on an accelerator if each still fills its decode batches, else one. Results differ by
  # rounding only.
  parts: int = option(0, least=0, most=64)
