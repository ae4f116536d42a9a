"""Makes one record per episode, and computes every figure of an evaluation from records.

An interrupted evaluation resumes from its records, so figures must not need other data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.evaluation import statistics, text_counts, transcripts
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.rewards import communication
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.tasks import checked
from agent_gspo.tasks.base import Task
from agent_gspo.teams import batches, counts
from agent_gspo.teams.team import Team
from agent_gspo.types import Question, RolloutBatch, runs
from agent_gspo.workdir import records as workdir_records

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Prices:
  """Prices in money per million tokens.

  Attributes:
    written: Price of tokens written.
    read: Price of tokens read.
    source: Source of the prices.
    inserted: Price of tokens that tools wrote, in addition to that of reading them.
    factors: Factor on an agent's prices, by name; 1 for agents without an entry.
  """

  written: float
  read: float
  source: str
  inserted: float = 0.0
  factors: Mapping[str, float] = dataclasses.field(default_factory=dict)


def of_questions(
  batch: RolloutBatch, team: Team, task: Task, tokenizer: Tokenizer, **head: Any
) -> list[dict[str, Any]]:
  """Returns a record per episode: its transcript (see `transcripts.records`) with all counts.

  Scores by the task's other graders are among them. `head` has `step`, `split` and `label`.
  """
  read, written = np.reshape(text_counts.count(team, tokenizer, batch), (-1, 2)).T
  columns = {'text_read': read, 'text_written': written}
  tokenizers = team.tokenizers_of_agents(tokenizer)
  found = transcripts.records(batch, range(batch.num_episodes), tokenizers, **head, columns=columns)
  for e, record in enumerate(found):
    question = batch.questions[batch.episode_question[e]]
    kind = checked.call(task, f'kind of question {question.id!r}', task.kind, question)
    if kind:
      record['kind'] = str(kind)
    if task.graders:
      record['graded'] = _graded(task, question, batch.answers[e], float(batch.task_scores[e]))
  return found


def _graded(task: Task, question: Question, answer: str, score: float) -> dict[str, float]:
  """Returns the score of an answer by each grader; `score` is the task's own."""
  own, *others = task.graders
  return {own: score, **{name: checked.graded_by(task, name, question, answer) for name in others}}


def of_records(records: Sequence[Record], names: Sequence[str]) -> RolloutBatch:
  """Returns the table of recorded episodes; record `i` is question and episode `i`.

  It has neither questions nor token ids.
  """
  number = {name: i for i, name in enumerate(names)}
  rows = [
    {
      **message,
      'episode': i,
      'question': i,
      'taken': True,
      'agent': number[message['agent']],
      'read_from': tuple((number[author], round_) for author, round_ in message['read_from']),
      **_tool_counts(message),
      'addressees': (
        None if (to := message['addressees']) is None else frozenset(number[name] for name in to)
      ),
    }
    for i, record in enumerate(records)
    for message in record['messages']
  ]
  episode = np.arange(len(records))
  return RolloutBatch(
    questions=(),
    agent_names=tuple(names),
    episode_question=episode,
    sample=np.zeros_like(episode),
    answers=tuple(record['answer'] for record in records),
    task_scores=np.asarray([record['task_score'] for record in records], float),
    messages=(),
    **batches.columns(rows),
  )


def _tool_counts(message: Mapping[str, Any]) -> dict[str, int]:
  """Returns the columns of a recorded message: tokens without a log-prob were inserted."""
  mask = np.asarray([logprob is None for _, logprob in message.get('tokens', ())], bool)
  return {'tool_calls': runs(mask), 'tool_tokens': int(mask.sum())}


