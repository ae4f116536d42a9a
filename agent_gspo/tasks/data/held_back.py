"""Splits training questions between SFT and RL (`sft.held_back`)."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gspo.tasks.base import Task
from agent_gspo.tasks.data import draws
from agent_gspo.types import Question


def demonstrated(task: Task, share: float) -> Sequence[Question]:
  """Returns the questions of SFT: all training questions outside the hold-out fraction `share`.

  Those of `Task.further_demonstrations` are always included.
  """
  questions = task.questions('train')
  kept = [q for q in questions if not _is_held_back(q, share)] if share else questions
  further = task.further_demonstrations()
  return [*kept, *further] if further else kept


def asked(task: Task, share: float) -> Sequence[Question]:
  """Returns the training questions of RL: those held out from SFT, or all if `share` is 0.

  A policy may have memorized the relevant notes and answers of demonstrated stories: on these, RL
  sees few mistakes, and not the cost of silence on new stories.
  """
  questions = task.questions('train')
  return [q for q in questions if _is_held_back(q, share)] if share else questions


def _is_held_back(question: Question, share: float) -> bool:
  """Draws once per story, equally in all runs; augmented copies share its result."""
  return draws.rng('held back', question.story or question.id).random() < share
