"""Reads benchmarks from their official files.

The files come from a data directory or their own addresses (`sources`). They are checked
and read, near-duplicates of test questions are removed from the other splits
(`near_duplicates`), and the questions are stored once (`prepared`).
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
  """Benchmark with official files, defined splits and a choice of graders.

  Attributes:
    SOURCES: Official files, in the order of the arguments of `read`.
    GRADERS: Graders by name; 'strict' is the default.
    graders: Names of the graders, that of the task first.
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
        have 'equation', which executes the written chain (see `grading.equations`).
      data_dir: Folder with the official files; default $AGENT_GSPO_DATA_DIR.
      cache_dir: Folder for downloads and stored questions; default $AGENT_GSPO_CACHE, then
        `~/.cache/agent_gspo`.
      base_url: Address of the file server with '<repository>/<commit>/<path>'.

    Raises:
      FileNotFoundError: if a file is not available.
      ValueError: if a file is not the official one, or the grader is unknown.
    """
    if grader not in self.GRADERS:
      raise ValueError(f'grader={grader!r} of task {self.name} is unknown; use {[*self.GRADERS]}')
    self._grader = self.GRADERS[grader]
    self.graders = (grader, *(name for name in self.GRADERS if name != grader))
    sources.data_folder(data_dir)  # A misspelled folder is an error, even if the cache has all.
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
    """Reads all questions of the official files by split; one path per source."""

  def _split(self, split: str) -> Sequence[Question]:
    return self._questions.get(split, ())

  def canonical(self, answer_text: str) -> str | None:
    """Returns the answer that the grader extracts from the text, normalized; None without one."""
    return self._grader.extract(answer_text)

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1.0 if the grader accepts the answer, else 0.0."""
    return self._grader.grade(answer_text, question.answer)

  def graded_by(self, grader: str, question: Question, answer_text: str) -> float:
    """Returns an answer's score by one of `graders`."""
    return self.GRADERS[grader].grade(answer_text, question.answer)
