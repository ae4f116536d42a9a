"""Checks that a full disk ends a run with one line and damages nothing."""

from __future__ import annotations

import contextlib

import micro_run
import numpy as np
import pytest
import small_checkpoints
from full_disk import full

from agent_gspo.apps.commands import evaluation_folder
from agent_gspo.workdir import disk, json_lines, records, writers


def test_a_line_that_does_not_fit_names_its_file(tmp_path):
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    writer.metrics(1, {'a': 1.0})
    size = (tmp_path / records.METRICS).stat().st_size
    with (
      full(size + 5),
      pytest.raises(disk.WriteError, match=r'metrics\.jsonl could not be written: File too large'),
    ):
      writer.metrics(2, {'a': 2.0})
  # Half a line, as a kill leaves it.
  assert (tmp_path / records.METRICS).stat().st_size == size + 5
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    writer.metrics(2, {'a': 2.0})
  assert [record['a'] for record in json_lines.iterate(tmp_path / records.METRICS)] == [1, 2]


@pytest.mark.parametrize(
  ('write', 'name'),
  [
    (lambda writer: writer.evaluation({'step': 1}), records.EVALUATIONS),
    (lambda writer: writer.transcripts([{'step': 1}]), records.TRANSCRIPTS),
    (lambda writer: writer.config({'a': 1}), records.CONFIG),
  ],
)
def test_other_files_name_themselves(tmp_path, write, name):
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer, full():
    with pytest.raises(disk.WriteError, match=f'{name} could not be written: File too large'):
      write(writer)
  assert not list(tmp_path.glob('*.new'))


def test_tensorboard_does_not_wait_for_a_disk_that_is_full(tmp_path):
  """The usual writer's thread dies on a full disk; later events would wait forever."""
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    writer.metrics(1, {'a': 1.0})
    (file,) = (tmp_path / 'tensorboard').iterdir()
    with (
      full(file.stat().st_size + 9000),
      pytest.raises(disk.WriteError, match=r'tfevents.* could not be written: File too large'),
    ):
      writer._tensorboard().scalars({f'value {i}': 1.0 for i in range(1000)}, 2)


def test_an_evaluation_folder_names_its_file(tmp_path):
  folder = evaluation_folder.Folder(tmp_path, {'a': 1})
  with full(), pytest.raises(disk.WriteError, match=r'results\.jsonl could not be written'):
    folder.add([{'question_id': 'q', 'sample': 0, 'variant': 'v'}])


@pytest.mark.slow
def test_an_export_names_its_folder(tmp_path):
  folders = f'--workdir={micro_run.finished()}', f'--out={tmp_path / "model"}'
  limited = ['bash', '-c', 'ulimit -f 50; exec "$@"', 'bash']  # blocks of 1024 bytes
  done = micro_run.run([*limited, *micro_run.command('export', *folders)])
  assert done.returncode == 2, done.stderr
  wrong = f'error: the model could not be written to {tmp_path}/model: File too large'
  assert done.stderr.splitlines() == [wrong]


def test_errors_of_other_kinds_pass():
  with pytest.raises(ValueError, match='of another kind'), disk.writing('a'):
    raise ValueError('of another kind')
  tensorstore = ValueError("RESOURCE_EXHAUSTED: [os_error_code='28'] [file_path='/x']")
  with pytest.raises(disk.WriteError, match='a could not be written to b: No space left'):
    with disk.writing('a', 'b'):
      raise tensorstore


def test_a_checkpoint_that_does_not_fit_leaves_the_others(tmp_path, capfd):
  checkpoints = small_checkpoints.open_(tmp_path, keep=2)
  checkpoints.save(small_checkpoints.state(1.5, 1))
  checkpoints.wait()
  with full(30):
    checkpoints.save(small_checkpoints.state(2.5, 2))
    with pytest.raises(disk.WriteError, match=f'checkpoint 2 .* {tmp_path}: File too'):
      checkpoints.wait()
  assert capfd.readouterr().err == ''
  again = small_checkpoints.open_(tmp_path, keep=2)
  assert (again.latest_step, again.damaged) == (1, {})
  again.save(small_checkpoints.state(2.5, 2))
  again.wait()
  restored = small_checkpoints.open_(tmp_path).restore(small_checkpoints.state(0.0))
  expected = small_checkpoints.params(2.5)['a']['lora_a']
  np.testing.assert_array_equal(restored.trainable['a', 'lora_a'], expected)
