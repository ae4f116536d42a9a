"""Defines MATH and its 500-problem test set, with expressions as answers."""

from __future__ import annotations

import json
import pathlib

from agent_gspo.tasks.benchmarks.official import OfficialTask, Read
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.draws import bucket
from agent_gspo.tasks.grading import answer_marks, graders
from agent_gspo.types import Question

_TRAIN = sources.Source(
  'math/data/MATH/train.json',
  'TsinghuaC3I/MARTI',
  'a2fe2c7',
  '5a6ad0797d888927999b4085ed34c9567df978b2a762fdc2e630248a58447206',
)


def _held_in(path: pathlib.Path, folders: tuple[str, ...]) -> Read:
  """Splits the training file, without two empty answers and one duplicate record."""
  records = {record['id']: record for record in json.loads(path.read_text(encoding='utf-8'))}
  for record in records.values():
    if record['id'].startswith(folders) and record['answer'].strip():
      text = record['prompt'].strip()
      split = 'validation' if bucket(text) < 5 else 'train'
      name = record['id'].removesuffix('.json')
      yield split, Question(f'math-{name}', text, record['answer'].strip())


class Math500(OfficialTask):
  """MATH-500, the test problems of "Let's Verify Step by Step" (arXiv 2305.20050).

  test: the official 500. train and validation: the 8,887 level 3 to 5 problems of the
  12,000 that are not among them; hash buckets 0-4 of 100 are the validation split. The
  training split contains 3,300 test problems of the task `math`.
  """

  name = 'math500'
  GRADERS = graders.MATH
  SOURCES = (
    _TRAIN,
    sources.Source(
      'math500/prm800k/math_splits/test.jsonl',
      # openai/prm800k keeps it in Git LFS; this copy has the hash that is noted there.
      'ZubinGou/math-evaluation-harness',
      'dcfa46a2e476a71dc46c957822808435d4e2c3cc',
      '35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132',
      remote_path='data/math_oai/test.jsonl',
    ),
  )

  @classmethod
  def read(cls, *paths: pathlib.Path) -> Read:
    yield from _held_in(paths[0], ('train/', 'test/'))
    for record in sources.parse_lines(paths[1].read_text(encoding='utf-8')):
      name = record['unique_id'].removesuffix('.json')
      text, gold = record['problem'].strip(), record['answer'].strip()
      yield 'test', Question(f'math-{name}', text, gold)


class Math(OfficialTask):
  """Competition mathematics (Hendrycks et al. 2021, arXiv 2103.03874).

  test: the official 5,000. train and validation: the 5,585 level 3 to 5 problems of the
  official training set; hash buckets 0-4 of 100 are the validation split.
  """

  name = 'math'
  GRADERS = graders.MATH
  SOURCES = (
    _TRAIN,
    sources.Source(
      'math/data/math/test.jsonl',
      'ZubinGou/math-evaluation-harness',
      'dcfa46a2e476a71dc46c957822808435d4e2c3cc',
      '3371949f33dd702d04b43fddd7d53a028de0aaca0e76abb1b875a050297b3aa4',
    ),
  )

  @classmethod
  def read(cls, *paths: pathlib.Path) -> Read:
    yield from _held_in(paths[0], ('train/',))
    for record in sources.parse_lines(paths[1].read_text(encoding='utf-8')):
      gold = next(answer_marks.boxed(record['solution'])).strip()
      yield 'test', Question(f'math-{record["idx"]}', record['problem'].strip(), gold)
