"""Reads GSM8K, SVAMP and MultiArith from their official files.

Splits that the datasets do not define use a hash of the text with its numbers masked, so
that copies of a problem, with the same numbers or others, are never in two splits.
Near-duplicates of test problems are then removed from the other splits (`official`).
"""

from __future__ import annotations

import csv
import json
import pathlib
import re
from collections.abc import Sequence
from fractions import Fraction

from agent_gspo.tasks.benchmarks.official import OfficialTask, Read
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.draws import bucket
from agent_gspo.tasks.grading import equations, graders
from agent_gspo.types import Question


class WordProblems(OfficialTask):
  """Problems whose answer is a number, with the equation that gives it (`Question.derivation`)."""

  GRADERS = graders.NUMBER

  @classmethod
  def solution(cls, question: Question) -> str:
    """Returns a solution for demonstrations, '' if there is none.

    It is a chain of equations step by step, as the grader 'equation' reads it.
    """
    tree = equations.from_infix(question.derivation)
    return equations.chain(tree, question.answer)

  def gold_messages(self, question: Question) -> Sequence[tuple[str, str]]:
    """Returns `solution` and versions with exchanged operands, else the number alone."""
    tree = equations.from_infix(question.derivation)
    forms = [self.solution(question)]
    if tree is not None:
      forms += [equations.chain(t, question.answer) for t in equations.commuted(tree)]
    return tuple(('', form) for form in dict.fromkeys(filter(None, forms))) or (
      ('', question.answer),
    )

  @classmethod
  def operands(cls, question: Question) -> set[Fraction]:
    """Returns the numbers in the gold derivation."""
    tree = equations.from_infix(question.derivation)
    return set() if tree is None else equations.leaves(tree)


class GSM8K(WordProblems):
  """Grade-school math (Cobbe et al. 2021, arXiv 2110.14168).

  test: the official 1,319. train and validation: the official 7,473 training problems,
  of which those in hash buckets 0-6 of 100 are the validation split.
  """

  name = 'gsm8k'
  SOURCES = tuple(
    sources.Source(
      f'gsm8k/grade_school_math/data/{split}.jsonl',
      'openai/grade-school-math',
      '3101c7d5072418e28b9008a6636bde82a006892c',
      sha256,
    )
    for split, sha256 in (
      ('train', '17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465'),
      ('test', '3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14'),
    )
  )

  @classmethod
  def read(cls, *paths: pathlib.Path) -> Read:
    for path, official in zip(paths, ('train', 'test'), strict=True):
      for index, record in enumerate(sources.parse_lines(path.read_text(encoding='utf-8'))):
        text = record['question'].strip()
        gold = record['answer'].rpartition('####')[2].strip().replace(',', '')
        held_out = official == 'train' and bucket(text) < 7
        yield (
          'validation' if held_out else official,
          Question(f'gsm8k-{official}-{index}', text, gold, derivation=record['answer']),
        )

  @classmethod
  def solution(cls, question: Question) -> str:
    """Returns the official rationale in one line, without calculator annotations.

    A question of another benchmark (`DealtTask.also_from`) may have an equation: returns its chain.
    """
    if equations.from_infix(question.derivation) is not None:
      return super().solution(question)
    return ' '.join(equations.ANNOTATION.sub('', question.derivation).split())

  @classmethod
  def operands(cls, question: Question) -> set[Fraction]:
    """Returns the operands of the rationale's annotated calculations, without results."""
    return equations.in_rationale(question.derivation)


class SVAMP(WordProblems):
  """Varied arithmetic problems (Patel et al. 2021, arXiv 2103.07191).

  test: the 1,000 of SVAMP.json. train and validation: the training file of the same
  repository (MAWPS and ASDiv-A), numbers put back; hash buckets 0-9 of 100 are the
  validation split.

  Nearly all of MultiArith (596 of 600) is part of that training file: do not report a
  policy trained here on MultiArith.
  """

  name = 'svamp'
  SOURCES = tuple(
    sources.Source(f'svamp/{path}', 'arkilpatel/SVAMP', '689d7cc', sha256)
    for path, sha256 in (
      (
        'data/mawps-asdiv-a_svamp/train.csv',
        'c761cdc6390a67a285c6c346a2931f61bc8f47430eceaeb123cc3d0263efa821',
      ),
      ('SVAMP.json', '5be77703a6d891ae476d7c082787ad361392aa02453b132516cdd5f4e7934e3e'),
    )
  )

  @classmethod
  def read(cls, *paths: pathlib.Path) -> Read:
    train_csv, challenge = paths
    for record in json.loads(challenge.read_text(encoding='utf-8')):
      body, asked = record['Body'].strip(), record['Question'].strip()
      text = f'{body} {asked}' if body[-1] in '.,?!' else f'{body}. {asked}'
      answer = _number_text(record['Answer'])
      yield 'test', Question(f'svamp-{record["ID"]}', text, answer, derivation=record['Equation'])
    with train_csv.open(encoding='utf-8', newline='') as file:
      for index, record in enumerate(csv.DictReader(file)):
        numbers = record['Numbers'].split()
        text = _put_back(record['Question'], numbers)
        tree = equations.from_prefix(record['Equation'], numbers)
        equation = '' if tree is None else equations.infix(tree)
        answer = _number_text(record['Answer'])
        yield (
          'validation' if bucket(text) < 10 else 'train',
          Question(f'svamp-train-{index}', text, answer, derivation=equation),
        )


class MultiArith(WordProblems):
  """Multi-step arithmetic (Roy and Roth 2015): 600 problems without official splits.

  Hash buckets of 100: 0-9 validation, 10-39 test, the others train. The sizes are near
  60, 180 and 360 since problems with the same text, numbers aside, stay together.
  """

  name = 'multiarith'
  SOURCES = (
    sources.Source(
      'multiarith/dataset/MultiArith/MultiArith.json',
      'kojima-takeshi188/zero_shot_cot',
      '5ef330f',
      'dc9db1b6cc68b1ecc2dec830d15aaf8c9a0932aa31d5ffce88ef3628179d36f4',
    ),
  )

  @classmethod
  def read(cls, *paths: pathlib.Path) -> Read:
    for record in json.loads(paths[0].read_text(encoding='utf-8')):
      text = ' '.join(record['sQuestion'].split())
      place = bucket(text)
      yield (
        'validation' if place < 10 else 'test' if place < 40 else 'train',
        Question(
          id=f'multiarith-{record["iIndex"]}',
          text=text,
          answer=_number_text(record['lSolutions'][0]),
          derivation=record['lEquations'][0].partition('=')[2],
        ),
      )


def _number_text(value: float | str) -> str:
  """Formats a number as '42', '2.5', or '5/6' for the file's 0.8333333333333334."""
  exact = Fraction(str(value))
  if text := equations.written(exact):
    return text
  near = exact.limit_denominator(1000)
  return str(near) if abs(near - exact) < Fraction(1, 100_000) else f'{float(exact):.6f}'


def _put_back(text: str, numbers: Sequence[str]) -> str:
  """Restores numbers in a text of the training file, and removes its token spacing."""
  text = re.sub(r'number([0-9]+)', lambda match: _number_text(numbers[int(match[1])]), text)
  text = re.sub(r" (?=[.,?!;:%)]|n't\b|'s\b)", '', text)
  text = re.sub(r' ’ (?=s\b)', '’', text)
  text = re.sub(r'(?<=[a-z]) - (?=[a-z])', '-', text)
  return re.sub(r'(?<=[$(]) ', '', text).strip()
