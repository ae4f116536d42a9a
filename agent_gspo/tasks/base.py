"""Defines the interface of a task: questions in three splits, and a verifier."""

from __future__ import annotations

import abc
import collections
import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.tasks import checked
from agent_gspo.tasks.data import draws
from agent_gspo.tasks.grading import answer_marks
from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.tasks.options import SPLITS
from agent_gspo.types import Message, Question


class Task(abc.ABC):
  """Set of questions with a verifier.

  Attributes:
    name: Name for `make_task`.
    converse: Own episode of the task, a generator function of a `teams.conversation.Conversation`;
      None for the turns of the team's topology.
    threads: Episodes of a rollout with `converse` that run concurrently between two layers; above 1
      if they wait for something, such as a web page. Their code must then be thread-safe.
    graders: Names of the available graders, that of `score` first; empty if there is only one.
      Scores of the others are reported in addition (`graded_by`).
  """

  name: str
  graders: Sequence[str] = ()
  converse: Callable[[Any], Generator[Any, Any, str]] | None = None
  threads: int = 1

  @abc.abstractmethod
  def _split(self, split: str) -> Sequence[Question]:
    """Returns the questions of `split`, one of `SPLITS`; may be empty."""

  @abc.abstractmethod
  def score(self, question: Question, answer_text: str) -> float:
    """Returns the score of an answer, in `[0, 1]`."""

  def score_all(self, questions: Sequence[Question], answer_texts: Sequence[str]) -> list[float]:
    """Returns the `score` of each pair, in order; tasks with slow graders do it in parallel."""
    return [
      checked.call(self, f'score of question {q.id!r}', self.score, q, text)
      for q, text in zip(questions, answer_texts, strict=True)
    ]

  def graded_by(self, grader: str, question: Question, answer_text: str) -> float:
    """Returns an answer's score by one of `graders`, in `[0, 1]`."""
    raise ValueError(f'task {self.name} has no grader {grader!r}')

  def canonical(self, answer_text: str) -> str | None:
    """Returns the answer in a text, normalized for votes; None if it has none."""
    return answer_marks.passage(answer_text).strip() or None

  def gold_messages(self, question: Question) -> Sequence[tuple[str, str]]:
    """Returns right answers as the answering agent would write them, in several equivalent forms.

    Each form is a pair. The probability of the second part given the first measures the value of
    a message; the first contains wording that does not depend on the answer. Empty without a gold
    text, as for code.
    """
    return (('', question.answer),)

  def plain_message(self, question: Question, agent: int) -> str:
    """Returns the plainest message with an agent's note, '' without a note."""
    return question.note(agent)

  def story(self, question: Question) -> str:
    """Returns a key shared by all versions of a training question; SFT holds out all or none."""
    return question.story or question.id

  def kind(self, question: Question) -> str:
    """Returns the kind of a question, of which evaluations report the accuracy; '' for none."""
    del question
    return ''

  def policy_figures(
    self,
    play: Callable[[Callable[[Any], str], Sequence[Question]], Sequence[Message]],
    log_probability: Callable[[Sequence[Message], str], np.ndarray],
  ) -> Mapping[str, float]:
    """Returns figures that evaluations read from the policy itself; none by default.

    Args:
      play: Plays a script, which maps a turn to its text, once for each question; returns all
        messages.
      log_probability: Log-probability of a text at the prompt of each message, float64 `[M]`.
    """
    del play, log_probability
    return {}

  def further_demonstrations(self) -> Sequence[Question]:
    """Returns additional questions for SFT demonstrations.

    RL and evaluations never use them.
    """
    return ()

  def note(self, splits: Sequence[str]) -> str:
    """Returns a notice to users about the questions of some splits, '' for none."""
    del splits
    return ''

  def _empty_remedy(self, split: str) -> str:
    """Returns the remedy for an empty split, the end of the error message."""
    del split
    return 'choose another split'

  def questions(self, split: str) -> Sequence[Question]:
    """Returns the questions of a split: indexable, with a length, always in the same order.

    Args:
      split: 'train', 'validation' or 'test'. No question is in two of them.

    Raises:
      ValueError: if the split is unknown or empty.
      PluginError: if it is not a list of questions, see `checked.questions`.
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


def most_common_share(questions: Sequence[Question]) -> float:
  """Returns the share of the most common gold answer, which a team must exceed."""
  golds = collections.Counter(question.answer for question in questions)
  return golds.most_common(1)[0][1] / len(questions)


def demonstrated(task: Task, share: float) -> Sequence[Question]:
  """Returns the questions of SFT: all training questions outside the hold-out fraction `share`.

  Those of `Task.further_demonstrations` are always included.
  """
  kept, further = _parted(task, share)[0], task.further_demonstrations()
  return [*kept, *further] if further else kept


def note_holders(questions: Sequence[Question]) -> int:
  """Returns the largest number of notes of a question, see `drawn_already`."""
  return max(len(question.notes) for question in drawn_already(questions))


def drawn_already(questions: Sequence[Question]) -> Sequence[Question]:
  """Returns the questions; of a generated split only the first, as all have as many notes."""
  return questions if isinstance(questions, list | tuple) else questions[:1]


def asked(task: Task, share: float) -> Sequence[Question]:
  """Returns the training questions of RL: those held out from SFT, or all if `share` is 0.

  A policy may have memorized the relevant notes and answers of demonstrated stories: on these, RL
  sees few mistakes, and not the cost of silence on new stories.
  """
  return _parted(task, share)[1]


def digest(questions: Sequence[Question]) -> str:
  """Returns the SHA-256 (hex) of listed questions, '' for questions drawn from options."""
  listed = isinstance(questions, list) or (isinstance(questions, tuple) and len(questions) > 0)
  return hashlib.sha256(repr(questions).encode()).hexdigest() if listed else ''


def _parted(task: Task, share: float) -> tuple[Sequence[Question], Sequence[Question]]:
  """Returns the training questions of SFT and those of RL, all of them for both if `share` is 0.

  The split is random by story (`Task.story`), the same in all runs. Of a generated split the last
  questions are held out: they are alike, and building all of them takes minutes.
  """
  questions = task.questions('train')
  if not share:
    return questions, questions
  if not isinstance(questions, list | tuple):
    kept = len(questions) - round(share * len(questions))
    later = LazyQuestions(len(questions) - kept, lambda i: questions[kept + i])
    return LazyQuestions(kept, lambda i: questions[i]), later
  parts: tuple[list[Question], list[Question]] = [], []
  for question in questions:
    parts[draws.rng('held back', task.story(question)).random() < share].append(question)
  return parts
