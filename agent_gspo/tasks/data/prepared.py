"""Stores questions as a tensorflow-datasets dataset of ArrayRecord files.

Random access by index needs neither the whole dataset in memory nor TensorFlow: only
`as_data_source` is used.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow_datasets as tfds

from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.types import Question

# Increase it when the readers of a task change, since their output is stored.
_VERSION = '1.2.0'
_FIELDS = ('id', 'text', 'answer', 'derivation')

ReadQuestions = Callable[[], Mapping[str, Iterable[Question]]]


class QuestionsBuilder(tfds.core.GeneratorBasedBuilder):
  """Dataset builder for the questions of one task, in order; each task has its own folder."""

  name = 'agent_gspo_questions'
  VERSION = tfds.core.Version(_VERSION)

  def __init__(self, *, read: ReadQuestions, data_dir: str | os.PathLike):
    """Stores `read`, which is called once, and only when the dataset is written."""
    self._read = read
    super().__init__(data_dir=os.fspath(data_dir), file_format='array_record')

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description='Questions and gold answers of one benchmark.',
      features=tfds.features.FeaturesDict({field: tfds.features.Text() for field in _FIELDS}),
      disable_shuffling=True,
    )

  def _split_generators(self, dl_manager):
    del dl_manager  # The files were fetched and checked by `read`.
    return {split: self._generate_examples(found) for split, found in self._read().items()}

  def _generate_examples(self, questions: Iterable[Question]):
    for index, question in enumerate(questions):
      yield index, {field: getattr(question, field) for field in _FIELDS}


def prepare_questions(
  task: str, read: ReadQuestions, cache_dir: str | os.PathLike
) -> dict[str, Sequence[Question]]:
  """Returns the stored questions of each split; writes them first if they do not exist.

  Writing is atomic: an interrupted write is never read by a later call.

  Args:
    task: Name of the task; each has a folder of its own.
    read: Function that returns the questions of each split (notes are not stored).
    cache_dir: Folder for the files, created if it does not exist.

  Raises:
    OSError: if the folder cannot be written; errors of `read` are passed on.
    ValueError: if stored files are damaged; possibly raised only when a question is read.
  """
  folder = pathlib.Path(cache_dir) / task
  with _naming(folder):
    builder = QuestionsBuilder(read=read, data_dir=folder)
  if not builder.data_path.exists():  # It is renamed into place once complete.
    # Silences the library's output; errors still arrive as exceptions.
    quiet = io.StringIO()
    try:
      with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        builder.download_and_prepare()
    except OSError:
      # Another process may have finished the same folder in the meantime.
      builder = QuestionsBuilder(read=read, data_dir=folder)
      if not builder.data_path.exists():
        raise
  with _naming(folder):
    sources = builder.as_data_source()
    if not sources:
      raise ValueError('no splits in dataset_info.json')
  return {split: _stored(source, folder) for split, source in sources.items()}


def _stored(source: Sequence[Mapping[str, bytes]], folder: pathlib.Path) -> Sequence[Question]:
  def make(index: int) -> Question:
    with _naming(folder):
      fields: dict[str, Any] = {name: value.decode() for name, value in source[index].items()}
      return Question(**fields)

  return LazyQuestions(len(source), make)


@contextlib.contextmanager
def _naming(folder: pathlib.Path) -> Iterator[None]:
  """Converts errors within the block, except OSError, into a ValueError that names the folder.

  The folder is not removed here: other processes may be reading it.
  """
  try:
    yield
  except OSError:
    raise
  except Exception as error:
    raise ValueError(
      f'the questions stored in {folder} are damaged ({error}). Remove that folder: the '
      'next run stores them again.'
    ) from error
