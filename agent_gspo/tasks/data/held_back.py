"""Which training questions are demonstrated, and which RL asks (`sft.held_back`)."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gspo.tasks.base import Task
from agent_gspo.tasks.data import strata
from agent_gspo.types import Question


def demonstrated(task: Task, share: float) -> Sequence[Question]:
  """Returns the questions of the supervised stage: all training questions not held back from it.

  Those of `Task.further_demonstrations` are among them, whatever the share.
  """
  questions = task.questions('train')
  kept = [q for q in questions if not _is_held_back(q, share)] if share else questions
  further = task.further_demonstrations()
  return [*kept, *further] if further else kept


def asked(task: Task, share: float) -> Sequence[Question]:
  """The training questions of RL: those held back from the supervised stage, if any are, else all.

  Of a story that was demonstrated a policy may know by heart who is needed and what the answer is:
  there RL sees few mistakes, and not what silence costs on stories that are new.
  """
  questions = task.questions('train')
  return [q for q in questions if _is_held_back(q, share)] if share else questions


def _is_held_back(question: Question, share: float) -> bool:
  """One lot a story, the same in all runs: its copies with other numbers go where it goes."""
  return strata.rng('held back', question.story or question.id).random() < share
