"""Deals official word problems to a team: context to informants, the question to all.

The result is a benchmark that requires communication, with ground truth about relevant notes.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from agent_gspo.options import check_choice, option
from agent_gspo.tasks import base
from agent_gspo.tasks.benchmarks import word_problems
from agent_gspo.tasks.benchmarks.official import FileTask
from agent_gspo.tasks.data import draws
from agent_gspo.tasks.data.near_duplicates import far_from
from agent_gspo.tasks.dealt import misleading, redrawn, script
from agent_gspo.tasks.dealt.sentences import context_and_question, numbers_of, rounded
from agent_gspo.tasks.grading import graders
from agent_gspo.types import Question

BENCHMARKS: Mapping[str, type[word_problems.WordProblems]] = {
  'svamp': word_problems.SVAMP,
  'multiarith': word_problems.MultiArith,
  'gsm8k': word_problems.GSM8K,
}
_DRAWS = 200  # sentences drawn before an irrelevant note may share the problem's theme
_CONTENT_WORD = re.compile(r'[a-z]{4,}')


@dataclasses.dataclass(frozen=True)
class _Problem:
  """Problem, split into context and question.

  Attributes:
    question: Official question.
    context: Sentences before the question.
    asked: Question sentence alone.
    operands: Numbers of the gold derivation.
  """

  question: Question
  context: tuple[str, ...]
  asked: str
  operands: frozenset[Fraction]

  def needs(self, note: str) -> bool:
    """Returns whether the gold derivation uses a number of a note."""
    return not self.operands.isdisjoint(numbers_of(note))


@dataclasses.dataclass(eq=False, kw_only=True)
class DealtTask(FileTask):
  """Word problems whose context sentences are dealt to informants, one question to all.

  Informant `i` has `question.notes[i]`; agents after the informants have none. A problem is dealt
  as follows:

  1. The context before the question is split into sentences (`sentences`). If there are more than
     informants, adjacent sentences share a note. If there are fewer, irrelevant notes are sentences
     of other problems of the same split, without numbers of the gold derivation and, if the split
     has enough of them, without longer words of the problem.
  2. A note is relevant iff a number of it, in digits or words ("twelve", "twice"), is an operand
     of the gold derivation. A context sentence without one (SVAMP's distractors) is irrelevant.
  3. Positions are balanced: among the problems of a split with `k` relevant notes, each subset of
     `k` informants gets them equally often. Relevant notes, and irrelevant ones, keep their order.

  Splits are those of the benchmark, without near-duplicates of its test split
  (`tasks.benchmarks.official`) and of the test splits of `apart_from`. Problems without context or
  without a relevant note are left out and counted (`undealt`). A split is dealt upon its first use.
  """

  name = 'dealt'

  GRADERS = graders.NUMBER

  benchmark: str = 'svamp'  # one of BENCHMARKS
  num_informants: int = option(3, least=1, most=100)  # agents with a note
  whole_problem: bool = False  # keep the same questions whole, as a single-agent baseline
  # Other benchmarks for evaluation: near-duplicates of their test questions are removed from
  # training and validation.
  apart_from: tuple[str, ...] = ()
  # Other benchmarks whose training problems are dealt alike for SFT; the solver is demonstrated
  # those with an equation. Near-duplicates of this benchmark's questions and of the tests of
  # `apart_from` are removed, and RL uses none.
  also_from: tuple[str, ...] = ()
  # Augmented copies of each training question, with other numbers (`redrawn`) and irrelevant notes.
  redrawn_copies: int = option(0, least=0)
  # Share of these copies that get distractors (`misleading`) if possible, as in SVAMP's test split.
  misleading_share: float = option(0.0, least=0, most=1)
  grader: str = 'equation'
  seed: int = 0  # of positions, irrelevant notes and redrawn numbers

  def __post_init__(self):
    super().__post_init__()
    for field, names in (
      ('benchmark', (self.benchmark,)),
      ('apart_from', self.apart_from),
      ('also_from', self.also_from),
    ):
      for name in names:
        check_choice(f'task.options.{field}', name, tuple(BENCHMARKS))
    if len({self.benchmark, *self.also_from}) <= len(self.also_from):
      raise ValueError(
        f'task.options.also_from={tuple(self.also_from)!r} must name each other benchmark once, '
        f'and not benchmark={self.benchmark!r}'
      )
    if self.misleading_share and not self.redrawn_copies:
      raise ValueError(
        f'task.options.misleading_share={self.misleading_share!r} is a share of the redrawn '
        'copies, and redrawn_copies=0 makes none; set it to 1 or more'
      )
    for field, needs, remedy in (
      ('redrawn_copies', self.redrawn_copies > 0, '0'),
      ('grader', self.grader == 'equation', "'strict'"),
    ):
      if needs and self.benchmark == 'gsm8k':
        raise ValueError(
          f'task.options.{field}={getattr(self, field)!r} needs gold equations, and gsm8k has '
          f'rationales; set it to {remedy}'
        )
    files = {field.name: getattr(self, field.name) for field in dataclasses.fields(FileTask)}
    self._official = BENCHMARKS[self.benchmark](**files)
    self._apart_from = [BENCHMARKS[name](**files) for name in self.apart_from]
    self._also_from = [BENCHMARKS[name](**files) for name in self.also_from]
    self.graders = self._official.graders
    self._deal = functools.cache(self._dealt)

  def _split(self, split: str) -> Sequence[Question]:
    return self._deal(split)

  def gold_messages(self, question: Question) -> Sequence[tuple[str, str]]:
    """Returns the gold solutions, see `WordProblems.gold_messages`."""
    return self._official.gold_messages(question)

  def story(self, question: Question) -> str:
    """Returns the official text without numbers, a key shared by the augmented copies."""
    return self._stories[super().story(question)]

  @functools.cached_property
  def _stories(self) -> dict[str, str]:
    return {q.id: draws.masked(q.text) for q in self._official._split('train')}

  def further_demonstrations(self) -> Sequence[Question]:
    """Returns the training problems of `also_from`, with irrelevant notes of the same benchmark."""
    return self._further

  def note(self, splits: Sequence[str]) -> str:
    """Returns a notice with the number of problems left out."""
    told = [
      f'{self.undealt(split)} of {len(self._official._split(split))} ({split})' for split in splits
    ]
    near = ', or they are near a question of another test' if self._apart_from else ''
    return (
      f'Problems of {self.benchmark} that are left out, since no sentence before their question is '
      f'relevant{near}: {", ".join(told)}.'
    )

  def undealt(self, split: str) -> int:
    """Returns the number of a split's problems that cannot be dealt and are left out."""
    originals = sum(not question.story for question in self._deal(split))
    return len(self._official._split(split)) - originals

  def demonstration(
    self,
    question: Question,
    agent: int,
    delivered: Sequence[str],
    rng: random.Random,
    *,
    terse_probability: float,
    silence_probability: float,
  ) -> str | None:
    """Writes an SFT demonstration: a note (`script.message`), or a solver's gold solution.

    Returns None if the official files have no solution, or a relevant note is not `delivered` to
    the solver ('' for silence): it would learn to invent numbers.
    """
    if agent >= len(question.notes):
      needed = zip(delivered, question.relevant, strict=True)
      heard = all(told for told, relevant in needed if relevant)
      return (self._official.solution(question) or None) if heard else None
    note, relevant = question.notes[agent], question.relevant[agent]
    return script.message(note, relevant, rng, terse_probability, silence_probability)

  def _dealt(self, split: str) -> list[Question]:
    kept = self._official._split(split)
    for other in self._apart_from if split != 'test' else ():
      kept = far_from(kept, other.questions('test'))
    problems = self._dealable(self._official, kept)
    if split == 'train':
      problems += self._redrawn(problems)
    return self._with_notes(split, problems)

  @functools.cached_property
  def _further(self) -> list[Question]:
    other = [self._official.questions(split) for split in base.SPLITS]
    other += [task.questions('test') for task in self._apart_from]
    found = []
    for task in self._also_from:
      kept = far_from(task.questions('train'), itertools.chain(*other))
      found += self._with_notes(f'train of {task.name}', self._dealable(task, kept))
    return found

  def _with_notes(self, split: str, problems: Sequence[_Problem]) -> list[Question]:
    """Deals the problems of a split to the informants."""
    idle = [sentence for problem in problems for sentence in problem.context]
    dealt_to: collections.Counter[int] = collections.Counter()
    questions = []
    for problem in problems:
      if self.whole_problem:
        questions.append(problem.question)
        continue
      notes = self._notes(problem, idle, draws.rng(self.seed, split, problem.question.id))
      needed = [note for note in notes if problem.needs(note)]
      others = iter([note for note in notes if not problem.needs(note)])
      count, index = len(needed), dealt_to[len(needed)]
      dealt_to[count] += 1
      relevant = draws.chosen(
        self.seed,
        split,
        f'places of {count}',
        self.num_informants,
        count,
        index,
        draws.rng(self.seed, split, count, index),
      )
      first = iter(needed)
      questions.append(
        dataclasses.replace(
          problem.question,
          text=problem.asked,
          notes=tuple(next(first if flag else others) for flag in relevant),
          relevant=relevant,
        )
      )
    return questions

  def _redrawn(self, problems: Sequence[_Problem]) -> list[_Problem]:
    """Returns augmented copies with other numbers, for problems that have such numbers."""
    things: list[str] = []
    if self.misleading_share:
      things = misleading.things_asked(problem.question.text for problem in problems)
    found = []
    for copy, problem in itertools.product(range(1, self.redrawn_copies + 1), problems):
      question = problem.question
      rng = draws.rng(self.seed, 'redrawn', question.id, copy)
      other = redrawn.redrawn(question, rng)
      if other is not None:
        if rng.random() < self.misleading_share:
          other = misleading.misled(other, things, rng) or other
        other = dataclasses.replace(other, id=f'{question.id}-{copy}', story=question.id)
        found.append(other)
    return self._dealable(self._official, found)

  def _dealable(
    self, task: word_problems.WordProblems, questions: Sequence[Question]
  ) -> list[_Problem]:
    """Splits the problems of a benchmark; leaves out those that cannot be dealt."""
    found = []
    for question in questions:
      context, asked = context_and_question(question.text)
      operands = frozenset(map(rounded, task.operands(question)))
      problem = _Problem(question, tuple(context), asked, operands)
      if any(map(problem.needs, context)):
        found.append(problem)
    return found

  def _notes(self, problem: _Problem, idle: Sequence[str], rng: random.Random) -> list[str]:
    """Returns one note per informant, those of the problem first, in order."""
    count, context = self.num_informants, problem.context
    if len(context) >= count:
      shares: list[list[str]] = [[] for _ in range(count)]
      for place, sentence in enumerate(context):
        shares[place * count // len(context)].append(sentence)
      return [' '.join(share) for share in shares]
    notes = list(context)
    own = set(_CONTENT_WORD.findall(problem.question.text.lower()))
    while len(notes) < count:
      found = ''
      for _ in range(_DRAWS):
        sentence = rng.choice(idle)
        if sentence in notes or problem.needs(sentence):
          continue
        found = sentence  # fallback if none is of another theme
        if not own & set(_CONTENT_WORD.findall(sentence.lower())):
          break
      if not found:
        raise ValueError(
          f'task.options.num_informants={count}: the split of {problem.question.id!r} has too few '
          'other sentences for so many notes. Lower it.'
        )
      notes.append(found)
    return notes
