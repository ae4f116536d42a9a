"""What a task is: questions in three splits, and a verifier."""

from __future__ import annotations

import abc
import collections
from collections.abc import Sequence
from typing import Any

from agent_gspo.tasks import checked
from agent_gspo.tasks.grading import answer_marks
from agent_gspo.types import Question

SPLITS = ('train', 'validation', 'test')


class Task(abc.ABC):
  """A set of questions with a verifier.

  Attributes:
    name: the name that `make_task` knows it by.
    graders: names of the ways in which it can grade, that of `score` first; empty where there is
      but one. What the others say is reported beside (`graded_by`).
  """

  name: str
  graders: Sequence[str] = ()

  @abc.abstractmethod
  def _split(self, split: str) -> Sequence[Question]:
    """The questions of `split`, one of `SPLITS`; may be empty."""

  @abc.abstractmethod
  def score(self, question: Question, answer_text: str) -> float:
    """What the answer is worth, in `[0, 1]`."""

  def score_all(self, questions: Sequence[Question], answer_texts: Sequence[str]) -> list[float]:
    """`score` of each pair, in order; tasks that are slow to grade do it in parallel."""
    return [
      checked.call(self, f'score of question {q.id!r}', self.score, q, text)
      for q, text in zip(questions, answer_texts, strict=True)
    ]

  def graded_by(self, grader: str, question: Question, answer_text: str) -> float:
    """What one of `graders` says of an answer, in `[0, 1]`."""
    raise ValueError(f'task {self.name} has no grader {grader!r}')

  def canonical(self, answer_text: str) -> str | None:
    """The answer in a text in a form that can be compared for votes; None if it has none."""
    return answer_marks.passage(answer_text).strip() or None

  def gold_messages(self, question: Question) -> Sequence[tuple[str, str]]:
    """Returns right answers as the answering agent would write them, in several equivalent forms.

    The probability of the second part of a form after the first measures what a message is worth:
    what says how an answer is worded, not what it is, belongs in the first. Empty: there is no gold
    text, as of code.
    """
    return (('', question.answer),)

  def plain_message(self, question: Question, agent: int) -> str:
    """Returns the plainest message that tells an agent's note, '' where it has none."""
    return question.note(agent)

  def further_demonstrations(self) -> Sequence[Question]:
    """Returns questions that the supervised stage shows besides those of the training split.

    RL and evaluations never ask them.
    """
    return ()

  def note(self, splits: Sequence[str]) -> str:
    """What the user should know of the questions of some splits before a run, '' for nothing."""
    del splits
    return ''

  def _empty_remedy(self, split: str) -> str:
    """What to do about an empty split; ends the error message."""
    del split
    return 'choose another split'

  def questions(self, split: str) -> Sequence[Question]:
    """The questions of a split: indexable, with a length, always in the same order.

    Args:
      split: 'train', 'validation' or 'test'. No question is in two of them.

    Raises:
      ValueError: for an unknown split, or for one without questions.
      PluginError: for what is no list of questions, see `checked.questions`.
    """
    if split not in SPLITS:
      raise ValueError(f'split={split!r} of task {self.name} is unknown; use one of {SPLITS}')
    kept = vars(self).setdefault('_checked_questions', {})  # subclasses need not call __init__
    if split not in kept:
      asked = lambda: checked.questions(self, self._split(split), split)
      kept[split] = checked.call(self, f'split {split!r}', asked)
    if not len(kept[split]):
      raise ValueError(f'split {split!r} of task {self.name} is empty: {self._empty_remedy(split)}')
    return kept[split]

  def describe(self) -> dict[str, Any]:
    """Name and number of questions a split, for logs."""
    return {'name': self.name, **{split: len(self._split(split)) for split in SPLITS}}

  def constant_answer_accuracy(self, split: str, limit: int = 20_000) -> float:
    """Accuracy of always giving the most common gold answer.

    The row below which no team has learnt anything. It reads the first `limit`
    questions at most, since procedural splits can be very long.
    """
    found = self.questions(split)
    return most_common_share([found[i] for i in range(min(limit, len(found)))])


def most_common_share(questions: Sequence[Question]) -> float:
  """Share of the questions whose gold answer is the most common one of them."""
  golds = collections.Counter(question.answer for question in questions)
  return golds.most_common(1)[0][1] / len(questions)
