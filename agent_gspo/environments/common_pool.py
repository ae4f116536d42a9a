"""Defines the common pool: agents harvest from one stock, which grows back from what they leave.

After GovSim (arXiv 2404.16698). A month has two steps, in both of which all agents write at once
(topology 'debate', two rounds per month):

    talk : 16 left wet             what an agent observes before it may talk; one agent of the
                                   month sees how much will grow
    take : 16 left                 what it observes before it harvests
    take 2                         an action: a harvest, which all see the next month

The stock that is left grows by half of it (fair), by all of it (wet) or not at all (dry), up to
the capacity. An episode ends when less than `collapse` is there after growth; GovSim tests
before it.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping
from typing import Any

from agent_gspo.environments.drawn import DrawnWorld
from agent_gspo.options import option
from agent_gspo.teams.topology import Topology

_GROWTH = {'dry': 0, 'fair': 1, 'wet': 2}  # halves of the stock
_TAKE = re.compile(r'\btake (\d{1,4})\b', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Pool:
  """State of an episode.

  Attributes:
    stock: Units that are left.
    weather: Growth of each month.
    forecaster: Agent that sees the first month's weather; the next one sees the next month's.
    step: Steps so far, two a month.
    taken: Last harvest of each agent, () before the first one.
  """

  stock: int
  weather: tuple[str, ...]
  forecaster: int
  step: int = 0
  taken: tuple[int, ...] = ()


@dataclasses.dataclass(eq=False, kw_only=True)
class CommonPool(DrawnWorld):
  """Pools with a stock and weather of their own.

  A sustained harvest in fair weather earns an agent about 1 in an episode.

  Raises:
    ValueError: if an option is out of range.
  """

  name = 'common_pool'

  agents: int = option(4, least=1, most=20)
  capacity: int = option(24, least=2, most=999)
  collapse: int = option(4, least=1, most=999)
  months: int = option(4, least=1, most=20)
  # own: an agent earns its harvest; shared: the mean harvest; both in units of a fair share.
  rewards: str = option('own', choices=('own', 'shared'))

  def __post_init__(self):
    super().__post_init__()
    if self.collapse > self.capacity // 2:
      raise ValueError(
        f'task.options.collapse={self.collapse} must be at most half of task.options.capacity='
        f'{self.capacity}.'
      )

  @property
  def least_team(self) -> tuple[int, int]:
    """Returns the harvesting agents, and two rounds per month."""
    return self.agents, 2 * self.months

  def needs(self, topology: Topology) -> str:
    """Requires rounds of one layer, in which all write in parallel."""
    return '' if len(topology.layers) == 1 else "rounds in which all write at once, as in 'debate'"

  def draw(self, rng: random.Random, split: str) -> tuple[Pool, str, str, Pool]:
    """Draws stock, weather and forecaster."""
    stock = rng.randint(self.capacity // 2, self.capacity)
    weather = rng.choices(list(_GROWTH), k=self.months)
    pool = Pool(stock, tuple(weather), rng.randrange(self.agents))
    return pool, '', 'kept', pool

  def observe(self, state: Pool, agent: int) -> str:
    """Returns the stock; before talk also the last harvests, and for one agent the weather."""
    month, harvest = divmod(state.step, 2)
    if harvest:
      return f'take : {state.stock} left'
    told = ['talk :', *map(str, state.taken), f'{state.stock} left']
    if agent == (state.forecaster + month) % self.agents:
      told.append(state.weather[month])
    return ' '.join(told)

  def act(
    self, state: Pool, texts: Mapping[int, str]
  ) -> tuple[Pool, Mapping[int, float] | float, bool]:
    """Harvests after each second step.

    If the agents want more than the stock, it is divided in proportion, by largest remainder; ties
    go to the earlier agent.
    """
    month, harvest = divmod(state.step, 2)
    state = dataclasses.replace(state, step=state.step + 1)
    if not harvest:
      return state, {}, False
    found = [_TAKE.search(texts.get(agent, '')) for agent in range(self.agents)]
    wanted = [int(match[1]) if match else 0 for match in found]
    total = max(sum(wanted), state.stock, 1)
    taken = [want * state.stock // total for want in wanted]
    by_remainder = sorted(range(self.agents), key=lambda i: -(wanted[i] * state.stock % total))
    for agent in by_remainder[: min(sum(wanted), state.stock) - sum(taken)]:
      taken[agent] += 1
    left = state.stock - sum(taken)
    left = min(left + left * _GROWTH[state.weather[month]] // 2, self.capacity)
    state = dataclasses.replace(state, stock=left, taken=tuple(taken))
    fair = self.capacity * self.months / 3 / self.agents
    done = left < self.collapse or state.step == 2 * self.months
    if self.rewards == 'shared':
      return state, sum(taken) / self.agents / fair, done
    return state, {agent: count / fair for agent, count in enumerate(taken)}, done

  def outcome(self, state: Pool) -> str:
    """Returns whether the stock was kept to the end."""
    return 'kept' if state.stock >= self.collapse else 'collapsed'

  def demonstration(
    self, question, agent, delivered, rng, *, state, silence_probability, **_: Any
  ) -> str:
    """Writes the weather or a proposal, then a harvest near its share of a third of the stock."""
    month, harvest = divmod(state.step, 2)
    share = state.stock // (3 * self.agents)
    if harvest:
      return f'take {max(0, share + rng.choice((-1, 0, 0, 1, 1, 2)))}'
    if agent == (state.forecaster + month) % self.agents:
      return f'it will be {state.weather[month]}'
    return '' if rng.random() < silence_probability else f'let us all take {share}'

  def vocabulary(self) -> list[str]:
    """Returns the words of observations and demonstrations."""
    words = 'talk take left it will be let us all :'.split()
    return [*words, *_GROWTH, *map(str, range(self.capacity + 1))]
