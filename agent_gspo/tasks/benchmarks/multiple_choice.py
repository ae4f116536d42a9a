"""Defines AQuA and MMLU: a question, lettered options, and the letter of the right one."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Sequence

from agent_gspo.tasks.benchmarks.official import OfficialTask, Read
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.draws import bucket
from agent_gspo.tasks.grading import graders
from agent_gspo.types import Question

LETTERS = 'ABCDE'
_MMLU_FILES = pathlib.Path(__file__).with_name('mmlu.sha256')  # in the format of sha256sum


def with_options(question: str, options: Sequence[str]) -> str:
  """Appends a line for each option to a question, "A) ..." and so on."""
  lines = [f'{letter}) {option}' for letter, option in zip(LETTERS, options, strict=False)]
  return '\n'.join([question, *lines])


class AQuA(OfficialTask):
  """Algebra word problems with five options (Ling et al. 2017, arXiv 1705.04146).

  test: the official 254. train and validation: the official 254 of dev, of which those
  in hash buckets 0-19 of 100 are the validation split. The official training file (about
  97,000 problems) is not used.
  """

  name = 'aqua'
  GRADERS = graders.choice('ABCDE', graders.legacy_aqua)
  SOURCES = tuple(
    sources.Source(f'aqua/{split}.json', 'google-deepmind/AQuA', '26b64ed', sha256)
    for split, sha256 in (
      ('dev', '4a52301d8a49ae0b286f8e697f9c5da1b109b247b825b47b4c6de34312dceec5'),
      ('test', 'de41581881ef95c5588c44ddc701c77fd480839241dd422a0d181262af24520c'),
    )
  )

  @classmethod
  def read(cls, *paths: pathlib.Path) -> Read:
    for path, official in zip(paths, ('dev', 'test'), strict=True):
      for index, record in enumerate(sources.parse_lines(path.read_text(encoding='utf-8'))):
        asked = record['question'].strip()
        # The file writes an option as "A)150" or "A) 150".
        text = with_options(asked, [option[2:].strip() for option in record['options']])
        held_in = 'validation' if bucket(asked) < 20 else 'train'
        yield (
          'test' if official == 'test' else held_in,
          Question(f'aqua-{official}-{index}', text, record['correct']),
        )


def _official_layout(content: bytes) -> bytes:
  """Converts a CSV file with header and answers 0..3 to one without header, answers A..D."""
  rows = list(csv.reader(io.StringIO(content.decode('utf-8'), newline='')))[1:]
  written = io.StringIO(newline='')
  csv.writer(written, lineterminator='\n').writerows(
    [*row[:-1], LETTERS[int(row[-1])]] for row in rows
  )
  return written.getvalue().encode('utf-8')


class MMLU(OfficialTask):
  """Exam questions of 57 subjects, four options (Hendrycks et al. 2021, arXiv 2009.03300).

  test: the official 14,042, subject after subject. train: the first four of the five
  dev questions of a subject; validation: the fifth. AgentPrune and others report on 153
  questions of the official validation split, which is not used here.
  """

  name = 'mmlu'
  GRADERS = graders.choice('ABCD', graders.legacy_mmlu)
  SOURCES = tuple(
    sources.Source(
      f'mmlu/{path}',
      'HaeChan0305/MLILAB-FedLLM',  # hendrycks/test contains no data
      'd92730e8bacd7b3a61e551e015e40588e10234b4',
      sha256,
      remote_path=path.replace('data/', 'data/mmlu/'),
      rewrite=_official_layout,
    )
    for sha256, path in map(str.split, _MMLU_FILES.read_text().splitlines())
  )

  @classmethod
  def read(cls, *paths: pathlib.Path) -> Read:
    for path in paths:
      with path.open(encoding='utf-8', newline='') as file:
        for index, (asked, *options, answer) in enumerate(csv.reader(file)):
          held_in = 'validation' if index == 4 else 'train'
          text = with_options(asked.strip(), [option.strip() for option in options])
          yield (
            'test' if path.stem.endswith('_test') else held_in,
            Question(f'mmlu-{path.stem}-{index}', text, answer),
          )
