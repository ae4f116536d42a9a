"""Tests the records of a run, and what is left of them after a kill."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import struct
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
from report_pages import episode

from agent_gspo.workdir import json_lines, records, writers

METRICS = {'task/accuracy': 0.5, 'reward/mean': 0.31, 'tokens/written_per_question': 42.25}


def evaluation(step, label, accuracy):
  return {
    'step': step,
    'label': label,
    'questions': 200,
    'task/accuracy': accuracy,
    'agents': [{'name': 'solver', 'silence_rate': 0.5, 'silence_rate_relevant': None}],
  }


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def events(workdir):
  """Reads the events in TensorBoard's files."""
  from tensorboardX.proto import event_pb2

  for path in sorted((workdir / 'tensorboard').iterdir()):
    raw = path.read_bytes()
    while raw:
      (size,) = struct.unpack('<Q', raw[:8])
      yield event_pb2.Event.FromString(raw[12 : 12 + size])
      raw = raw[12 + size + 4 :]


def test_round_trip(tmp_path):
  with contextlib.closing(writers.RunWriter(tmp_path / 'new' / 'run')) as writer:
    writer.config({'seed': 3, 'team': {'agents': ('a', 'b')}})
    for step in (1, 2, 3):
      writer.metrics(step, METRICS | {'policy/lr': step * 1e-5})
    writer.evaluation(evaluation(3, 'trained', 0.8))
    writer.transcripts([{'step': 3, 'question': 'π?', 'messages': []}, {'step': 3}])
  run = records.load_run(tmp_path / 'new' / 'run')
  assert run.name == 'run'
  assert run.config == {'seed': 3, 'team': {'agents': ['a', 'b']}}
  assert [m['step'] for m in run.metrics] == [1, 2, 3]
  assert run.metrics[1] == METRICS | {'step': 2, 'policy/lr': 2e-5}
  assert run.evaluations == [evaluation(3, 'trained', 0.8)]
  assert lines(run.workdir / records.TRANSCRIPTS)[0]['question'] == 'π?'


def test_values_that_are_no_plain_floats(tmp_path):
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    writer.metrics(
      np.int64(7),
      {
        'numpy': np.float32(0.5),
        'jax': jnp.float32(0.25),
        'bfloat16': jnp.bfloat16(1.5),
        'one': np.array(3),
        'none': None,
        'nan': float('nan'),
        'inf': -jnp.inf,
        'deep': {'list': [1.0, np.inf]},
      },
    )
    writer.transcripts([{'step': 7, 'text': 'half a pair \ud83d', 'path': pathlib.Path('x')}])
  (record,) = lines(tmp_path / records.METRICS)
  assert record == {
    'step': 7,
    'numpy': 0.5,
    'jax': 0.25,
    'bfloat16': 1.5,
    'one': 3,
    'none': None,
    'nan': None,
    'inf': None,
    'deep': {'list': [1.0, None]},
    'non_finite': {'nan': 'nan', 'inf': '-inf', 'deep/list/1': 'inf'},
  }
  assert lines(tmp_path / records.TRANSCRIPTS)[0] == {
    'step': 7,
    'text': 'half a pair \ud83d',
    'path': 'x',
  }


def test_every_line_is_on_disk_at_once(tmp_path):
  writer = writers.RunWriter(tmp_path)
  writer.metrics(1, {'a': 1.0})
  writer.evaluation({'step': 1})
  assert len(lines(tmp_path / records.METRICS)) == 1
  assert len(lines(tmp_path / records.EVALUATIONS)) == 1
  writer.close()
  writer.close()


def test_resume_after_a_kill_in_mid_line(tmp_path):
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    for step in range(1, 6):
      writer.metrics(step, {'a': float(step)})
      writer.transcripts([{'step': step, 'k': k} for k in range(2)])
      writer.evaluation({'step': step})
  whole = (tmp_path / records.METRICS).read_bytes()
  with (tmp_path / records.METRICS).open('ab') as file:
    file.write(b'{"step": 6, "a": 0.')
  with (tmp_path / records.TRANSCRIPTS).open('ab') as file:
    file.write(b'{"step": 2, "k": "\xc3')

  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    # Opening alone cuts off the half-written lines.
    assert (tmp_path / records.METRICS).read_bytes() == whole
    writer.metrics(6, {'a': 6.0})
    writer.truncate_after(3)
    writer.metrics(4, {'a': 40.0})
  assert [(m['step'], m['a']) for m in lines(tmp_path / records.METRICS)] == [
    (1, 1.0),
    (2, 2.0),
    (3, 3.0),
    (4, 40.0),
  ]
  assert [(t['step'], t['k']) for t in lines(tmp_path / records.TRANSCRIPTS)] == [
    (step, k) for step in (1, 2, 3) for k in range(2)
  ]
  assert [e['step'] for e in lines(tmp_path / records.EVALUATIONS)] == [1, 2, 3]
  assert not list(tmp_path.glob('*.new'))


def test_truncate_without_files_and_to_nothing(tmp_path):
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    writer.truncate_after(10)
    writer.metrics(1, {})
    writer.truncate_after(0)
  assert (tmp_path / records.METRICS).read_bytes() == b''


@pytest.mark.parametrize('size', [0, 1, 70_000, 200_000])
def test_half_line_of_any_length(tmp_path, size):
  path = tmp_path / 'x.jsonl'
  path.write_bytes(b'{"a": 1}\n' + b'z' * size)
  json_lines.drop_half_line(path)
  assert path.read_bytes() == b'{"a": 1}\n'
  path.write_bytes(b'z' * size)
  json_lines.drop_half_line(path)
  assert path.read_bytes() == b''