def figures(
  records: Sequence[Record], names: Sequence[str], prices: Prices | None = None
) -> dict[str, Any]:
  """Returns the figures of an evaluation (95 % intervals: Wilson for accuracy, else bootstrap).

  Samples of a question are averaged before intervals are computed, which are over questions.
  Figures in money need `prices`.
  """
  batch = of_records(records, names)
  scores = batch.task_scores
  means = by_question(records, scores)  # [B]
  low, high = statistics.wilson_interval(float(means.sum()), len(means))
  written, solved = counts.by_episode(batch, batch.written), float(scores.sum())
  text = {
    key: np.asarray([m[key] for r in records for m in r['messages']], np.int64)
    for key in ('text_written', 'text_read')
  }
  edges, silence = counts.edges(batch), counts.silence_rates(batch, np.ones(len(batch.agent), bool))
  return {
    'questions': len(means),
    'task/accuracy': float(scores.mean()),
    'task/accuracy_low': low,
    'task/accuracy_high': high,
    **_by_grader(records),
    **_by_kind(records),
    **_by_samples(records),
    **_with_interval('tokens/written_per_question', by_question(records, written)),
    **_with_interval('tokens/read_per_question', per_question(records, 'read')),
    'tokens/written_per_solved': float(written.sum()) / solved if solved else None,
    'tokens/heard_per_question': sum(edge['tokens'] for edge in edges),
    'tokens/text_written_per_question': counts.per_question(batch, text['text_written']),
    'tokens/text_read_per_question': counts.per_question(batch, text['text_read']),
    'tokens/critical_path_per_question': counts.per_question(batch, counts.critical_path(batch)),
    'comm/calls_per_question': len(batch.agent) / len(records),
    **counts.tools(batch),
    **{f'comm/{name}': rate for name, rate in silence.items()},
    'comm/truncated_rate': float(batch.truncated.mean()) if len(batch.agent) else 0.0,
    **_money(batch, prices),
    'agents': _rows(batch, counts.agents(batch), batch.agent, text | _earned(records)),
    'edges': edges,
    'rounds': _rows(batch, counts.rounds(batch), batch.round, text),
  }


def paired(a: Sequence[Record], b: Sequence[Record]) -> tuple[list[Record], list[Record]]:
  """Returns the records of common questions and samples, in the order of the first argument.

  Raises:
    ValueError: There are none.
  """
  key = lambda record: (record['question_id'], record.get('sample', 0))
  theirs = {key(record): record for record in b}
  ours = [record for record in a if key(record) in theirs]
  if not ours:
    raise ValueError('no question was answered in both evaluations: run the same command again.')
  return ours, [theirs[key(record)] for record in ours]


