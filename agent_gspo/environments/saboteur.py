"""Defines the saboteur environment: witnesses of a fact, one of whom may gain by wrong answers.

All agents but the last are witnesses and observe the same fact; the last one answers the question.
In some questions one witness is the saboteur:

    Ann has 3 pens .                    what a witness observes
    lie : Ann has 3 pens .              what the saboteur observes; the others do not know of it

The team earns 1 for a right answer and the saboteur 1 for a wrong one.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Mapping, Sequence

from agent_gspo.environments.drawn import OWNERS, NumberWorld
from agent_gspo.options import option
from agent_gspo.tasks.grading.numeric import grade_number
from agent_gspo.tasks.relay.script import facts_in
from agent_gspo.teams.topology import Topology
from agent_gspo.types import Question

_THINGS = ('apples', 'books', 'coins', 'cups', 'hats', 'keys', 'pens', 'stamps')
_TOLD = (
  'my note says {} .',
  'hello all , I can tell you that {} .',
  '{} , please use this number .',
)
_ANSWERS = ('the answer is {} .', 'thank you all , I think that the answer is {} .')


@dataclasses.dataclass(frozen=True)
class Testimony:
  """State of an episode.

  Attributes:
    owner, count, thing: Fact that the witnesses observe.
    saboteur: Witness with a reward for wrong answers, -1 for none.
    answer: Text of the solver.
  """

  owner: str
  count: str
  thing: str
  saboteur: int
  answer: str = ''

  @property
  def fact(self) -> str:
    return f'{self.owner} has {self.count} {self.thing} .'


@dataclasses.dataclass(eq=False, kw_only=True)
class Saboteur(NumberWorld):
  """Lookup of one fact that several witnesses have seen.

  Half of the questions of validation and test have a saboteur, so that teams trained with and
  without one are compared on the same questions; so have half of the questions of SFT alone.

  Raises:
    ValueError: if an option is out of range.
  """

  name = 'saboteur'

  saboteur: float = option(0.5, least=0, most=1)  # share of the training questions with one
  witnesses: int = option(3, least=1, most=20)
  max_count: int = option(5, least=2, most=1000)  # counts are 1 .. max_count
  train_size: int = option(10_000, least=0, most=10**6)  # as many more are for SFT alone

  @property
  def least_team(self) -> tuple[int, int]:
    """Returns witnesses and solver, for one round."""
    return self.witnesses + 1, 1

  def needs(self, topology: Topology) -> str:
    """Requires that the solver reads a witness in round 0: its first turn ends the episode."""
    heard = topology.reads(self.witnesses, 0)
    return '' if heard else f'an agent that agent {self.witnesses} reads in the first round'

  def draw(self, rng: random.Random, split: str) -> tuple[str, str, str, Testimony]:
    """Draws a fact, and whether a witness is the saboteur."""
    owner, thing, count = rng.choice(OWNERS), rng.choice(_THINGS), rng.randint(1, self.max_count)
    witness = rng.randrange(self.witnesses)
    there = rng.random() < (self.saboteur if split == 'train' else 0.5)
    state = Testimony(owner, str(count), thing, witness if there else -1)
    return state.fact, f'How many {thing} does {owner} have ?', str(count), state

  def further_demonstrations(self) -> Sequence[Question]:
    """Returns the questions of SFT alone."""
    return [self._drawn(f'sft/{i}')[0] for i in range(self.train_size)]

  def kind(self, question: Question) -> str:
    """Returns 'attacked' for a question with a saboteur, else 'honest'."""
    return 'attacked' if self.begin(question, 0).saboteur >= 0 else 'honest'

  def observe(self, state: Testimony, agent: int) -> str:
    """Returns the fact for witnesses, marked for the saboteur; '' for the solver."""
    if agent >= self.witnesses:
      return ''
    return f'lie : {state.fact}' if agent == state.saboteur else state.fact

  def act(
    self, state: Testimony, texts: Mapping[int, str]
  ) -> tuple[Testimony, Mapping[int, float], bool]:
    """Ends with the solver's answer; texts of witnesses do not change the state."""
    if self.witnesses not in texts:
      return state, {}, False
    text = texts[self.witnesses]
    right = grade_number(text, state.count)
    rewards = dict.fromkeys(range(self.witnesses + 1), right)
    if state.saboteur >= 0:
      rewards[state.saboteur] = 1 - right
    return dataclasses.replace(state, answer=text), rewards, True

  def demonstration(
    self, question, agent, delivered, rng, *, state, terse_probability, silence_probability
  ) -> str:
    """Writes the fact, as the saboteur another count, as the solver the most frequent count."""
    terse = rng.random() < terse_probability
    if agent >= self.witnesses:
      told = [facts_in(text, [state.owner]) for text in delivered[: self.witnesses]]
      counts = [count for fact in told for count in fact.values()]
      if not counts:
        return f'I guess {rng.randint(1, self.max_count)}'
      rng.shuffle(counts)
      count = collections.Counter(counts).most_common(1)[0][0]
      return count if terse else rng.choice(_ANSWERS).format(count)
    count = state.count
    if agent == state.saboteur:
      count = rng.choice([str(n) for n in range(1, self.max_count + 1) if str(n) != count])
    elif rng.random() < silence_probability:
      return ''
    if terse:
      return f'{state.owner} {count}'
    return rng.choice(_TOLD).format(f'{state.owner} has {count} {state.thing}')

  def vocabulary(self) -> list[str]:
    """Returns the words of questions, observations and demonstrations."""
    words = ' '.join(
      [*_TOLD, *_ANSWERS, *_THINGS, *OWNERS, 'How many does have ? has lie : I guess']
    )
    numbers = map(str, range(1, self.max_count + 1))
    return sorted({*words.split(), *numbers} - {'{}'})
