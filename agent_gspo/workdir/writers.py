"""Writes the records of a run: JSON lines, TensorBoard, and optionally W&B."""

from __future__ import annotations

import itertools
import json
import pathlib
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent_gspo.workdir import disk, json_lines, records

if TYPE_CHECKING:
  from agent_gspo.workdir import event_file

_MARK = 'non_finite'
_BOARD, _SFT_BOARD = 'tensorboard', 'tensorboard/sft'  # separate runs in TensorBoard
# Columns of the W&B table of transcripts, a row per message.
_OF_EPISODE = ('step', 'question_id', 'question', 'sample', 'gold', 'answer', 'task_score')
_OF_MESSAGE = ('agent', 'round', 'prompt', 'text', 'written', 'logprob', 'reward', 'advantage')


class RunWriter:
  """Appends the records of one run to the files of its workdir.

  Every record is one line of plain JSON, flushed at once, so a killed process loses at most the
  current line. JSON has no NaN and no infinity: such a value is written as null, and the record
  gets an entry `non_finite` that maps its key (nested keys joined by "/") to "nan", "inf" or
  "-inf".

  A failed write raises a `disk.WriteError` that names the file.

  Only one process of a run may have a writer.
  """

  def __init__(self, workdir: records.PathLike, *, wandb_project: str = ''):
    """Creates `workdir` if it does not exist, and truncates incomplete last lines of its files.

    Raises:
      ImportError: A project is named, but wandb is not installed.
    """
    self.workdir = pathlib.Path(workdir)
    self.workdir.mkdir(parents=True, exist_ok=True)
    self._wandb = _start_wandb(wandb_project, self.workdir) if wandb_project else None
    self._files: dict[str, disk.Appender] = {}
    self._boards: dict[str, event_file.EventFile] = {}  # by folder
    self._purge_steps: dict[str, int] = {}
    for name in records.LINES:
      json_lines.drop_half_line(self.workdir / name)

  def config(self, config: Mapping[str, Any]) -> None:
    """Writes `config.json`, and the same text to TensorBoard and W&B."""
    plain = json_lines.to_plain(config, {})
    text = json.dumps(plain, indent=2)
    json_lines.replace(self.workdir / records.CONFIG, [(text + '\n').encode()])
    self._tensorboard().text('config', text)
    if self._wandb is not None:
      self._wandb.config.update(plain, allow_val_change=True)

  def started(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the provenance of a start of the run from `step` (see `provenance.start`)."""
    self._append(records.STARTS, {'step': step, **values})

  def metrics(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the metrics of one step; arrays of one element and None are accepted."""
    record = self._append(records.METRICS, {'step': int(step), **values})
    self._tensorboard().scalars(_scalars(record), int(step))
    if self._wandb is not None:
      self._wandb.log({k: v for k, v in record.items() if v is not None and k != _MARK})

  def supervised(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the metrics of one SFT step; SFT has its own step counter.

    TensorBoard shows them as a separate run.
    """
    record = self._append(records.SFT, {'step': int(step), **values})
    self._tensorboard(_SFT_BOARD).scalars(_scalars(record), int(step))

  def evaluation(self, record: Mapping[str, Any]) -> None:
    """Writes one evaluation; its numbers appear in TensorBoard under `eval/`."""
    written = self._append(records.EVALUATIONS, record)
    # "untrained", "during" and "trained" are one curve; baselines are separate.
    label = str(written.get('label', ''))
    curve = label in (records.UNTRAINED, records.DURING, 'trained', '')
    group = 'eval' if curve else 'eval_' + label.replace(' ', '_')
    step = int(written.get('step') or 0)
    scalars = {
      f'{group}/{key}': value
      for key, value in written.items()
      if isinstance(value, int | float) and key not in ('step', 'questions')
    }
    self._tensorboard().scalars(scalars, step)
    if self._wandb is not None:
      self._wandb.log({'step': step, **scalars})

  def transcripts(self, episodes: Iterable[Mapping[str, Any]]) -> None:
    """Writes episodes, one per line; W&B gets a table of their messages, TensorBoard their text."""
    written = [self._append(records.TRANSCRIPTS, episode) for episode in episodes]
    origin = lambda episode: (int(episode.get('step') or 0), episode.get('label', ''))
    for (step, label), group in itertools.groupby(written, origin):
      tag, talks = f'transcripts/{label}'.replace(' ', '_'), list(group)
      self._tensorboard().text(tag, '\n\n'.join(map(records.as_text, talks)), step)
      if self._wandb is not None:
        import wandb

        rows = [
          [talk.get(key) for key in _OF_EPISODE] + [message.get(key) for key in _OF_MESSAGE]
          for talk in talks
          for message in talk.get('messages', ())
        ]
        table = wandb.Table(columns=[*_OF_EPISODE, *_OF_MESSAGE], data=rows)
        self._wandb.log({'step': step, tag: table})

  def truncate_after(self, step: int) -> list[str]:
    """Drops records after a step, so that a resumed run writes none twice.

    Each file is replaced atomically. Incomplete lines of a killed process are dropped, too.
    TensorBoard hides its later events (they stay in their files).

    Returns:
      A message for each file with incomplete lines.
    """
    return self._truncate(_BOARD, step, records.METRICS, records.EVALUATIONS, records.TRANSCRIPTS)

  def truncate_supervised_after(self, step: int) -> list[str]:
    """Drops SFT records after a step (see `truncate_after`)."""
    return self._truncate(_SFT_BOARD, step, records.SFT)

  def _truncate(self, board: str, step: int, *names: str) -> list[str]:
    self._close_files()
    self._purge_steps[board] = step + 1
    return [
      told for name in names if (told := json_lines.truncate_after(self.workdir / name, step))
    ]

  def drop(self, step: int, labels: Collection[str]) -> None:
    """Drops records and transcripts of the evaluations with these labels at a step."""
    self._close_lines()
    for name in (records.EVALUATIONS, records.TRANSCRIPTS):
      json_lines.drop(self.workdir / name, step, labels)

  def close(self) -> None:
    """Closes everything; further calls are harmless."""
    self._close_files()
    if self._wandb is not None:
      self._wandb.finish()
      self._wandb = None

  def _append(self, name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    marks: dict[str, str] = {}
    plain = json_lines.to_plain(record, marks)
    if marks:
      plain[_MARK] = marks
    if name not in self._files:
      self._files[name] = disk.Appender(self.workdir / name)
    # ASCII, since decoded tokens may contain lone surrogates.
    self._files[name].append(json.dumps(plain, allow_nan=False).encode() + b'\n')
    return plain

  def _tensorboard(self, folder: str = _BOARD) -> event_file.EventFile:
    if folder not in self._boards:
      from agent_gspo.workdir import event_file  # imports protobuf, which readers do not need

      purged = self._purge_steps.get(folder)
      self._boards[folder] = event_file.EventFile(self.workdir / folder, purged)
    return self._boards[folder]

  def _close_lines(self) -> None:
    for file in self._files.values():
      file.close()
    self._files = {}

  def _close_files(self) -> None:
    self._close_lines()
    for board in self._boards.values():
      board.close()
    self._boards = {}


class SilentWriter(RunWriter):
  """Writes nothing, for processes other than the first."""

  def __init__(self):
    """Opens nothing."""

  def _nothing(self, *unused_args: Any, **unused_options: Any) -> Any:
    return []

  config = started = metrics = supervised = evaluation = transcripts = figure = _nothing
  truncate_after = truncate_supervised_after = drop = close = _nothing


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
  return {
    key: value
    for key, value in record.items()
    if key not in ('step', _MARK) and isinstance(value, int | float)
  }


def _start_wandb(project: str, workdir: pathlib.Path):
  try:
    import wandb
  except ImportError as error:
    raise ImportError(
      f'wandb_project = {project!r}, but wandb cannot be imported ({error}): '
      "pip install '.[wandb]', or set wandb_project to ''"
    ) from error
  # The workdir stores the id, so that a resumed run continues the same W&B run.
  id_file = workdir / 'wandb_id.txt'
  if not id_file.exists():
    json_lines.replace(id_file, [uuid.uuid4().hex[:12].encode()])
  run = wandb.init(
    project=project,
    name=workdir.resolve().name,
    dir=str(workdir),
    id=id_file.read_text().strip(),
    resume='allow',
  )
  # W&B's own counter only grows, but a resumed run may return to an earlier step.
  run.define_metric('*', step_metric='step')
  return run
