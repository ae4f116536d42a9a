"""Makes one record per question, and computes every figure of an evaluation from records.

An interrupted evaluation resumes from its records, so no figure may need more than they hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.evaluation import statistics, text_counts, transcripts
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task
from agent_gspo.teams.counts import MessageCounts, from_rows
from agent_gspo.teams.team import Team
from agent_gspo.types import Episode, Question, RolloutBatch
from agent_gspo.workdir import records as workdir_records

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Prices:
  """Prices in money per million tokens.

  Attributes:
    written: Price of tokens written.
    read: Price of tokens read.
    source: Source of the prices.
  """

  written: float
  read: float
  source: str


def of_questions(
  batch: RolloutBatch, team: Team, task: Task, tokenizer: Tokenizer, **head: Any
) -> list[dict[str, Any]]:
  """Returns a record per episode: its transcript (see `transcripts.records`) with all counts.

  Args:
    batch: Episodes.
    team: Team of the episodes.
    task: Task, whose other graders' scores are recorded too.
    tokenizer: Tokenizer of the policy.
    **head: `step`, `split` and `label` of the records.
  """
  read, written = np.reshape(text_counts.count(team, tokenizer, batch), (-1, 2)).T
  columns = {'text_read': read, 'text_written': written}
  found = transcripts.records(batch, range(len(batch.episodes)), tokenizer, **head, columns=columns)
  for record, episode in zip(found, batch.episodes, strict=True):
    if task.graders:
      record['graded'] = _graded(task, batch.questions[episode.question], episode)
  return found


def _graded(task: Task, question: Question, episode: Episode) -> dict[str, float]:
  """Returns the score of the answer by each grader; reuses the task's own score."""
  own, *others = task.graders
  asked = {name: checked.graded_by(task, name, question, episode.answer) for name in others}
  return {own: episode.task_score, **asked}


def message_counts(records: Sequence[Record], names: Sequence[str]) -> MessageCounts:
  """Returns the counts of recorded episodes; record `i` is question and episode `i`.

  Args:
    records: Records, see `of_questions`.
    names: Names of the agents.
  """
  number = {name: i for i, name in enumerate(names)}
  rows = [
    {
      **message,
      'episode': i,
      'question': i,
      'agent': number[message['agent']],
      'read_from': tuple((number[author], round_) for author, round_ in message['read_from']),
      'addressees': (
        None if (to := message['addressees']) is None else frozenset(number[name] for name in to)
      ),
    }
    for i, record in enumerate(records)
    for message in record['messages']
  ]
  return from_rows(rows, len(records), names)


def figures(
  records: Sequence[Record], names: Sequence[str], prices: Prices | None = None
) -> dict[str, Any]:
  """Returns the figures of an evaluation (95 % intervals: Wilson for accuracy, else bootstrap).

  Args:
    records: Records, one per question, at least one; see `of_questions`.
    names: Names of the agents.
    prices: Prices of tokens, for the figures in money.
  """
  counts = message_counts(records, names)
  scores = np.asarray([record['task_score'] for record in records], float)
  low, high = statistics.wilson_interval(float(scores.sum()), len(scores))
  text = {
    key: np.asarray([m[key] for r in records for m in r['messages']], np.int64)
    for key in ('text_written', 'text_read')
  }
  everybody, edges = np.ones(len(counts.agent), bool), counts.edges()
  return {
    'questions': len(records),
    'task/accuracy': float(scores.mean()),
    'task/accuracy_low': low,
    'task/accuracy_high': high,
    **_by_grader(records),
    **_with_interval('tokens/written_per_question', counts.written_per_episode()),
    **_with_interval('tokens/read_per_question', per_question(records, 'read')),
    'tokens/heard_per_question': sum(edge['tokens'] for edge in edges),
    'tokens/text_written_per_question': counts.per_question(text['text_written']),
    'tokens/text_read_per_question': counts.per_question(text['text_read']),
    'tokens/critical_path_per_question': counts.per_question(counts.critical_path()),
    'comm/calls_per_question': len(counts.agent) / len(records),
    'comm/silence_rate': counts.silence_rate(everybody),
    'comm/silence_rate_relevant': counts.silence_rate(counts.relevant == 1),
    'comm/silence_rate_irrelevant': counts.silence_rate(counts.relevant == 0),
    'comm/truncated_rate': float(counts.truncated.mean()) if len(counts.agent) else 0.0,
    **_money(counts, prices),
    'agents': _rows(counts, counts.agents(), counts.agent, text),
    'edges': edges,
    'rounds': _rows(counts, counts.rounds(), counts.round, text),
  }


