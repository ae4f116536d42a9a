"""Defines the memory environment: visits bring facts, then a question asks for some of them.

After CoMAM (Collaborative Reinforcement Learning Framework for Multi-Agent Memory Systems, arXiv
2603.12631), which adds local rewards and a weighted global one; `rewards` here is either. Three
agents act in sequence, and only notes persist between visits:

    Ann has 3 pens .                  what agent 0 observes in a visit: a fact, or chatter
    please note that Ann has 3        its message is kept as one note, silence as none
    look for Ann and Kim               agent 1 reads the question; notes that name one of the
                                        owners in its message are found
    the answer is 7 .                   agent 2 observes the notes that were found

`team.rounds` must be at least the number of visits.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence

from agent_gspo.environments.base import takes_turns
from agent_gspo.environments.drawn import OWNERS, NumberWorld
from agent_gspo.options import option
from agent_gspo.tasks.grading.numeric import grade_number
from agent_gspo.tasks.relay import grammar
from agent_gspo.tasks.relay.script import facts_in
from agent_gspo.teams.topology import Topology

_SCRIBE, _FINDER, _SOLVER = range(3)
_NOTES = ('{} .', 'please note that {} .', 'I was told that {} , and I think that we may need it .')
_SEARCHES = ('look for {}', 'please look for {}', 'I think that we need the notes of {} .')
_ANSWERS = ('the answer is {1} .', 'I see {0} in the notes , so the answer is {1} .')


@dataclasses.dataclass(frozen=True)
class Visits:
  """State of an episode.

  Attributes:
    visits: What the scribe sees in each visit.
    facts: Count of each owner of a fact, in digits.
    asked: Owners that the question asks for.
    step: Steps so far: a visit each, the search, the answer.
    notes: Notes that are kept.
    found: Notes that the search has found.
    answer: Text of the solver.
  """

  visits: tuple[str, ...]
  facts: Mapping[str, str]
  asked: tuple[str, ...]
  step: int = 0
  notes: tuple[str, ...] = ()
  found: tuple[str, ...] = ()
  answer: str = ''

  @property
  def agent(self) -> int:
    """Returns the agent whose turn it is."""
    return max(_SCRIBE, self.step - len(self.visits) + 1)

  def told(self, notes: Sequence[str]) -> dict[str, str]:
    """Returns the count that notes give each owner; the last note about an owner counts."""
    return {owner: n for note in notes for owner, n in facts_in(note, self.facts).items()}

  def share(self, notes: Sequence[str], of: Sequence[str]) -> float:
    """Returns the share of the owners `of` whose count the notes have; 0 of none."""
    told = self.told(notes)
    return sum(told.get(owner) == self.facts[owner] for owner in of) / max(len(of), 1)


@dataclasses.dataclass(eq=False, kw_only=True)
class Memory(NumberWorld):
  """Environment with visits, notes, a search and an answer.

  Raises:
    ValueError: if an option is out of range.
  """

  name = 'memory'

  facts: int = option(3, least=1, most=10)  # facts of an episode, one a visit
  asked: int = option(1, least=1, most=10)  # facts that the question asks for
  chatter: int = option(1, least=0, most=20)  # visits without a fact
  max_count: int = option(5, least=1, most=1000)  # counts of facts are 1 .. max_count
  # shared: each agent earns 1 for the right answer. own: the scribe earns the share of the asked
  # facts that its notes have, the finder the share of those that it has found, the solver 1.
  rewards: str = option('shared', choices=('shared', 'own'))

  def __post_init__(self):
    super().__post_init__()
    if self.asked > self.facts:
      raise ValueError(
        f'task.options.asked={self.asked} must be at most task.options.facts={self.facts}.'
      )

  @property
  def least_team(self) -> tuple[int, int]:
    """Returns three agents, and one round per visit."""
    return 3, self.facts + self.chatter

  def needs(self, topology: Topology) -> str:
    """Requires a turn of the scribe per visit, then turns of finder and solver."""
    turns = [_SCRIBE] * (self.facts + self.chatter) + [_FINDER, _SOLVER]
    return '' if takes_turns(topology, turns) else f'a turn of agent {_SOLVER} behind all visits'

  def draw(self, rng: random.Random, split: str) -> tuple[str, str, str, Visits]:
    """Draws facts, chatter and the owners that are asked for."""
    owners = rng.sample(OWNERS, self.facts)
    facts = {owner: str(rng.randint(1, self.max_count)) for owner in owners}
    others = [name for name in OWNERS if name not in facts]
    visits = [f'{owner} has {count} pens .' for owner, count in facts.items()]
    visits += grammar.idle_notes('train', self.chatter, others, self.max_count, rng)
    rng.shuffle(visits)
    asked = rng.sample(owners, self.asked)
    if self.asked == 1:
      text = f'How many pens does {asked[0]} have ?'
    else:
      text = f'How many pens do {" and ".join(asked)} have together ?'
    key = f'{sorted(facts.items())} {sorted(asked)}'
    total = sum(int(facts[owner]) for owner in asked)
    return key, text, str(total), Visits(tuple(visits), facts, tuple(asked))

  def observe(self, state: Visits, agent: int) -> str | None:
    """Returns a visit to the scribe, nothing to the finder, the found notes to the solver."""
    if agent != state.agent:
      return None
    if agent == _SCRIBE:
      return state.visits[state.step]
    return ' ; '.join(state.found)

  def act(
    self, state: Visits, texts: Mapping[int, str]
  ) -> tuple[Visits, Mapping[int, float] | float, bool]:
    """Keeps a note, finds notes, or ends with the answer."""
    agent, step = state.agent, state.step + 1
    text = texts.get(agent, '')
    if agent == _SCRIBE:
      notes = (*state.notes, text) if text else state.notes
      return dataclasses.replace(state, step=step, notes=notes), {}, False
    if agent == _FINDER:
      wanted = {owner for owner in state.facts if owner in _words(text)}
      found = tuple(note for note in state.notes if wanted & _words(note))
      return dataclasses.replace(state, step=step, found=found), {}, False
    state = dataclasses.replace(state, step=step, answer=text)
    total = sum(int(state.facts[owner]) for owner in state.asked)
    right = grade_number(text, str(total))
    if self.rewards == 'shared':
      return state, right, True
    kept = [owner for owner in state.asked if state.share(state.notes, [owner])]
    scribe, finder = state.share(state.notes, state.asked), state.share(state.found, kept)
    return state, {_SCRIBE: scribe, _FINDER: finder, _SOLVER: right}, True

  def demonstration(
    self, question, agent, delivered, rng, *, state, terse_probability, silence_probability
  ) -> str:
    """Writes a note of a fact or some chatter, a search for the owners, or the sum of the found."""
    terse = rng.random() < terse_probability
    if agent == _SCRIBE:
      visit = state.visits[state.step]
      told = facts_in(visit, state.facts)
      if not told and rng.random() < silence_probability:
        return ''
      if terse:
        return ' '.join(word for fact in told.items() for word in fact) or 'nothing'
      return rng.choice(_NOTES).format(visit.removesuffix(' .'))
    if agent == _FINDER:
      owners = ' and '.join(rng.sample(state.asked, len(state.asked)))
      return owners if terse else rng.choice(_SEARCHES).format(owners)
    found = state.told(state.found)
    counts = [found.get(owner) or str(rng.randint(1, self.max_count)) for owner in state.asked]
    total = str(sum(map(int, counts)))
    return total if terse else rng.choice(_ANSWERS).format(' and '.join(counts), total)

  def vocabulary(self) -> list[str]:
    """Returns the words of questions, observations and demonstrations."""
    phrases = ' '.join(
      [*_NOTES, *_SEARCHES, *_ANSWERS, 'How many pens does do have together has ? ;']
    )
    numbers = map(str, range(self.asked * self.max_count + 1))
    words = {*phrases.split(), *OWNERS, *numbers, *grammar.grammar_words(), 'nothing'}
    return sorted(word for word in words if '{' not in word)


def _words(text: str) -> set[str]:
  return {*re.findall(r'\w+', text)}  # as `facts_in` does
