"""Defines the `team`, `policy` and `rollout` sections of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, check_choice, option
from agent_gspo.teams.topology import MAX_TURNS

DECISIONS = ('last', 'majority', 'judge')
SHARING = ('shared', 'adapters', 'mix')
OPPONENTS, FROZEN = ('self', 'pool'), 'frozen:'
MAX_MESSAGE_TOKENS = 2**20  # as long as the longest contexts


@dataclasses.dataclass(frozen=True)
class TeamOptions(Section, name='team'):
  """Agents of the team, topology, and caps on messages.

  Attributes:
    agents: Role of each agent.
    roles: Role name -> fields of `teams.roles.Role`.
    sides: Side -> names of the agents that play on it. Empty: all are on one side.
    topology: 'single', 'chain', 'star', 'complete', 'debate', 'layered', 'dag', or
      'module:function'; see `teams.topology.make_topology`.
    rounds: Rounds of the conversation; at most `topology.MAX_TURNS` turns together.
    edges: Of topology 'dag': (author, reader) pairs.
    back_edges: Of topology 'dag': (author, reader) pairs from one round to the next. None: `edges`
      reversed.
    layers: Of topology 'layered': sizes of the layers.
    addressing: Whether a message may begin with its addressees ('@solver 7'); other readers do not
      receive it.
    decision: Whose answer counts: the last agent's, the majority's, or that of a judge, which needs
      a role called judge.
    max_message_tokens: Cap on a message, its stop token included.
    max_episode_tokens: Hard cap on all messages of an episode together, 0 for none.
  """

  agents: tuple = ('solver',)
  roles: dict = dataclasses.field(default_factory=dict)
  sides: dict = dataclasses.field(default_factory=dict)
  topology: str = 'single'
  rounds: int = option(1, least=1)
  edges: tuple = ()
  back_edges: tuple | None = None
  layers: tuple = ()
  addressing: bool = False
  decision: str = option('last', choices=DECISIONS)
  max_message_tokens: int = option(32, least=1, most=MAX_MESSAGE_TOKENS)
  max_episode_tokens: int = option(0, least=0, most=MAX_MESSAGE_TOKENS * MAX_TURNS)


@dataclasses.dataclass(frozen=True)
class PolicyOptions(Section, name='policy'):
  """Parameter sharing between agents, frozen agents and learning rates.

  Attributes:
    sharing: shared: one policy for all agents; adapters: one LoRA adapter for each; mix: the base
      model for frozen agents and one LoRA adapter for each other agent.
    frozen: Names of agents that RL does not train (with 'adapters', SFT does).
    learning_rates: One for each agent, ignored for frozen ones; 0: an adapter that is not trained.
      Empty: `learner.learning_rate` for all.
  """

  sharing: str = option('shared', choices=SHARING)
  frozen: tuple = ()
  learning_rates: tuple = ()

  @property
  def rate_field(self) -> str:
    """Returns the name of the config field that sets the learning rates."""
    return 'policy.learning_rates' if self.learning_rates else 'learner.learning_rate'


@dataclasses.dataclass(frozen=True)
class RolloutOptions(Section, name='rollout'):
  """Questions and episodes of a training step.

  Attributes:
    questions: Questions of a training step (B).
    group_size: Episodes of a question (G).
    branches: Candidates for each step of an environment, compared with one another; the episode
      goes on from one of those that earn most (AT-GRPO's tree, arXiv 2510.11062). 1: no tree.
    temperature: Sampling temperature in training.
    must_speak: Episodes of each group in which one message, drawn from those that others read, may
      not be silent, see `teams.exploration`. Metrics of training steps include these episodes.
    parts: Parts of the questions: while the device decodes one, the host prepares and grades the
      others. 0: two on an accelerator if each still fills its decode batches, else one. Results
      differ by rounding only.
    ahead: Steps that rollouts run ahead of the updates, in a thread of their own, with weights at
      most that many steps old. Each takes the memory of the trained parameters. 0: no thread; the
      weights are the newest.
    schedule: fixed: with weights exactly `ahead` steps old (at first those of the start), so that
      the run can be repeated. free: the newest weights write each layer, of episodes under way too.
      They take the memory of at most two copies, three with tools; a save waits for no rollouts.
    replay: Groups with unequal task scores to remember. Where a new group's scores tie, the update
      adds remembered episodes, see `training.replay`. 0: none.
    replay_age: Steps after which the weights that wrote a remembered episode are too old for it.
    share: Folder through which runs with other seeds exchange episodes, see `training.exchange`.
      Empty: none.
    shared: Most groups of other runs that a step adds to its update.
    engine: Server that samples the training rollouts, 'http://host:port/v1#name', see
      `teams.engine`; evaluations are sampled here. Empty: none.
    publish: 'module:function' that gives the engine new weights: called with the parameters, nested
      float32 arrays without adapters, and the step, before rollouts use them. Empty: that of
      `launch/serve.py --engine`.
    opponents: Policies of the sides that do not learn. self: none, all sides learn; pool: copies
      of the trained parameters from earlier steps; frozen:WORKDIR: the newest checkpoint of another
      run when this one starts. The side that learns alternates over the questions of a step, which
      have one member of the pool each. Each member takes the memory of the trained parameters.
    opponent_share: Share of a step's questions with opponents; in the others all sides learn. 0.2
      is common: best responses to past copies alone lag, and play cycles.
    pool_every: pool: steps between two copies; the parameters at the start are the first one.
    pool_size: pool: newest copies to keep.
  """

  questions: int = option(8, least=1, most=10**5)
  group_size: int = option(8, least=1, most=10**4)
  branches: int = option(1, least=1, most=1000)
  temperature: float = option(1.0, above=0)
  must_speak: int = option(0, least=0)
  parts: int = option(0, least=0, most=64)
  ahead: int = option(0, least=0, most=64)
  schedule: str = option('fixed', choices=('fixed', 'free'))
  replay: int = option(0, least=0, most=10**4)
  replay_age: int = option(1, least=1, most=1000)
  share: str = ''
  shared: int = option(8, least=1, most=10**5)
  engine: str = ''
  publish: str = ''
  opponents: str = 'self'
  opponent_share: float = option(1.0, above=0, most=1)
  pool_every: int = option(10, least=1, most=10**7)
  pool_size: int = option(4, least=1, most=1000)

  def __post_init__(self):
    super().__post_init__()
    if not self.opponents_run:
      check_choice('rollout.opponents', self.opponents, (*OPPONENTS, f'{FROZEN}WORKDIR'))
    if self.schedule == 'free' and not self.ahead:
      raise ValueError(
        "rollout.schedule='free' with rollout.ahead=0: no rollout runs ahead. Set rollout.ahead=1 "
        "or more, or rollout.schedule='fixed'."
      )
    if self.replay and self.replay_age <= self.ahead:
      raise ValueError(
        f'rollout.replay_age={self.replay_age} must be above rollout.ahead={self.ahead}: new '
        f'episodes are that old. Set rollout.replay_age={self.ahead + 1} or more.'
      )
    if self.publish and not self.engine:
      raise ValueError(
        f"rollout.publish={self.publish!r} without rollout.engine: set rollout.publish=''."
      )
    if self.engine and (self.opponents != 'self' or self.must_speak):
      raise ValueError(
        f'rollout.engine={self.engine!r} with rollout.opponents={self.opponents!r} and '
        f'rollout.must_speak={self.must_speak}: a server has one set of weights and cannot mask '
        "tokens. Set rollout.opponents='self' and rollout.must_speak=0, or rollout.engine=''."
      )
    alone = {'opponents': 'self', 'branches': 1}
    with_share = {**alone, 'must_speak': 0, 'replay': 0}
    for field, others in (('must_speak', alone), ('replay', alone), ('share', with_share)):
      if not (own := getattr(self, field)):
        continue
      for other, needed in others.items():
        if (value := getattr(self, other)) != needed:
          raise ValueError(
            f'rollout.{field}={own!r} with rollout.{other}={value!r}: it needs episodes of one '
            f'policy, with one message a turn. Set rollout.{field}={type(own)()!r} or '
            f'rollout.{other}={needed!r}.'
          )

  @property
  def opponents_run(self) -> str:
    """Returns the workdir that frozen opponents come from, '' for others."""
    return self.opponents.removeprefix(FROZEN) if self.opponents.startswith(FROZEN) else ''

  @property
  def pool_members(self) -> int:
    """Returns the sets of parameters that the state keeps for opponents."""
    return {'self': 0, 'pool': self.pool_size}.get(self.opponents, 1)