def paired(a: Sequence[Record], b: Sequence[Record]) -> tuple[list[Record], list[Record]]:
  """Returns the records of common questions, in the order of the first argument.

  Raises:
    ValueError: There are none.
  """
  theirs = {record['question_id']: record for record in b}
  ours = [record for record in a if record['question_id'] in theirs]
  if not ours:
    raise ValueError('no question was answered in both evaluations: run the same command again.')
  return ours, [theirs[record['question_id']] for record in ours]


def differences(a: Sequence[Record], b: Sequence[Record]) -> list[dict[str, Any]]:
  """Returns means and paired differences `a - b` of accuracy, Ctok and Ptok, with 95 % intervals.

  Args:
    a: Records of one system, one per question.
    b: Records of the other one, in any order.

  Returns:
    `measure`, `a`, `b`, `difference`, `difference_low`, `difference_high` of each measure.

  Raises:
    ValueError: The questions are not the same, or there are none.
  """
  first, second = paired(a, b)
  if not len(first) == len(a) == len(b):
    raise ValueError(
      f'{len(a)} and {len(b)} questions, {len(first)} of them the same: evaluate both systems '
      'on the same questions (config.evaluation.split and .questions).'
    )
  measures: dict[str, Callable[[Sequence[Record]], np.ndarray]] = {
    'accuracy, %': lambda records: 100 * np.asarray([r['task_score'] for r in records], float),
    'tokens written a question (Ctok)': lambda records: per_question(records, 'written'),
    'tokens read a question (Ptok)': lambda records: per_question(records, 'read'),
  }
  rows = []
  for name, measure in measures.items():
    ours, theirs = measure(first), measure(second)
    gap = statistics.paired_bootstrap(ours, theirs)
    rows.append(
      {
        'measure': name,
        'a': float(ours.mean()),
        'b': float(theirs.mean()),
        'difference': gap.mean,
        'difference_low': gap.low,
        'difference_high': gap.high,
      }
    )
  return rows


def _by_grader(records: Sequence[Record]) -> dict[str, float]:
  """Returns the accuracy by every grader, if the task has several."""
  names = records[0].get('graded', {})
  scores = {name: [record.get('graded', {}).get(name) for record in records] for name in names}
  known = {name: values for name, values in scores.items() if None not in values}
  return {
    f'{workdir_records.GRADED}{name}': float(np.mean(values)) for name, values in known.items()
  }


def per_question(records: Sequence[Record], key: str) -> np.ndarray:
  """Sums `key` (`written`, `read`, ...) over the messages of each question, float `[B]`."""
  return np.asarray([sum(m[key] for m in record['messages']) for record in records], float)


def _with_interval(name: str, values: np.ndarray) -> dict[str, float]:
  low, high = statistics.bootstrap_interval(values)
  return {name: float(np.mean(values)), f'{name}_low': low, f'{name}_high': high}


def _money(counts: MessageCounts, prices: Prices | None) -> dict[str, Any]:
  if prices is None:
    return {}
  tokens = prices.written * counts.written + prices.read * counts.read
  return {
    'money/per_question': counts.per_question(tokens) / 1e6,
    'money/prices_per_million': dataclasses.asdict(prices),
  }


def _rows(counts: MessageCounts, rows, place: np.ndarray, text: Mapping[str, np.ndarray]) -> list:
  """Returns rows of counts with plain-text counts added."""
  return [
    row | {f'{key}_per_question': counts.per_question(n, place == i) for key, n in text.items()}
    for i, row in enumerate(rows)
  ]
