"""Evaluates accuracy, tokens and silence of any team under any policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from agent_gspo.evaluation import results
from agent_gspo.evaluation.options import EvaluationOptions
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
  """Evaluates a team on one episode per question.

  Args:
    team: Team of agents.
    task: Task that grades the answers.
    tokenizer: Tokenizer of the policy.
    questions: Held-out questions, divided among processes.
    policy: Policy that writes the messages.
    batch_questions: Questions per batch; affects memory and speed alone.
    progress: Callback with (questions done, questions in total).

  Returns:
    The record for `eval.jsonl` (see `results.figures`) and its episodes.
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
  """Samples one episode per question, in one batch; returns a record of each, and the batch.

  Args:
    team, task, tokenizer, questions, policy: See `evaluate`.
    **head: `step`, `split` and `label` of the records, see `results.of_questions`.
  """
  batch = rollout(team, task, tokenizer, questions, 1, policy)
  return results.of_questions(batch, team, task, tokenizer, **head), batch


def evaluated_questions(
  task: Task, options: EvaluationOptions, count: int, split: str = ''
) -> list[Question]:
  """Returns up to `count` questions for an evaluation.

  Args:
    task: Task with the questions.
    options: Section `evaluation` of the config.
    count: Number of questions.
    split: Split of the questions; that of the options by default.
  """
  found = task.questions(split or options.split)
  return [found[i] for i in question_indices(len(found), count, spread=options.spread)]


def question_indices(size: int, count: int, *, spread: bool) -> list[int]:
  """Returns the indices of up to `count` questions of a split.

  Args:
    size: Number of questions in the split.
    count: Number of questions to take, limited by `size`.
    spread: Whether to take them evenly from the whole split instead of its beginning (the files
      of MMLU are sorted by subject).
  """
  count = min(count, size)
  return [i * size // count if spread else i for i in range(count)]


def constant_answer(questions: Sequence[Question], split: str) -> dict[str, Any]:
  """Returns the record of a silent team that always gives the most common gold answer.

  Args:
    questions: Evaluated questions.
    split: Split of the questions.
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
