"""Defines the relay task: informants have notes, a solver without a note must answer.

It is a minimal task with both relevant and irrelevant notes: the solver can know the answer
only if the informants with relevant facts send them, and gains nothing from the others.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

from agent_gspo.options import check_fields, option
from agent_gspo.tasks import base
from agent_gspo.tasks.data import draws
from agent_gspo.tasks.grading import equations
from agent_gspo.tasks.grading.numeric import canonical_number, grade_number
from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.tasks.relay import grammar, script
from agent_gspo.tasks.relay.script import parse_fact
from agent_gspo.types import Question


@dataclasses.dataclass(eq=False, kw_only=True)
class RelayTask(base.Task):
  """Procedural communication questions.

  Informant `i` has `question.notes[i]`; the solver is the agent after the last
  informant and has none. A question is drawn as follows:

  1. The gold answer is uniform over all possible sums of `k` relevant facts
     (`k .. k * max_count`), the addends are then uniform among the ordered tuples
     with this sum. So extreme addends are more common than under uniform addends; in
     return all answers are equally common.
  2. The positions of the relevant facts are uniform over the subsets of the informants.
     Answer and positions are stratified: each block of as many questions as there are
     answers (or subsets) contains every one of them once.
  3. Owners are distinct. All facts of a question are about the same object, so only
     the owner distinguishes a relevant fact from an irrelevant one. Nouns are plural.

  Names, objects and frames of irrelevant notes are partitioned by split (`grammar`), whatever the
  seed: no content is in two splits, and the notes of the test split are unlike any of the training
  split. Item `i` of a split depends on `(seed, split, i)` and the options alone. Two items of a
  split may have the same content.

  Raises:
    ValueError: if an option is out of range, or a split has too few names.
  """

  name = 'relay'

  num_informants: int = option(3, least=1, most=100)  # agents with a note
  num_irrelevant: int = option(1, least=0, most=100)  # of them with an irrelevant note
  max_count: int = option(9, least=1, most=1000)  # counts of facts are 1 .. max_count
  # sum: "How many pens do Ann and Kim have together?"; lookup: "How many pens does Ann have?",
  # exactly one relevant note.
  operation: str = option('sum', choices=('sum', 'lookup'))
  # other_owner: a fact about a person not in the question; off_topic: a sentence of another form,
  # often with a number or a name in it; empty: "".
  irrelevant_notes: str = option('other_owner', choices=('other_owner', 'off_topic', 'empty'))
  # plain: English; words: one space between any two tokens, punctuation included, for a word-level
  # tokenizer.
  text_style: str = option('plain', choices=('plain', 'words'))
  # Wording of the gold answer in which the worth of messages is measured. sentence: the number,
  # given "the answer is"; equation: "4 + 2 = 6".
  gold: str = option('sentence', choices=('sentence', 'equation'))
  # Demonstrated informants repeat the relevant facts that they read, as in a chain, where the
  # solver reads the last informant alone.
  pass_on: bool = False
  # Show all notes in the question and deal none: one agent alone can answer.
  whole_problem: bool = False
  seed: int = 0  # does not change the split of a name or object
  train_size: int = option(1_000_000, least=0, most=10**9)  # questions are built on access
  validation_size: int = option(200, least=0, most=10**9)
  test_size: int = option(500, least=0, most=10**9)

  def __post_init__(self):
    check_fields(self, 'task.options')
    self.num_relevant = relevant = self.num_informants - self.num_irrelevant
    lookup = self.operation == 'lookup'
    if relevant < 1 or (relevant == 1) != lookup:
      raise ValueError(
        f'task.options.operation={self.operation!r} needs {"1" if lookup else "2 or more"} '
        f'relevant notes, but num_informants={self.num_informants} - num_irrelevant='
        f'{self.num_irrelevant} is {relevant}; change one of them'
      )
    if self.whole_problem and self.gold == 'equation':
      raise ValueError(
        "task.options.gold='equation' adds up notes, and whole_problem=True deals none; set "
        "gold='sentence'"
      )
    self._num_owners = self.num_informants if self.irrelevant_notes == 'other_owner' else relevant
    # Irrelevant sentences name one or two people that the question does not mention.
    others = 2 * (self.irrelevant_notes == 'off_topic' and self.num_irrelevant > 0)
    self._names, self._objects = grammar.cut(grammar.NAMES), grammar.cut(grammar.OBJECTS)
    for split, names in self._names.items():
      if self._size(split) and len(names) < self._num_owners + others:
        raise ValueError(
          f'task.options.num_informants={self.num_informants} needs {self._num_owners + others} '
          f'names, and split {split!r} has {len(names)}; lower it, or set {split}_size=0'
        )
    # ways[k][s]: ordered k-tuples of counts with sum s.
    self._ways = [{0: 1}]
    for _ in range(relevant):
      ways: dict[int, int] = {}
      for total, count in self._ways[-1].items():
        for addend in range(1, self.max_count + 1):
          ways[total + addend] = ways.get(total + addend, 0) + count
      self._ways.append(ways)

  def _size(self, split: str) -> int:
    return getattr(self, f'{split}_size')

  @property
  def answers(self) -> range:
    """Returns the possible gold answers, all equally likely."""
    return range(self.num_relevant, self.num_relevant * self.max_count + 1)

  def render(self, words: str) -> str:
    """Converts text in 'words' style to the task's style."""
    if self.text_style == 'words':
      return words
    for mark in ('.', ',', '?', ':'):
      words = words.replace(f' {mark}', mark)
    return words

  def vocabulary(self) -> list[str]:
    """Returns the sorted vocabulary of questions, notes and demonstrations in 'words' style.

    It contains words, marks, numbers from 0 to the largest answer, and word pieces; a piece that
    continues a word begins with '##'.
    """
    words = script.script_words() | grammar.grammar_words()
    words |= {str(number) for number in range(self.answers[-1] + 1)}
    words |= set('has . How many do and , have together ? does'.split())
    for word in (*grammar.NAMES, *grammar.OBJECTS):
      first, *rest = word.split('-')
      words |= {first, *(f'##{piece}' for piece in rest)}
    return sorted(words)

  def canonical(self, answer_text: str) -> str | None:
    """Returns the number in the answer (see `numeric.canonical_number`)."""
    return canonical_number(answer_text)

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1 if the number in the answer is the gold number, else 0 (see `grade_number`)."""
    return grade_number(answer_text, question.answer)

  def gold_messages(self, question: Question) -> Sequence[tuple[str, str]]:
    """Returns the gold answer in the wording of option `gold`, see `Task.gold_messages`.

    An equation has its operands in the order of the notes or exchanged.
    """
    if self.gold == 'equation':
      relevant = zip(question.notes, question.relevant, strict=True)
      counts = [Fraction(fact[1]) for note, flag in relevant if flag and (fact := parse_fact(note))]
      total: equations.Tree = counts[0]
      for count in counts[1:]:
        total = '+', total, count
      forms = [equations.chain(tree, question.answer) for tree in equations.commuted(total)]
      return tuple(('', form or question.answer) for form in dict.fromkeys(forms))
    given = 'the answer is'
    return ((given, self.render(f'{given} {question.answer} .').removeprefix(given)),)

  def demonstration(
    self,
    question: Question,
    agent: int,
    delivered: Sequence[str],
    rng: random.Random,
    *,
    terse_probability: float,
    silence_probability: float,
  ) -> str:
    """Writes an SFT demonstration: a message of a scripted, verbose team.

    Arguments are those of `script.talkative_message`, and of `script.solver_message` for agents
    after the informants. A whole problem is answered without its terms.
    """
    if self.whole_problem:
      terse = rng.random() < terse_probability
      return question.answer if terse else self.render(f'the answer is {question.answer} .')
    if agent >= self.num_informants:
      return script.solver_message(
        self.render, self.max_count, question, delivered, rng, terse_probability
      )
    facts = zip(question.notes, question.relevant, strict=True)
    heard = [
      note
      for note, relevant in (facts if self.pass_on else ())
      if relevant and (fact := parse_fact(note)) and script.states(delivered, fact)
    ]
    return script.talkative_message(
      self.render, question, agent, rng, terse_probability, silence_probability, heard
    )

  def _split(self, split: str) -> Sequence[Question]:
    return LazyQuestions(self._size(split), functools.partial(self._make, split))

  def _empty_remedy(self, split: str) -> str:
    return f'set {split}_size > 0'

  def _make(self, split: str, index: int) -> Question:
    rng = draws.rng(self.seed, split, index)
    gold = self.answers[draws.stratum(self.seed, split, 'gold', len(self.answers), index, rng)]
    relevant = draws.chosen(
      self.seed, split, 'place', self.num_informants, self.num_relevant, index, rng
    )
    people = [_joined(name) for name in self._names[split]]
    rng.shuffle(people)
    owners, others = people[: self._num_owners], people[self._num_owners :]
    noun = _joined(rng.choice(self._objects[split]))
    counts = self._addends(rng, gold)
    counts += [rng.randint(1, self.max_count) for _ in owners[self.num_relevant :]]
    facts = [f'{owner} has {count} {noun} .' for owner, count in zip(owners, counts, strict=True)]
    asked = owners[: self.num_relevant]
    idle = facts[self.num_relevant :]
    if self.irrelevant_notes == 'off_topic':
      idle = grammar.idle_notes(split, self.num_irrelevant, others, self.max_count, rng)
    elif self.irrelevant_notes == 'empty':
      idle = [''] * self.num_irrelevant
    needed, unneeded = iter(facts[: self.num_relevant]), iter(idle)
    notes = tuple(self.render(next(needed if flag else unneeded)) for flag in relevant)
    rng.shuffle(asked)
    text = self.render(self._ask(noun, asked))
    if self.whole_problem:
      text, notes, relevant = ' '.join(filter(None, (*notes, text))), (), ()
    return Question(
      id=f'relay-{split}-{index}',
      text=text,
      answer=str(gold),
      notes=notes,
      relevant=relevant,
    )

  def _ask(self, noun: str, asked: Sequence[str]) -> str:
    if self.operation == 'lookup':
      return f'How many {noun} does {asked[0]} have ?'
    people = ' , '.join(asked[:-1]) + f' and {asked[-1]}'
    return f'How many {noun} do {people} have together ?'

  def _addends(self, rng: random.Random, total: int) -> list[int]:
    """Draws uniformly from the ordered tuples of counts that add up to `total`."""
    addends = []
    for left in range(self.num_relevant - 1, -1, -1):
      options = [n for n in range(1, self.max_count + 1) if total - n in self._ways[left]]
      weights = [self._ways[left][total - n] for n in options]
      pick = rng.randrange(sum(weights))
      addend = options[bisect.bisect_right(list(itertools.accumulate(weights)), pick)]
      addends.append(addend)
      total -= addend
    return addends


def _joined(word: str) -> str:
  return word.replace('-', '')
