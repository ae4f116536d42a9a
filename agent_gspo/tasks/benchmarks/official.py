"""Benchmarks read from their official files.

The files come from a data directory or their own addresses (`sources`), are checked,
read, freed of training questions that are near a test question (`near_duplicates`), and
stored once (`prepared`).
"""

from __future__ import annotations

import abc
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence

from agent_gspo import cache
from agent_gspo.tasks import base
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.near_duplicates import without_near_duplicates
from agent_gspo.tasks.data.prepared import prepare_questions
from agent_gspo.tasks.grading.graders import Grader
from agent_gspo.types import Question

Splits = dict[str, list[Question]]


class OfficialTask(base.Task):
  """A benchmark with official files, stated splits and a choice of graders.

  Attributes:
    SOURCES: the official files, in the order in which `read` takes them.
    GRADERS: graders by name; 'strict' is the default.
    graders: their names, that of the task first.
  """

  SOURCES: tuple[sources.Source, ...]
  GRADERS: Mapping[str, Grader]

  def __init__(
    self,
    *,
    grader: str = 'strict',
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    base_url: str = sources.BASE_URL,
  ):
    """Opens the stored questions; reads (or downloads) the official files the first time.

    Args:
      grader: 'strict', or 'legacy' for the extraction that AgentPrune and AgentDropout
        use (see `legacy_graders`), for comparison with their tables only; word problems also
        have 'equation', which executes what was written (see `grading.equations`).
      data_dir: folder with the official files; default $AGENT_GSPO_DATA_DIR.
      cache_dir: where downloads and stored questions go; default $AGENT_GSPO_CACHE, then
        `~/.cache/agent_gspo`.
      base_url: address of the file server that holds '<repository>/<commit>/<path>'.

    Raises:
      FileNotFoundError: if a file cannot be had.
      ValueError: if a file is not the official one, or the grader is unknown.
    """
    if grader not in self.GRADERS:
      raise ValueError(f'grader={grader!r} of task {self.name} is unknown; use {[*self.GRADERS]}')
    self._grader = self.GRADERS[grader]
    self.graders = (grader, *(name for name in self.GRADERS if name != grader))
    sources.data_folder(data_dir)  # A misspelt folder is an error, whatever the cache holds.
    fetch = functools.partial(
      sources.fetch, data_dir=data_dir, cache_dir=cache_dir, base_url=base_url
    )
    self._questions = prepare_questions(
      self.name,
      lambda: without_near_duplicates(self.read(*(fetch(source) for source in self.SOURCES))),
      cache.folder(cache_dir) / 'tfds',
    )

  @classmethod
  @abc.abstractmethod
  def read(cls, *paths: pathlib.Path) -> Splits:
    """All questions of the official files, cut into splits; one path a source."""

  def _split(self, split: str) -> Sequence[Question]:
    return self._questions.get(split, ())

  def canonical(self, answer_text: str) -> str | None:
    """The answer that the grader finds in the text, in one spelling; None if it finds none."""
    return self._grader.extract(answer_text)

  def score(self, question: Question, answer_text: str) -> float:
    """1.0 if the grader takes the answer for the gold answer, else 0.0."""
    return self._grader.grade(answer_text, question.answer)

  def graded_by(self, grader: str, question: Question, answer_text: str) -> float:
    """What one of `graders` says of an answer."""
    return self.GRADERS[grader].grade(answer_text, question.answer)
