"""Writes TensorBoard's event file, without buffering.

tensorboardX writes in a thread; on a full disk this thread dies, and the run waits forever.
"""

from __future__ import annotations

import pathlib
import socket
import struct
import time
from collections.abc import Mapping

from tensorboardX import record_writer, summary
from tensorboardX.proto import event_pb2, summary_pb2

from agent_gspo.workdir import disk


class EventFile:
  """New event file in a folder; each record is in the file when its call returns."""

  def __init__(self, folder: pathlib.Path, purge_step: int | None = None):
    """Opens the file; TensorBoard hides events of earlier files from `purge_step` on."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time_ns()  # in seconds, as is usual, the names of a quick restart may collide
    name = f'events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now:020d}'
    self._file = disk.Appender(folder / name)
    self._write(file_version='brain.Event:2')
    if purge_step is not None:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(step=purge_step, session_log=start)

  def text(self, tag: str, text: str, step: int = 0) -> None:
    """Adds a text, shown as it is: TensorBoard reads Markdown, where four spaces begin code."""
    lines = text.encode(errors='replace').decode().splitlines()  # no halves of surrogate pairs
    code = '\n'.join('    ' + line for line in lines)
    self._write(step=step, summary=summary.text(tag, code))

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    """Adds a point to the curve of each tag."""
    points = [summary.scalar(tag, value).value[0] for tag, value in values.items()]
    self._write(step=step, summary=summary_pb2.Summary(value=points))

  def close(self) -> None:
    self._file.close()

  def _write(self, **fields) -> None:
    data = event_pb2.Event(wall_time=time.time(), **fields).SerializeToString()
    size = struct.pack('<Q', len(data))
    checks = (struct.pack('<I', record_writer.masked_crc32c(x)) for x in (size, data))
    self._file.append(size + next(checks) + data + next(checks))
