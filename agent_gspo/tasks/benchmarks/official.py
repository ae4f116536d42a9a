"""Reads benchmarks from their official files.

The files come from a data directory or their own addresses (`sources`). They are checked
and read, near-duplicates of test questions are removed from the other splits
(`near_duplicates`), and the questions are stored once (`prepared`).
"""

from __future__ import annotations

import abc
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from agent_gspo import cache
from agent_gspo.options import check_choice, check_fields
from agent_gspo.tasks import base
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.near_duplicates import far_from
from agent_gspo.tasks.data.prepared import prepare_questions
from agent_gspo.tasks.grading.graders import Grader
from agent_gspo.types import Question

Read = Iterator[tuple[str, Question]]


@dataclasses.dataclass(eq=False, kw_only=True)
class FileTask(base.Task):
  """Task with files at given locations, and a choice of graders.

  Attributes:
    GRADERS: Graders by name.

  Raises:
    FileNotFoundError: if a file is not available.
    ValueError: if a file is not the official one, or an option is out of range.
  """

  GRADERS: ClassVar[Mapping[str, Any]]

  # strict, or legacy for the extraction that AgentPrune and AgentDropout use (`graders`),
  # for comparison with their tables only; word problems also have equation, which executes the
  # written chain (`grading.equations`).
  grader: str = 'strict'
  data_dir: os.PathLike | str | None = None  # official files; default $AGENT_GSPO_DATA_DIR
  # Downloads and stored questions; default $AGENT_GSPO_CACHE, then ~/.cache/agent_gspo.
  cache_dir: os.PathLike | str | None = None
  base_url: str = sources.BASE_URL  # file server with '<repository>/<commit>/<path>'

  def __post_init__(self):
    check_fields(self, 'task.options')
    check_choice('task.options.grader', self.grader, tuple(self.GRADERS))

  def canonical(self, answer_text: str) -> str | None:
    """Returns the answer that the grader extracts from the text, normalized; None without one."""
    return self.GRADERS[self.grader].extract(answer_text)

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1.0 if the grader accepts the answer, else 0.0."""
    return self.graded_by(self.grader, question, answer_text)

  def graded_by(self, grader: str, question: Question, answer_text: str) -> float:
    """Returns an answer's score by one of `graders`."""
    return self.GRADERS[grader].grade(answer_text, question.answer)

  def _fetch(self, source: sources.Source) -> pathlib.Path:
    return sources.fetch(
      source, data_dir=self.data_dir, cache_dir=self.cache_dir, base_url=self.base_url
    )


class OfficialTask(FileTask):
  """Benchmark with official files, defined splits and a choice of graders.

  Attributes:
    SOURCES: Official files, in the order of the arguments of `read`.
    graders: Names of the graders, that of the task first.
  """

  SOURCES: ClassVar[tuple[sources.Source, ...]]
  GRADERS: ClassVar[Mapping[str, Grader]]

  def __post_init__(self):
    super().__post_init__()
    self.graders = (self.grader, *(name for name in self.GRADERS if name != self.grader))
    self._questions = prepare_questions(
      self.name, self._splits, cache.folder(self.cache_dir) / 'tfds'
    )

  @classmethod
  @abc.abstractmethod
  def read(cls, *paths: pathlib.Path) -> Read:
    """Yields all questions of the official files, each after its split; one path per source."""

  def _splits(self) -> Mapping[str, Sequence[Question]]:
    splits: dict[str, list[Question]] = {split: [] for split in base.SPLITS}
    for split, question in self.read(*map(self._fetch, self.SOURCES)):
      splits[split].append(question)
    kept = {split: far_from(splits[split], splits['test']) for split in ('train', 'validation')}
    return {**splits, **kept}

  def _split(self, split: str) -> Sequence[Question]:
    return self._questions.get(split, ())
