"""Accuracy, tokens and silence of any team under any policy."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agent_gspo.evaluation import statistics
from agent_gspo.models.tokenizer import Tokenizer
from agent_gspo.tasks.base import Task
from agent_gspo.teams import accountant
from agent_gspo.teams.policies import Policy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import Team
from agent_gspo.teams.topology import make_topology
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
    questions: held-out questions.
    policy: writes the messages.
    batch_questions: questions at a time; changes nothing but memory and speed.
    progress: called with (questions done, questions in all).

  Returns:
    The record for `eval.jsonl` (95 % intervals: Wilson for accuracy, bootstrap over
    questions for tokens) and the conversations behind it.
  """
  start = time.monotonic()
  batches = []
  for first in range(0, len(questions), batch_questions):
    progress(first, len(questions))
    part = questions[first : first + batch_questions]
    batches.append(rollout(team, task, tokenizer, part, 1, policy))
  progress(len(questions), len(questions))
  batch = _join(batches)
  return {**summarize(batch), 'seconds': time.monotonic() - start}, batch


def summarize(batch: RolloutBatch) -> dict[str, Any]:
  """The figures of a set of conversations."""
  ledger = accountant.ledger(batch)
  scores = np.asarray([e.task_score for e in batch.episodes])
  low, high = statistics.wilson_interval(float(scores.sum()), len(scores))
  written = ledger.written_per_episode()
  written_low, written_high = statistics.bootstrap_interval(written)
  everybody = np.ones(len(ledger.agent), bool)
  return {
    'questions': len(batch.questions),
    'task/accuracy': float(scores.mean()),
    'task/accuracy_low': low,
    'task/accuracy_high': high,
    'tokens/written_per_question': float(written.mean()),
    'tokens/written_per_question_low': written_low,
    'tokens/written_per_question_high': written_high,
    'tokens/read_per_question': ledger.per_question(ledger.read),
    'tokens/critical_path_per_question': ledger.per_question(ledger.critical_path()),
    'comm/calls_per_question': len(ledger.agent) / max(ledger.num_episodes, 1),
    'comm/silence_rate': ledger.silence_rate(everybody),
    'comm/silence_rate_relevant': ledger.silence_rate(ledger.relevant == 1),
    'comm/silence_rate_irrelevant': ledger.silence_rate(ledger.relevant == 0),
    'comm/truncated_rate': float(ledger.truncated.mean()) if len(ledger.agent) else 0.0,
    'agents': ledger.agents(),
    'rounds': ledger.rounds(),
  }


def decider_alone(team: Team) -> Team:
  """The team's last agent without teammates: what guessing from the question gives."""
  return dataclasses.replace(
    team,
    roles=team.roles[-1:],
    names=team.names[-1:],
    topology=make_topology('single', 1),
    decision='last',
    max_episode_tokens=0,
  )


def constant_answer(task: Task, split: str, questions: int) -> dict[str, Any]:
  """The record of a team that says nothing and always gives the most common answer."""
  return {
    'label': 'constant answer',
    'split': split,
    'questions': questions,
    'task/accuracy': task.constant_answer_accuracy(split, questions),
    'tokens/written_per_question': 0.0,
    'tokens/read_per_question': 0.0,
    'agents': [],
  }


def _join(batches: Sequence[RolloutBatch]) -> RolloutBatch:
  questions, episodes, messages = [], [], []
  for batch in batches:
    messages += [dataclasses.replace(m, episode=m.episode + len(episodes)) for m in batch.messages]
    episodes += [
      dataclasses.replace(e, question=e.question + len(questions)) for e in batch.episodes
    ]
    questions += batch.questions
  return RolloutBatch(
    questions=tuple(questions),
    episodes=tuple(episodes),
    messages=tuple(messages),
    agent_names=batches[0].agent_names,
  )
