"""Defines the relay task: informants have notes, a solver without a note must answer.

It is a minimal task with both useful and useless messages: the solver can know the answer
only if the informants with relevant facts send them, and gains nothing from the others.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import random
from collections.abc import Sequence

from agent_gspo.tasks import base
from agent_gspo.tasks.data import strata
from agent_gspo.tasks.grading.numeric import canonical_number, grade_number
from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.tasks.relay import grammar, script
from agent_gspo.types import Question
from agent_gspo.values import is_whole

OPERATIONS = ('sum', 'lookup')
IRRELEVANT_NOTES = ('other_owner', 'off_topic', 'empty')
TEXT_STYLES = ('plain', 'words')


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
  split. Item `i` of a split depends on `(seed, split, i)` and the parameters alone. Two items of a
  split may have the same content.
  """

  name = 'relay'

  def __init__(
    self,
    *,
    num_informants: int = 3,
    num_irrelevant: int = 1,
    max_count: int = 9,
    operation: str = 'sum',
    irrelevant_notes: str = 'other_owner',
    names: Sequence[str] = grammar.NAMES,
    objects: Sequence[str] = grammar.OBJECTS,
    text_style: str = 'plain',
    seed: int = 0,
    train_size: int = 1_000_000,
    validation_size: int = 200,
    test_size: int = 500,
  ):
    """Checks the parameters; builds no questions yet.

    Args:
      num_informants: Number of agents with a note.
      num_irrelevant: Number of irrelevant notes.
      max_count: Largest count of a fact; counts are `1 .. max_count`.
      operation: 'sum' ("How many pens do Ann and Kim have together?") or 'lookup'
        ("How many pens does Ann have?", exactly one relevant note).
      irrelevant_notes: 'other_owner' (a fact about a person not in the question),
        'off_topic' (a sentence of another form, often with a number or a name in it) or
        'empty' ("").
      names: Owners, single words. Of every five, three are for training, one for validation
        and one for test. A hyphen, as in 'Mar-ia', separates the word pieces of 'words' style
        and is not shown.
      objects: Plural nouns, partitioned and spelled likewise.
      text_style: 'plain' (English) or 'words' (one space between any two tokens,
        punctuation included, for a word-level tokenizer).
      seed: Seed of the questions; it does not change the split of a name or object.
      train_size: Size of the training split, whose questions are built on access.
      validation_size: Size of the validation split.
      test_size: Size of the test split.

    Raises:
      ValueError: if a parameter is out of range, or a pool too small for a split.
    """
    sizes = {'train': train_size, 'validation': validation_size, 'test': test_size}
    for field, value, least, most in (
      ('num_informants', num_informants, 1, 100),
      ('num_irrelevant', num_irrelevant, 0, 100),
      ('max_count', max_count, 1, 1000),
      *((f'{split}_size', size, 0, 10**9) for split, size in sizes.items()),
    ):
      if not is_whole(value) or not least <= value <= most:
        raise ValueError(f'relay: {field}={value!r} must be an integer from {least} to {most}')
    if not is_whole(seed):
      raise ValueError(f'relay: seed={seed!r} must be an integer')
    for field, name, known in (
      ('operation', operation, OPERATIONS),
      ('irrelevant_notes', irrelevant_notes, IRRELEVANT_NOTES),
      ('text_style', text_style, TEXT_STYLES),
    ):
      if name not in known:
        raise ValueError(f'relay: {field}={name!r} is unknown; use one of {known}')
    relevant = num_informants - num_irrelevant
    if operation == 'lookup' and relevant != 1:
      raise ValueError(
        f"relay: operation='lookup' needs one relevant note, but num_informants="
        f'{num_informants} - num_irrelevant={num_irrelevant} is {relevant}; '
        f'set num_irrelevant={num_informants - 1}'
      )
    if operation == 'sum' and relevant < 2:
      raise ValueError(
        f"relay: operation='sum' needs two or more relevant notes, but num_informants="
        f'{num_informants} - num_irrelevant={num_irrelevant} is {relevant}; '
        "lower num_irrelevant or use operation='lookup'"
      )
    owners = num_informants if irrelevant_notes == 'other_owner' else relevant
    # Irrelevant sentences name one or two people that the question does not mention.
    people = owners + 2 * (irrelevant_notes == 'off_topic' and num_irrelevant > 0)
    filled = [split for split, size in sizes.items() if size]
    _check_pool('names', names, people, filled)
    _check_pool('objects', objects, 1, filled)

    self.num_informants = num_informants
    self.num_irrelevant = num_irrelevant
    self.num_relevant = relevant
    self.max_count = max_count
    self.operation = operation
    self.irrelevant_notes = irrelevant_notes
    self._names, self._objects = grammar.cut(names), grammar.cut(objects)
    self.text_style = text_style
    self.seed = seed
    self._sizes = sizes
    self._num_owners = owners
    # ways[k][s]: ordered k-tuples of counts with sum s.
    self._ways = [{0: 1}]
    for _ in range(relevant):
      ways: dict[int, int] = {}
      for total, count in self._ways[-1].items():
        for addend in range(1, max_count + 1):
          ways[total + addend] = ways.get(total + addend, 0) + count
      self._ways.append(ways)

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
    for word in (
      w for pools in (self._names, self._objects) for pool in pools.values() for w in pool
    ):
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
    """Returns the number, given the beginning of the scripted solver's short sentence."""
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
    """Writes an SFT demonstration: a message of a scripted, verbose team (see `script`).

    Args:
      question: Question with notes.
      agent: Index of an informant, or of the solver (`num_informants`).
      delivered: Message of each informant, "" for silence; used for the solver only.
      rng: Random generator.
      terse_probability: Share of messages with only the necessary information.
      silence_probability: Share of messages about irrelevant notes that are "".
    """
    if agent >= self.num_informants:
      return script.solver_message(
        self, question, delivered, rng, terse_probability=terse_probability
      )
    return script.talkative_message(
      self,
      question,
      agent,
      rng,
      terse_probability=terse_probability,
      silence_probability=silence_probability,
    )

  def describe(self) -> dict:
    """Returns split sizes and the parameters that determine the difficulty."""
    fields = ('operation', 'irrelevant_notes', 'num_informants', 'num_irrelevant', 'max_count')
    return {**super().describe(), **{field: getattr(self, field) for field in fields}}

  def _split(self, split: str) -> Sequence[Question]:
    return LazyQuestions(self._sizes[split], functools.partial(self._make, split))

  def _empty_remedy(self, split: str) -> str:
    return f'set {split}_size > 0'

  def _make(self, split: str, index: int) -> Question:
    rng = strata.rng(self.seed, split, index)
    gold = self.answers[strata.stratum(self.seed, split, 'gold', len(self.answers), index, rng)]
    subsets = math.comb(self.num_informants, self.num_relevant)
    if subsets <= strata.MAX_STRATA:
      pick = strata.stratum(self.seed, split, 'place', subsets, index, rng)
      places = strata.subsets(self.num_informants, self.num_relevant)[pick]
    else:
      places = tuple(sorted(rng.sample(range(self.num_informants), self.num_relevant)))
    return self._draw(split, rng, gold, places, f'relay-{split}-{index}')

  def _draw(
    self, split: str, rng: random.Random, gold: int, places: tuple[int, ...], question_id: str
  ) -> Question:
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
    relevant = tuple(i in places for i in range(self.num_informants))
    notes = tuple(self.render(next(needed if flag else unneeded)) for flag in relevant)
    rng.shuffle(asked)
    return Question(
      id=question_id,
      text=self.render(self._ask(noun, asked)),
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


def _check_pool(field: str, pool: Sequence[str], least: int, splits: Sequence[str]) -> None:
  if isinstance(pool, str):
    raise ValueError(f'relay: {field}={pool!r} must be a list of words')
  for word in pool:
    if not (isinstance(word, str) and all(piece.isalpha() for piece in word.split('-'))):
      raise ValueError(
        f'relay: {field} holds {word!r}; every entry must be one word of letters, with hyphens '
        'between its pieces if it has several'
      )
  if len({_joined(word) for word in pool}) < len(pool):
    raise ValueError(f'relay: {field}={list(pool)!r} holds a word twice')
  for split, words in grammar.cut(pool).items():
    if split in splits and len(words) < least:
      raise ValueError(
        f'relay: of the {len(pool)} {field}, {len(words)} are for split {split!r}, which needs '
        f'{least}; give {5 * least} or more, or set {split}_size=0'
      )


def _joined(word: str) -> str:
  return word.replace('-', '')
