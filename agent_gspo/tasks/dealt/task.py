"""Deals official word problems to a team: context to informants, the question to all.

The result is a benchmark that requires communication, with ground truth about relevant notes.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import os
import random
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from agent_gspo.tasks import base
from agent_gspo.tasks.benchmarks import word_problems
from agent_gspo.tasks.data import sources, strata
from agent_gspo.tasks.data.near_duplicates import far_from
from agent_gspo.tasks.dealt import misleading, redrawn, script
from agent_gspo.tasks.dealt.sentences import context_and_question
from agent_gspo.tasks.grading.numeric import numbers_in
from agent_gspo.types import Question
from agent_gspo.values import is_whole

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
    return any(_rounded(number) in self.operands for number in numbers_in(note))


@dataclasses.dataclass(frozen=True)
class _Dealt:
  """Questions of a split, dealt to informants.

  Attributes:
    questions: Questions as agents read them.
    left_out: Number of official problems that cannot be dealt.
    official: Number of official problems.
  """

  questions: list[Question]
  left_out: int
  official: int


class DealtTask(base.Task):
  """Word problems whose context sentences are dealt to informants, one question to all.

  Informant `i` has `question.notes[i]`; agents after the informants have none. A problem is dealt
  as follows:

  1. The context before the question is split into sentences (`sentences`). If there are more than
     informants, adjacent sentences share a note. If there are fewer, irrelevant notes are sentences
     of other problems of the same split, without numbers of the gold derivation and, if the split
     has enough of them, without longer words of the problem.
  2. A note is relevant iff a number of it, in digits or spelled out, is an operand of the gold
     derivation. A context sentence without one (SVAMP's distractors) is irrelevant.
  3. Positions are balanced: among the problems of a split with `k` relevant notes, each subset of
     `k` informants gets them equally often. Relevant notes, and irrelevant ones, keep their order.

  Splits are those of the benchmark, without near-duplicates of its test split
  (`tasks.benchmarks.official`) and of the test splits of `apart_from`. Problems without context or
  without a relevant note are left out and counted (`describe`, `undealt`).
  """

  name = 'dealt'

  def __init__(
    self,
    *,
    benchmark: str = 'svamp',
    num_informants: int = 3,
    whole_problem: bool = False,
    apart_from: Sequence[str] = (),
    also_from: Sequence[str] = (),
    redrawn_copies: int = 0,
    misleading_share: float = 0.0,
    grader: str = 'equation',
    seed: int = 0,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    base_url: str = sources.BASE_URL,
  ):
    """Opens the benchmark; deals a split upon its first use.

    Args:
      benchmark: 'svamp', 'multiarith' or 'gsm8k'.
      num_informants: Number of agents with a note.
      whole_problem: Whether to keep the same questions whole, as a single-agent baseline.
      apart_from: Other benchmarks for evaluation: near-duplicates of their test questions are
        removed from training and validation.
      also_from: Other benchmarks whose training problems are dealt alike for SFT; the solver is
        demonstrated those with an equation. Near-duplicates of this benchmark's questions and of
        the tests of `apart_from` are removed, and RL uses none.
      redrawn_copies: Augmented copies of each training question, with other numbers (`redrawn`)
        and other irrelevant notes.
      misleading_share: Share of these copies that get distractors (`misleading`) if possible, as
        in SVAMP's test split.
      grader: 'equation' executes the chain that is the answer (`grading.equations`), 'strict' and
        'legacy' read its number (see `OfficialTask`).
      seed: Seed of positions, irrelevant notes and redrawn numbers.
      data_dir, cache_dir, base_url: Locations as in `OfficialTask`.

    Raises:
      FileNotFoundError: if a file is not available.
      ValueError: if an option is out of range, or a file is not the official one.
    """
    others = {'apart_from': apart_from, 'also_from': also_from}
    for option, names in {'benchmark': (benchmark,), **others}.items():
      for name in names:
        if name not in BENCHMARKS:
          raise ValueError(f'dealt: {option}={name!r} is unknown; use one of {[*BENCHMARKS]}')
    if benchmark in also_from or len(set(also_from)) < len(also_from):
      raise ValueError(
        f'dealt: also_from={tuple(also_from)!r} must name each other benchmark once, and not '
        f'benchmark={benchmark!r}'
      )
    if not is_whole(num_informants) or not 1 <= num_informants <= 100:
      raise ValueError(f'dealt: num_informants={num_informants!r} must be an integer from 1 to 100')
    if not is_whole(redrawn_copies) or redrawn_copies < 0:
      raise ValueError(f'dealt: redrawn_copies={redrawn_copies!r} must be an integer, 0 or more')
    if not 0 <= misleading_share <= 1:
      raise ValueError(f'dealt: misleading_share={misleading_share!r} must be a number from 0 to 1')
    if misleading_share and not redrawn_copies:
      raise ValueError(
        f'dealt: misleading_share={misleading_share!r} is a share of the redrawn copies, and '
        'redrawn_copies=0 makes none; set it to 1 or more'
      )
    if redrawn_copies and benchmark == 'gsm8k':
      raise ValueError(
        f'dealt: redrawn_copies={redrawn_copies!r} needs gold equations, and gsm8k has rationales; '
        'set it to 0'
      )
    if not is_whole(seed):
      raise ValueError(f'dealt: seed={seed!r} must be an integer')
    open_ = lambda name: BENCHMARKS[name](
      grader=grader, data_dir=data_dir, cache_dir=cache_dir, base_url=base_url
    )
    self._official = open_(benchmark)
    self._apart_from = [open_(name) for name in apart_from]
    self._also_from = [open_(name) for name in also_from]
    self.benchmark, self.num_informants, self.seed = benchmark, num_informants, seed
    self.whole_problem, self.redrawn_copies = whole_problem, redrawn_copies
    self.misleading_share = misleading_share
    self.graders = self._official.graders
    self._deal = functools.cache(self._dealt)
    self._further = functools.cache(self._dealt_further)

  def _split(self, split: str) -> Sequence[Question]:
    return self._deal(split).questions

  def gold_messages(self, question: Question) -> Sequence[tuple[str, str]]:
    """Returns the gold solutions, see `WordProblems.gold_messages`."""
    return self._official.gold_messages(question)

  def further_demonstrations(self) -> Sequence[Question]:
    """Returns the training problems of `also_from`, dealt."""
    return self._further()

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1.0 if the grader accepts the answer, else 0.0."""
    return self._official.score(question, answer_text)

  def canonical(self, answer_text: str) -> str | None:
    """Returns the answer that the grader extracts from the text, normalized."""
    return self._official.canonical(answer_text)

  def graded_by(self, grader: str, question: Question, answer_text: str) -> float:
    """Returns the score by another grader."""
    return self._official.graded_by(grader, question, answer_text)

  def note(self, splits: Sequence[str]) -> str:
    """Returns a notice with the number of problems left out."""
    told = [f'{self.undealt(split)} of {self._deal(split).official} ({split})' for split in splits]
    near = ', or they are near a question of another test' if self._apart_from else ''
    return (
      f'Problems of {self.benchmark} that are left out, since nothing stands before their question '
      f'or no note of it is needed{near}: {", ".join(told)}.'
    )

  def undealt(self, split: str) -> int:
    """Returns the number of a split's problems that cannot be dealt and are left out."""
    return self._deal(split).left_out

  def describe(self) -> dict[str, Any]:
    """Returns split sizes, options of the dealing, and the number of problems left out."""
    return {
      **super().describe(),
      'benchmark': self.benchmark,
      'num_informants': self.num_informants,
      'redrawn_copies': self.redrawn_copies,
      'misleading_share': self.misleading_share,
      **{f'undealt_{split}': self.undealt(split) for split in base.SPLITS},
    }

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
    """Writes an SFT demonstration: notes (`script`), or the gold solution.

    Args:
      question: Question of the training split.
      agent: Index of an informant, or of a solver after them.
      delivered: Message of each informant to this agent, '' for silence.
      rng: Random generator.
      terse_probability, silence_probability: Shares as in `script.message`.

    Returns:
      The message, or None if the official files have no solution, or a relevant note did not reach
      the solver: it would learn to invent numbers.
    """
    if agent >= len(question.notes):
      needed = zip(delivered, question.relevant, strict=True)
      heard = all(told for told, relevant in needed if relevant)
      return (self._official.solution(question) or None) if heard else None
    note, relevant = question.notes[agent], question.relevant[agent]
    return script.message(note, relevant, rng, terse_probability, silence_probability)

  def _dealt(self, split: str) -> _Dealt:
    official = list(self._official._split(split))
    kept = official
    for other in self._apart_from if split != 'test' else ():
      kept = far_from(kept, list(other.questions('test')))
    problems = self._dealable(self._official, kept)
    left_out = len(official) - len(problems)
    if split == 'train':
      problems += self._redrawn(problems)
    return _Dealt(self._with_notes(split, problems), left_out, len(official))

  def _dealt_further(self) -> list[Question]:
    """Deals the training problems of `also_from`, with irrelevant notes of the same benchmark."""
    own = [list(self._official.questions(split)) for split in base.SPLITS]
    tests = [list(task.questions('test')) for task in self._apart_from]
    found = []
    for task in self._also_from:
      kept = functools.reduce(far_from, [*own, *tests], list(task.questions('train')))
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
      notes = self._notes(problem, idle, strata.rng(self.seed, split, problem.question.id))
      relevant = [note for note in notes if problem.needs(note)]
      others = iter([note for note in notes if not problem.needs(note)])
      places = self._places(split, len(relevant), dealt_to)
      needed = iter(relevant)
      flags = tuple(i in places for i in range(self.num_informants))
      questions.append(
        dataclasses.replace(
          problem.question,
          text=problem.asked,
          notes=tuple(next(needed if flag else others) for flag in flags),
          relevant=flags,
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
      rng = strata.rng(self.seed, 'redrawn', question.id, copy)
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
      operands = frozenset(map(_rounded, task.operands(question)))
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
      for _ in range(_DRAWS):
        sentence = rng.choice(idle)
        if sentence in notes or problem.needs(sentence):
          continue
        found = sentence  # fallback if none is of another theme
        if not own & set(_CONTENT_WORD.findall(sentence.lower())):
          break
      notes.append(found)
    return notes

  def _places(self, split: str, relevant: int, dealt_to: collections.Counter[int]) -> set[int]:
    """Picks the informants for the relevant notes of the next problem with `relevant` of them."""
    index, total = dealt_to[relevant], self.num_informants
    dealt_to[relevant] += 1
    rng = strata.rng(self.seed, split, relevant, index)
    count = math.comb(total, relevant)
    if count > strata.MAX_STRATA:
      return set(rng.sample(range(total), relevant))
    pick = strata.stratum(self.seed, split, f'places of {relevant}', count, index, rng)
    return set(strata.subsets(total, relevant)[pick])


def _rounded(number: Fraction) -> Fraction:
  """Rounds to denominators up to 1000, so that 1/6 equals the file's 0.16666666666666666."""
  return number.limit_denominator(1000)
