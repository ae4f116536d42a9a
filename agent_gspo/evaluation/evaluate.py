"""Evaluates accuracy, tokens and silence of any team under any policy."""

from __future__ import annotations

import collections
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from agent_gspo.evaluation import results
from agent_gspo.evaluation.options import EvaluationOptions
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.sharding import hosts
from agent_gspo.tasks.base import Task, most_common_share
from agent_gspo.teams.batches import join
from agent_gspo.teams.policies import EndpointError, Policy, RefusedError
from agent_gspo.teams.rollout import rollout, without_hints
from agent_gspo.teams.team import Team
from agent_gspo.types import Question, RolloutBatch

_IN_A_ROW = 10  # consecutive failed batches that end an evaluation
_Batch = TypeVar('_Batch')
_Found = TypeVar('_Found')


def evaluate(
  team: Team,
  task: Task,
  tokenizer: Tokenizer,
  questions: Sequence[Question],
  policy: Policy,
  *,
  samples: int = 1,
  batch_questions: int = 64,
  progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], RolloutBatch]:
  """Evaluates a team on `samples` episodes per question; processes share the questions.

  Agents that read the gold answer are made silent, and count as silent.

  `batch_questions`, the most episodes of a batch, affects only memory and speed. `progress` is
  called with (questions done, questions in total).

  Returns:
    The record for `eval.jsonl` (see `results.figures`) and its episodes.
  """

  def sample(part: Sequence[Question]):
    mine = part[hosts.share(len(part))]
    own = converse(team, task, tokenizer, mine, policy, samples, step=0, split='')
    return zip(*hosts.gather(own), strict=True)

  start, done = time.monotonic(), 0
  records, rollouts = [], []
  progress(0, len(questions))
  batches = in_batches(questions, max(1, batch_questions // samples))
  for part, (found, conversations) in sample_batches(batches, sample):
    records += [record for some in found for record in some]
    rollouts.append(join(conversations, as_one=True))
    done += len(part)
    progress(done, len(questions))
  figures = {**results.figures(records, team.names), 'seconds': time.monotonic() - start}
  return figures, join(rollouts)


def converse(
  team: Team,
  task: Task,
  tokenizer: Tokenizer,
  questions: Sequence[Question],
  policy: Policy,
  samples: int = 1,
  **head: Any,
) -> tuple[list[dict[str, Any]], RolloutBatch]:
  """Samples the episodes of some questions in one batch; returns a record of each, and the batch.

  `head` has `step`, `split` and `label` of the records, see `results.of_questions`.
  """
  voice = without_hints(policy, team, tokenizer)
  batch = rollout(team, task, tokenizer, questions, samples, voice)
  return results.of_questions(batch, team, task, tokenizer, **head), batch


def in_batches(questions: Sequence[Question], size: int) -> list[Sequence[Question]]:
  """Splits questions into batches of `size`, the last one smaller if they do not divide."""
  return [questions[first : first + size] for first in range(0, len(questions), size)]


def sample_batches(
  batches: Sequence[_Batch],
  sample: Callable[[_Batch], _Found],
  concurrent: int = 0,
  answered: bool = False,
) -> Iterator[tuple[_Batch, _Found]]:
  """Samples the episodes of each batch; used by evaluations, baselines and probes.

  Args:
    batches: Batches of questions.
    sample: Function from a batch to its result.
    concurrent: Batches sampled at once by threads, each of which may fail, as behind an endpoint;
      0 samples them in order.
    answered: Whether the endpoint has answered before; then refused replies are not an outage.

  Yields:
    Each batch when it ends, with its result; if `concurrent`, this may be an `EndpointError`.

  Raises:
    EndpointError: `_IN_A_ROW` batches failed in a row, so the endpoint seems to be down. After an
      answer, refused replies do not count.
  """
  if not concurrent:
    yield from ((batch, sample(batch)) for batch in batches)
    return
  waiting = collections.deque(batches)
  ended: queue.SimpleQueue[tuple[_Batch, Any]] = queue.SimpleQueue()

  def work() -> None:
    while waiting:
      try:
        batch = waiting.popleft()
      except IndexError:  # another thread took the last one
        return
      try:
        ended.put((batch, sample(batch)))
      except BaseException as error:
        ended.put((batch, error))

  # Daemon threads: the process may end without waiting for a reply that never comes.
  for _ in range(min(concurrent, len(batches))):
    threading.Thread(target=work, daemon=True).start()
  in_a_row = 0
  try:
    for _ in batches:
      batch, found = ended.get()
      if isinstance(found, BaseException) and not isinstance(found, EndpointError):
        raise found
      yield batch, found
      if not isinstance(found, EndpointError):
        answered, in_a_row = True, 0
      elif not (answered and isinstance(found, RefusedError)):
        in_a_row += 1
      if in_a_row == _IN_A_ROW:
        raise EndpointError(
          f'{in_a_row} conversations in a row failed. Answers so far are in --out; the same '
          f'command resumes. The last error: {found}'
        )
  finally:
    waiting.clear()


def evaluated_questions(
  task: Task, options: EvaluationOptions, count: int, split: str = ''
) -> list[Question]:
  """Returns up to `count` questions of a split, by default that of the options."""
  found = task.questions(split or options.split)
  return [found[i] for i in question_indices(len(found), count, spread=options.spread)]


def question_indices(size: int, count: int, *, spread: bool) -> list[int]:
  """Returns the indices of up to `count` questions of a split of `size`.

  With `spread` they are taken evenly from the whole split instead of its beginning (the files of
  MMLU are sorted by subject).
  """
  count = min(count, size)
  return [i * size // count if spread else i for i in range(count)]


def constant_answer(questions: Sequence[Question], split: str) -> dict[str, Any]:
  """Returns the record of a silent team that always gives the most common gold answer."""
  return {
    'label': 'constant answer',
    'split': split,
    'questions': len(questions),
    'task/accuracy': most_common_share(questions),
    'tokens/written_per_question': 0.0,
    'tokens/read_per_question': 0.0,
    'agents': [],
  }
