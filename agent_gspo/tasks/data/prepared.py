"""Questions stored as a tensorflow-datasets dataset of ArrayRecord files.

Random access by index without loading the dataset, and without TensorFlow: only
`as_data_source` is used.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import tensorflow_datasets as tfds

from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.types import Question

# Raise it when the readers of a task change: what is stored is what they gave.
_VERSION = '1.2.0'
_FIELDS = ('id', 'text', 'answer', 'derivation')

ReadQuestions = Callable[[], Mapping[str, Iterable[Question]]]


class _LocalInfo(tfds.core.DatasetInfo):
  """Dataset info that does not ask the public bucket about a dataset it cannot know."""

  def initialize_from_bucket(self) -> None:
    pass


class QuestionsBuilder(tfds.core.GeneratorBasedBuilder):
  """Writes the questions of one task, in their order; each task has its own folder."""

  name = 'agent_gspo_questions'
  VERSION = tfds.core.Version(_VERSION)

  def __init__(self, *, read: ReadQuestions, data_dir: str | os.PathLike):
    """`read` is called once, and only when the dataset is written."""
    self._read = read
    super().__init__(data_dir=os.fspath(data_dir), file_format='array_record')

  def _info(self) -> tfds.core.DatasetInfo:
    return _LocalInfo(
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
  """The stored questions of each split; writes them first if they are not there.

  Interrupted writing leaves nothing behind that a later call would take for finished.

  Args:
    task: name of the task; each has a folder of its own.
    read: gives the questions of each split (notes are not stored).
    cache_dir: folder for the files; made if need be.

  Raises:
    OSError: the folder cannot be written; what `read` raises comes through as well.
    ValueError: what is stored is damaged, which may show when a question is read only.
  """
  folder = pathlib.Path(cache_dir) / task
  with _naming(folder):
    builder = QuestionsBuilder(read=read, data_dir=folder)
  if not builder.data_path.exists():  # It appears by a rename, once it is complete.
    # The library prints and draws bars; errors still arrive as exceptions.
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


@contextlib.contextmanager
def _naming(folder: pathlib.Path) -> Iterator[None]:
  """Turns an error within the block, of whatever library, into one that names the folder.

  It is not removed here: other processes may be reading it.
  """
  try:
    yield
  except OSError:
    raise
  except Exception as error:
    raise ValueError(
      f'the questions stored in {folder} are damaged ({error}). Remove that folder; they are '
      'stored again.'
    ) from error


def _stored(source: Sequence[Mapping[str, bytes]], folder: pathlib.Path) -> Sequence[Question]:
  def make(index: int) -> Question:
    with _naming(folder):
      record = source[index]
      identifier, text, answer, derivation = (record[field].decode() for field in _FIELDS)
    return Question(id=identifier, text=text, answer=answer, derivation=derivation)

  return LazyQuestions(len(source), make)