def test_a_bad_line_in_the_middle_is_named(tmp_path):
  path = tmp_path / 'x.jsonl'
  path.write_bytes(b'{"a": 1}\nnonsense\n{"a": 2}\n{"a"')
  with pytest.warns(UserWarning, match=r'x\.jsonl, line 2'):
    assert [r['a'] for r in json_lines.iterate(path)] == [1, 2]


def test_tensorboard_holds_the_scalars_and_hides_what_was_truncated(tmp_path):
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    writer.config({'seed': 1})
    writer.metrics(1, {'task/accuracy': 0.5, 'policy/grad_norm': math.nan})
    writer.metrics(2, {'task/accuracy': 0.75})
    writer.evaluation(evaluation(2, 'during', 0.5))
    writer.evaluation(evaluation(2, 'single agent', 0.25))
    writer.truncate_after(1)
    writer.metrics(2, {'task/accuracy': 1.0})
  found = list(events(tmp_path))
  scalars = [
    (value.tag, event.step, value.simple_value)
    for event in found
    for value in event.summary.value
    if value.HasField('simple_value')
  ]
  assert [s for s in scalars if s[0] == 'task/accuracy'] == [
    ('task/accuracy', 1, 0.5),
    ('task/accuracy', 2, 0.75),
    ('task/accuracy', 2, 1.0),
  ]
  assert ('eval/task/accuracy', 2, 0.5) in scalars
  assert ('eval_single_agent/task/accuracy', 2, 0.25) in scalars
  assert not [s for s in scalars if s[0] == 'policy/grad_norm']
  assert [e.step for e in found if e.session_log.status == e.session_log.START] == [2]


def test_tensorboard_holds_transcripts(tmp_path):
  odd = 'no | table *, # heading or half a pair \ud83d'
  with contextlib.closing(writers.RunWriter(tmp_path)) as writer:
    writer.transcripts([episode(3, text=odd), episode(3, text=''), episode(4)])
  texts = [(event.step, value) for event in events(tmp_path) for value in event.summary.value]
  assert [(step, value.tag) for step, value in texts] == [
    (3, 'transcripts//text_summary'),
    (4, 'transcripts//text_summary'),
  ]
  shown = texts[0][1].tensor.string_val[0].decode()
  assert '    holder (note: the crate: 12): no | table *, # heading or half a pair ?\n' in shown
  assert 'holder (note: the crate: 12): is silent\n' in shown
  assert shown.count('answer 12; gold 12; score 1.0') == 2
  assert all(line.startswith('    ') for line in shown.splitlines())


def test_wandb_is_named_when_it_is_missing(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  writers.RunWriter(tmp_path).close()
  with pytest.raises(ImportError, match="wandb_project = 'team'"):
    writers.RunWriter(tmp_path, wandb_project='team')


def test_wandb_gets_the_same_numbers_and_continues_its_run(tmp_path, monkeypatch):
  logged, started = [], []
  run = types.SimpleNamespace(
    log=logged.append,
    finish=lambda: None,
    define_metric=lambda *unused, **unused_too: None,
    config=types.SimpleNamespace(update=lambda *unused, **unused_too: None),
  )
  fake = types.SimpleNamespace(
    init=lambda **options: started.append(options) or run,
    Table=lambda columns, data: [dict(zip(columns, row, strict=True)) for row in data],
  )
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  for step in (1, 2):
    with contextlib.closing(writers.RunWriter(tmp_path, wandb_project='team')) as writer:
      writer.config({'seed': 1})
      writer.metrics(step, {'a': 0.5, 'b': math.nan})
  assert logged == [{'step': 1, 'a': 0.5}, {'step': 2, 'a': 0.5}]
  logged.clear()
  with contextlib.closing(writers.RunWriter(tmp_path, wandb_project='team')) as writer:
    writer.transcripts([episode(3) | {'label': 'train'}])
  (table,) = logged
  rows = table['transcripts/train']
  assert [(row['agent'], row['text'], row['advantage']) for row in rows] == [
    ('holder', 'The crate holds 12 bolts.', 1.0),
    ('solver', 'The answer is 12', -1.0),
  ]
  assert {(row['step'], row['question_id'], row['gold']) for row in rows} == {(3, 'q3', '12')}
  assert started[0]['project'] == 'team'
  assert started[0]['id'] == started[1]['id']


def test_drop_leaves_lines_of_other_shapes(tmp_path):
  path = tmp_path / 'x.jsonl'
  odd = b'{"step": 3, "label": ["a"]}\n[]\n{"step": 3}\n'
  path.write_bytes(odd + b'{"step": 3, "label": "a"}\n')
  json_lines.drop(path, 3, {'a'})
  assert path.read_bytes() == odd


@pytest.mark.parametrize(
  ('content', 'told'),
  [
    ('', 0),
    ('{"step": 1}\n\n{"step": 2}\n{"a": 1}\n', 0),
    ('{"step": 1}\nx\n{"a": 1}\n[]\n{"step": 4}\nnull\n{"step": 9}\n', 3),
    ('x\n{"step": 2}\n', 1),
    ('{"step": 2}\n{"step": 3, \n', 1),
    ('\xff\n', 1),
  ],
)
def test_lines_that_are_dropped_are_counted(tmp_path, content, told):
  path = tmp_path / 'x.jsonl'
  path.write_bytes(content.encode('latin-1'))
  whole = f'{path}: dropped {told} lines that held no whole record' if told else ''
  assert json_lines.truncate_after(path, 5) == whole
  assert json_lines.truncate_after(path, 5) == ''
  assert all(record.get('step', 0) <= 5 for record in json_lines.iterate(path))
