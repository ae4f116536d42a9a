"""Defines the `reward` section of a config."""

from __future__ import annotations

import dataclasses

from agent_gspo.options import Section, option
from agent_gspo.rewards import length_rewards
from agent_gspo.values import is_number, shown

COSTS = ('tokens', 'critical_path', 'money')
GATES = ('always', 'correct', 'group_accuracy', 'top_groups')
CREDITS = ('own_cost', 'episode')
SCORES = ('task', 'vote', 'weighted_vote', 'consistency', 'collective_vote', 'tournament')


@dataclasses.dataclass(frozen=True)
class RewardOptions(Section, name='reward'):
  """Definition of cost and when it is charged; the section `budget` sets the price.

  The cost is also the unit of the budgets: 'tokens' counts tokens written with the default
  prices, and tokens read by others with `p_write=0, p_read=1`.

  Attributes:
    score: Score of an episode in training, see `scores`. task: by the task's labels; vote: 1 for
      the answer that most episodes of the question give; weighted_vote: votes weighed by the
      probability of their tokens; consistency: share of the episodes with the same answer;
      collective_vote: each agent's answer alone, by the weighted vote of all agents;
      tournament: share of them that are beaten, right first, then cheaper, without a price. Gates
      read it too.
    cost: tokens: `p_write * written + p_read * written * readers + p_tool * inserted`;
      critical_path: only the longest message of each layer pays for what it wrote; money: prices
      per million tokens, where inserted tokens are also read ones.
    p_write: Price of a written token.
    p_read: Price of a token each time it is read.
    p_tool: Price of a token that a tool inserts, paid once by its caller.
    gate: Where prices and the length reward apply. always; correct: episodes that solved the task;
      group_accuracy: questions whose group reaches gate_accuracy; top_groups: the gate_fraction of
      the questions that are answered best. A price charged always drives teams that are often wrong
      into silence (docs/results/ablations.md).
    gate_accuracy: Share of right answers that opens the gate.
    gate_fraction: Share of a step's questions, for top_groups.
    credit: own_cost: the team's task score, a message's own cost; episode: every message is
      credited with the whole episode.
    payers: Names of the agents that pay prices and get the length reward, such as those of one
      side; the messages of others cost nothing. Empty: all.
    prices: Agent -> price of its tokens relative to those of others, such as those of a dearer
      model; 1 by default.
    discount: Factor on an environment's rewards for each further turn of their agent.
    length_reward: Further term that depends on the length of the episode: one of `LENGTH_REWARDS`,
      or 'module:function'. linear: none, the price alone.
    length_reward_options: Options of the length reward: 'target=20, weight=0.5'.
  """

  score: str = option('task', choices=SCORES)
  cost: str = option('tokens', choices=COSTS)
  p_write: float = option(1.0, least=0)
  p_read: float = option(0.0, least=0)
  p_tool: float = option(0.0, least=0)
  gate: str = option('group_accuracy', choices=GATES)
  gate_accuracy: float = option(0.5, least=0, most=1)
  gate_fraction: float = option(0.2, above=0, most=1)
  credit: str = option('own_cost', choices=CREDITS)
  payers: tuple = ()
  prices: dict = dataclasses.field(default_factory=dict)
  discount: float = option(1.0, least=0, most=1)
  length_reward: str = 'linear'
  length_reward_options: str = ''

  def __post_init__(self):
    super().__post_init__()
    if wrong := [x for x in self.prices.values() if not is_number(x) or x < 0]:
      raise ValueError(f'reward.prices holds {shown(wrong[0])}; must be numbers, 0 or more.')
    given = self.length_reward_arguments
    fewest = length_rewards.defaults(self.length_reward).get('min_tokens')
    if self.cost == 'money' and fewest is not None and 'min_tokens' not in given:
      raise ValueError(
        f"reward.length_reward={self.length_reward!r} with reward.cost='money': its "
        f'min_tokens={fewest:g} would count money. Set the lowest cost of an episode: '
        "reward.length_reward_options='min_tokens=...'."
      )

  def pays(self, name: str) -> bool:
    """Returns whether an agent pays prices, see `payers`."""
    return not self.payers or name in self.payers

  @property
  def length_reward_arguments(self) -> dict[str, float]:
    """Returns `length_reward_options`, parsed."""
    return length_rewards.parse_options(self.length_reward, self.length_reward_options)

  @property
  def needs_reference(self) -> bool:
    """Returns whether the length reward reads the NLL under the reference policy."""
    return 'reference_nll' in length_rewards.read_by(self.length_reward)
