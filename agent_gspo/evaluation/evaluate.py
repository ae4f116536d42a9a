"""Accuracy, tokens and silence of any team under any policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_gspo.evaluation import results
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.sharding import hosts
from agent_gspo.tasks.base import Task, most_common_share
from agent_gspo.teams.batches import join, merge
from agent_gspo.teams.policies import Policy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import Team
from agent_gspo.types import Question, RolloutBatch


def evaluate(
  team: Team,
  task: Task,
  tokenizer: Tokenizer,
  questions: Sequence[Question],
  policy: Policy,
  *,
  batch_questions: int = 64,
  progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], RolloutBatch]:
  """One conversation about each question.

  Args:
    team: who talks.
    task: grades the answers.
    tokenizer: of the policy.
    questions: held-out questions; each process asks its share of them.
    policy: writes the messages.
    batch_questions: questions at a time; changes nothing but memory and speed.
    progress: called with (questions done, questions in all).

  Returns:
    The record for `eval.jsonl` (see `results.figures`) and the conversations behind it.
  """
  start = time.monotonic()
  records, batches = [], []
  for first in range(0, len(questions), batch_questions):
    progress(first, len(questions))
    part = questions[first : first + batch_questions]
    own = converse(team, task, tokenizer, part[hosts.share(len(part))], policy, step=0, split='')
    found, conversations = zip(*hosts.gather(own), strict=True)
    records += [record for some in found for record in some]
    batches.append(merge(conversations))
  progress(len(questions), len(questions))
  figures = {**results.figures(records, team.names), 'seconds': time.monotonic() - start}
  return figures, join(batches)


def converse(
  team: Team,
  task: Task,
  tokenizer: Tokenizer,
  questions: Sequence[Question],
  policy: Policy,
  **head: Any,
) -> tuple[list[dict[str, Any]], RolloutBatch]:
  """One conversation about each question at once: a record of each, and the conversations.

  Args:
    team, task, tokenizer, questions, policy: as of `evaluate`.
    **head: `step`, `split` and `label` of the records, see `results.of_questions`.
  """
  batch = rollout(team, task, tokenizer, questions, 1, policy)
  return results.of_questions(batch, team, task, tokenizer, **head), batch


def evaluated_questions(
  task: Task, options: Mapping[str, Any], count: int, split: str = ''
) -> list[Question]:
  """The questions of an evaluation of so many.

  Args:
    task: that has them.
    options: of the config's section `evaluation`.
    count: how many are wanted.
    split: of which they are; that of the options by default.
  """
  found = task.questions(split or options['split'])
  return [found[i] for i in question_indices(len(found), count, spread=options['spread'])]


def question_indices(size: int, count: int, *, spread: bool) -> list[int]:
  """Which questions of a split are asked.

  Args:
    size: of the split.
    count: how many are wanted; a split has no more than it has.
    spread: evenly from the whole split, not its first ones (the files of MMLU go by subjects).
  """
  count = min(count, size)
  return [i * size // count if spread else i for i in range(count)]


def constant_answer(questions: Sequence[Question], split: str) -> dict[str, Any]:
  """The record of a team that says nothing and always gives the most common answer of these.

  Args:
    questions: that are asked.
    split: of the questions.
  """
  return {
    'label': 'constant answer',
    'split': split,
    'questions': len(questions),
    'task/accuracy': most_common_share(questions),
    'tokens/written_per_question': 0.0,
    'tokens/read_per_question': 0.0,
    'agents': [],
  }