def differences(a: Sequence[Record], b: Sequence[Record]) -> list[dict[str, Any]]:
  """Returns means and paired differences `a - b` of accuracy, Ctok and Ptok, with 95 % intervals.

  Returns:
    `measure`, `a`, `b`, `difference`, `difference_low`, `difference_high` of each measure, and
    `needed`: questions that would show this difference with a probability of 80 %, None if 0. One
    question has neither interval nor `needed`.

  Raises:
    ValueError: The questions or their gold answers are not the same, or there are none.
  """
  first, second = paired(a, b)
  for one, other in zip(first, second, strict=True):
    if one['gold'] != other['gold']:
      raise ValueError(
        f'question {one["question_id"]!r} has the gold answers {one["gold"]!r} and '
        f'{other["gold"]!r}: evaluate both systems with the same task.options.'
      )
  if not len(first) == len(a) == len(b):
    raise ValueError(
      f'{len(a)} and {len(b)} answers, {len(first)} of them to the same questions: evaluate both '
      'systems on the same questions (config.evaluation.split, .questions and .samples).'
    )
  measures: dict[str, Callable[[Sequence[Record]], np.ndarray]] = {
    'accuracy, %': lambda records: 100 * by_question(records, [r['task_score'] for r in records]),
    'tokens written per question (Ctok)': lambda records: per_question(records, 'written'),
    'tokens read per question (Ptok)': lambda records: per_question(records, 'read'),
  }
  rows = []
  for name, measure in measures.items():
    ours, theirs = measure(first), measure(second)
    gaps = ours - theirs
    mean, low, high = statistics.paired_bootstrap(ours, theirs)
    several = len(gaps) > 1  # one question has no interval
    if math.isclose(ours.mean(), theirs.mean(), rel_tol=1e-9):  # thirds do not sum exactly
      mean = 0.0
    rows.append(
      {
        'measure': name,
        'a': float(ours.mean()),
        'b': float(theirs.mean()),
        'difference': mean,
        'difference_low': low if several else None,
        'difference_high': high if several else None,
        'needed': statistics.questions_to_see(abs(mean), gaps) if mean and several else None,
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


def _by_kind(records: Sequence[Record]) -> dict[str, float]:
  """Returns the accuracy on each kind of question, if the task has kinds."""
  scores: dict[str, list[float]] = {}
  for record in records:
    if 'kind' in record:
      scores.setdefault(record['kind'], []).append(record['task_score'])
  return {f'{workdir_records.KIND}{kind}': float(np.mean(scores[kind])) for kind in sorted(scores)}


def _by_samples(records: Sequence[Record]) -> dict[str, float]:
  """Returns pass@k and pass^k for each power of two up to the samples of every question."""
  scores: dict[str, list[float]] = {}
  for record in records:
    scores.setdefault(record['question_id'], []).append(record['task_score'])
  samples = min(map(len, scores.values()))
  if samples == 1:
    return {}
  found: dict[str, float] = {'samples_per_question': samples}
  for k in (1 << i for i in range(1, samples.bit_length())):
    best = [statistics.expected_best(x, k) for x in scores.values()]
    worst = [-statistics.expected_best(np.negative(x), k) for x in scores.values()]
    found[f'{workdir_records.PASS}@{k}'] = float(np.mean(best))
    found[f'{workdir_records.PASS}^{k}'] = float(np.mean(worst))
  return found


def votes(
  records: Sequence[Record], team: Team, task: Task, questions: Mapping[str, Question]
) -> dict[str, float | None]:
  """Returns how much the voters of a majority team differ; {} for other teams or own episodes.

  `votes/error_correlation` and `votes/independent` are those of `statistics.error_correlation`: a
  voter without an answer errs. `votes/channels` is K*, the mean of `statistics.effective_channels`
  over episodes with an answer.

  `task` grades and normalizes each vote; `questions` are by id.
  """
  if team.decision != 'majority' or team.num_agents < 2 or task.converse:
    return {}
  last = team.topology.rounds - 1
  said = [{m['agent']: m['text'] for m in r['messages'] if m['round'] == last} for r in records]
  texts = [team.body(by_name.get(name, '')) for by_name in said for name in team.names]
  asked = [questions[r['question_id']] for r in records for _ in team.names]
  errors = 1 - np.reshape(checked.scores(task, asked, texts), (len(records), -1))
  given = np.reshape([task.canonical(text) for text in texts], errors.shape)
  answered = [[answer for answer in row if answer is not None] for row in given.tolist()]
  channels = [statistics.effective_channels(answers) for answers in answered if answers]
  correlation, independent = statistics.error_correlation(errors)
  return {
    'votes/error_correlation': correlation,
    'votes/independent': independent,
    'votes/channels': float(np.mean(channels)) if channels else None,
  }


def by_question(records: Sequence[Record], values: Sequence[float] | np.ndarray) -> np.ndarray:
  """Averages `values` of records `[E]` over the samples of each question, float64 `[B]`."""
  index: dict[str, int] = {}
  place = [index.setdefault(record['question_id'], len(index)) for record in records]
  return np.bincount(place, values) / np.bincount(place)


def per_question(records: Sequence[Record], key: str) -> np.ndarray:
  """Sums `key` (`written`, `read`, ...) over messages, averages over samples, float `[B]`."""
  return by_question(records, [sum(m[key] for m in record['messages']) for record in records])


def _with_interval(name: str, values: np.ndarray) -> dict[str, float]:
  low, high = statistics.bootstrap_interval(values)
  return {name: float(np.mean(values)), f'{name}_low': low, f'{name}_high': high}


def _money(batch: RolloutBatch, prices: Prices | None) -> dict[str, Any]:
  if prices is None:
    return {}
  options = RewardOptions(
    cost='money',
    p_write=prices.written,
    p_read=prices.read,
    p_tool=prices.inserted,
    prices=dict(prices.factors),
  )
  return {
    'money/per_question': counts.per_question(batch, communication.message_costs(options, batch)),
    'money/prices_per_million': dataclasses.asdict(prices),
  }


def _earned(records: Sequence[Record]) -> dict[str, np.ndarray]:
  """Returns the reward of each message in an environment, float64 `[M]`; {} in other tasks."""
  earned = [m.get('earned') for r in records for m in r['messages']]
  if all(x is None for x in earned):
    return {}
  return {'earned': np.asarray([x or 0.0 for x in earned])}


def _rows(batch: RolloutBatch, rows, place: np.ndarray, more: Mapping[str, np.ndarray]) -> list:
  """Returns rows of counts with means of `more`, `[M]` each, added."""
  return [
    row
    | {f'{key}_per_question': counts.per_question(batch, n, place == i) for key, n in more.items()}
    for i, row in enumerate(rows)
  ]
