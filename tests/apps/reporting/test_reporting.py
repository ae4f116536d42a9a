"""Tests how a run is shown in terminals and logs, and in the closing table."""

from __future__ import annotations

import io
import json
import math
import re

import numpy as np
import pytest
from report_pages import episode, write_run
from rich.console import Console

from agent_gspo.apps.reporting import (
  conversation,
  formatting,
  progress,
  tables,
)
from agent_gspo.workdir import records

METRICS = {
  'task/accuracy': 0.5,
  'budget/running_accuracy': 0.45,
  'reward/mean': 0.31,
  'tokens/written_per_question': 42.25,
  'tokens/read_per_question': 512.0,
  'comm/silence_rate': 0.25,
  'comm/silence_rate_relevant': 0.1,
  'comm/silence_rate_irrelevant': 0.75,
  'budget/lambda_tok': 0.002,
  'policy/ratio_mean': 1.0003,
  'policy/clip_fraction': 0.125,
  'time/rollout_s': 2.5,
  'time/score_s': 0.1,
  'time/update_s': 1.5,
}


def evaluation(step, label, accuracy, written, silent):
  return {
    'step': step,
    'label': label,
    'split': 'test',
    'questions': 200,
    'temperature': 0.0,
    'task/accuracy': accuracy,
    'task/accuracy_low': accuracy - 0.05,
    'task/accuracy_high': accuracy + 0.05,
    'tokens/written_per_question': written,
    'tokens/read_per_question': 10 * written,
    'comm/silence_rate': silent,
    'comm/silence_rate_relevant': 0.01,
    'comm/silence_rate_irrelevant': silent,
    'agents': [
      {
        'name': 'holder',
        'written_per_question': written / 2,
        'read_per_question': 50.0,
        'silence_rate': silent,
        'silence_rate_relevant': 0.01,
        'silence_rate_irrelevant': silent,
      },
      {
        'name': 'solver',
        'written_per_question': written / 2,
        'read_per_question': 50.0,
        'silence_rate': 0.0,
        'silence_rate_relevant': None,
        'silence_rate_irrelevant': None,
      },
    ],
  }


def show(steps, **console_options):
  file = io.StringIO()
  console = Console(file=file, **console_options)
  with progress.Progress(100, 0, 'three agents', console=console) as display:
    for step, metrics in steps:
      display.phase('rollout', 1, 4)
      display.step(step, metrics)
    display.note('checkpoint [saved]')
  return file.getvalue()


def test_a_log_gets_one_aligned_line_a_step():
  text = show([(step, METRICS) for step in range(1, 43)], force_terminal=False)
  out = text.splitlines()
  assert out[0] == 'three agents'
  headers = [i for i, line in enumerate(out) if 'acc %' in line]
  assert headers == [2, 23, 44]
  rows = [line for line in out[2:-1] if 'acc %' not in line]
  assert len(rows) == 42
  assert {len(line) for line in rows} == {len(progress.header(140))}
  assert rows[4].split()[:9] == [
    '5',
    '50.0',
    '45.0',
    '0.310',
    '42.2',
    '512',
    '25.0',
    '10.0',
    '75.0',
  ]
  assert out[-1] == 'checkpoint [saved]'
  assert '\x1b' not in text


@pytest.mark.parametrize(
  ('variable', 'value', 'bar'),
  [
    ('JPY_PARENT_PID', '1', False),
    ('MPLBACKEND', 'module://m.inline', False),
    ('A', '', True),
  ],
)
def test_the_shell_of_a_notebook_gets_plain_lines(monkeypatch, variable, value, bar):
  for name in ('JPY_PARENT_PID', 'MPLBACKEND', 'NO_COLOR'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv(variable, value)
  out = io.StringIO()
  out.isatty = lambda: True
  monkeypatch.setattr('sys.stdout', out)
  with progress.Progress(9, 0, 'run') as display:
    display.step(1, METRICS)
  lines = out.getvalue().splitlines()
  assert ('\x1b' in out.getvalue()) == bar
  if not bar:
    assert [line.split()[:1] for line in lines] == [['run'], ['step'], ['1']]
    assert max(map(len, lines)) <= 100


def test_recorded_conversations_are_printed(tmp_path, capsys):
  before = episode(1, text='', right=False) | {'label': 'untrained'}
  write_run(tmp_path, episodes=[before, episode(2) | {'label': 'trained'}])
  conversation.show_transcripts(tmp_path, 'untrained')
  assert capsys.readouterr().out.splitlines() == [
    '[untrained] How many bolts? (1)',
    '  holder (note: the crate: 12): is silent',
    '  solver: The answer is 12',
    '  answer 13; gold 12; score 0.0',
    '',
  ]
  with pytest.raises(ValueError, match=r"no transcript 'during'; see evaluation\.transcripts"):
    conversation.show_transcripts(tmp_path, 'during')


def test_a_log_hears_of_a_long_phase_now_and_then():
  file, now = io.StringIO(), [1000.0]
  console = Console(file=file, force_terminal=False)
  with progress.Progress(100, 0, 'run', console=console, clock=lambda: now[0]) as display:
    for done in range(130):
      now[0] += 1
      display.phase('SFT, 0.512 nats per token', done, 300)
    display.note('SFT: done')
    for _ in range(29):
      now[0] += 1
      display.phase('rollout', 1, 3)
    now[0] += 1
    display.phase('update')
    display.phase('update', 1, 3)
    now[0] += 29
    display.step(1, METRICS)
    now[0] += 29
    display.phase('rollout')
  out = file.getvalue().splitlines()
  phases = [line for line in out if line.startswith('...')]
  assert phases == [
    *(f'... SFT, 0.512 nats per token {done}/300' for done in (0, 30, 60, 90, 120)),
    '... update',
  ]
  assert out.index('SFT: done') == 6


def test_a_terminal_shows_phases_beside_its_bar_alone():
  file, now = io.StringIO(), [0.0]
  console = Console(file=file, force_terminal=True, color_system=None, width=90)
  with progress.Progress(9, 0, 'run', console=console, clock=lambda: now[0]) as display:
    now[0] += 100
    display.phase('rollout [x]', 1, 3)
    display._bar.refresh()
  assert '...' not in file.getvalue()
  assert 'left -  rollout [x] 1/3' in file.getvalue()


def test_a_log_survives_missing_and_odd_metrics():
  odd = {'task/accuracy': 'x', 'reward/mean': math.nan, 'comm/silence_rate': np.ones(3), 'a': None}
  out = show([(1, {}), (2, odd)], force_terminal=False).splitlines()
  assert out[3].split()[1:15] == ['-'] * 14
  assert out[4].split()[1:15] == ['-'] * 14


@pytest.mark.parametrize('width', [20, 60, 80, 140])
def test_a_terminal_gets_the_columns_that_fit(width):
  steps = [(1, METRICS), (2, {}), (3, {'task/accuracy': 'x'}), (4, METRICS)]
  text = show(steps, force_terminal=True, width=width, color_system=None)
  assert 'checkpoint [saved]' in text
  lines = re.sub(r'\x1b\[[0-9?]*[A-Za-z]', '', text).replace('\r', '\n').splitlines()
  assert max(map(len, lines)) <= width
  assert [x.split()[:2] for x in lines if ' 50.0 ' in f'{x} '] == [['1', '50.0'], ['4', '50.0']]
  assert ('left' in next(x for x in lines if 'acc %' in x)) == (width == 140)
  assert (' 4/100 ' in lines[-1]) == (width >= 60)


class Broken(io.StringIO):
  def write(self, text):
    raise OSError(28, 'no space left')


@pytest.mark.parametrize('terminal', [True, False])
def test_a_terminal_that_fails_does_not_stop_the_run(terminal, capsys):
  console = Console(file=Broken(), force_terminal=terminal)
  with progress.Progress(3, 0, 'run', console=console) as display:
    for step in range(3):
      display.step(step, METRICS)
    display.note('still here')
  assert capsys.readouterr().err.count('the run goes on') == 1


def test_text_that_the_log_cannot_encode():
  raw = io.BytesIO()
  file = io.TextIOWrapper(raw, encoding='ascii')
  table = tables.evaluation_table(
    evaluation(0, '', 0.1, 9, 0), evaluation(1, '', 0.2, 8, 0), with_change=True
  )
  with progress.Progress(3, 0, 'λ', console=Console(file=file)) as display:
    display.step(1, METRICS)
    display.note(table)
    display.note('後')
  file.flush()
  text = raw.getvalue().decode('ascii')
  assert text.startswith('?\n')
  assert text.endswith('?\n')
  assert '10.0 %' in text


def test_the_body_may_raise():
  console = Console(file=io.StringIO(), force_terminal=True)
  with (
    pytest.raises(KeyboardInterrupt),
    progress.Progress(3, 0, 'run', console=console),
  ):
    raise KeyboardInterrupt


def test_remaining_time_leaves_out_the_compilation():
  now = [0.0]
  console = Console(file=io.StringIO(), force_terminal=False)
  with progress.Progress(12, 2, console=console, clock=lambda: now[0]) as display:
    now[0] = 100.0
    display.step(3, {})
    assert display._remaining() == '-'
    for step in (4, 5):
      now[0] += 3
      display.step(step, {})
    assert display._remaining() == '21 s'


@pytest.mark.parametrize(
  ('value', 'text'),
  [(0.42, '0.42 s'), (8, '8 s'), (59.94, '59.9 s'), (245, '4m 05s'), (11220, '3h 07m')],
)
def test_durations(value, text):
  assert formatting.duration(value) == text


def test_numbers():
  assert formatting.number(0.0021234) == '0.00212'
  assert formatting.number(12345.6) == '12346'
  assert formatting.number(1.5e-6) == '1.5e-06'
  assert formatting.number(0) == '0.00'
  assert formatting.number(math.inf) == '-'


# Tables and pictures.


def test_closing_table():
  table = tables.evaluation_table(
    evaluation(0, 'untrained', 0.3, 60.0, 0.05),
    evaluation(9, 'trained', 0.55, 20.0, 0.8),
    with_change=True,
  )
  text = tables.render_text(table, 140)
  rows = {line[:38].strip(): line[38:].split('  ') for line in text.splitlines()}
  rows = {name: [cell.strip() for cell in cells if cell.strip()] for name, cells in rows.items()}
  assert re.search(r'untrained +trained\n +team +team +change', text)
  assert rows['accuracy'] == [
    '30.0 % [25.0, 35.0]',
    '55.0 % [50.0, 60.0]',
    '+25.0 points',
  ]
  assert rows['tokens written per question (Ctok)'] == ['60.0', '20.0', '-67 %']
  assert rows['tokens read per question (Ptok)'] == ['600', '200', '-67 %']
  assert 'holder: silent, note relevant / irrelevant' in text
  assert '1.0 % / 80.0 %' in text
  assert rows['silent, note relevant'] == ['1.0 %', '1.0 %', '+0.0 points']
  assert rows['silent, note irrelevant'] == ['5.0 %', '80.0 %', '+75.0 points']
  assert '+0.0 / +75.0 points' in text
  assert rows['solver: silent'] == ['0.0 %', '0.0 %', '+0.0 points']
  assert 'test split, 200 questions' in text


def test_the_end_of_a_run_fits_a_narrow_terminal(tmp_path):
  interval = _interval('tokens/written_per_question', 142.6, 130.1, 150.2)
  records = [
    evaluation(0, 'constant answer', 0.0, 0.0, 0.0),
    evaluation(0, 'single agent', 0.1, 9.0, 0.0),
    evaluation(0, 'untrained', 0.3, 60.0, 0.05) | interval,
    trained := evaluation(9, 'trained', 0.55, 20.0, 0.8) | interval,
  ]
  (tmp_path / 'eval.jsonl').write_text('\n'.join(map(json.dumps, records)))
  (tmp_path / 'config.json').write_text('{}')
  file = io.StringIO()
  console = Console(file=file, width=80, force_terminal=True, color_system=None)
  with progress.Progress(9, 9, console=console) as display:
    display.ended(tmp_path, trained)
  rows = file.getvalue().splitlines()
  table = [row for row in rows if any(word in row for word in ('accuracy', 'tokens', 'silent'))]
  assert sum('accuracy' in row for row in table) == 2  # of the team, of the baselines
  assert 10 < max(map(len, table)) <= 80


@pytest.mark.parametrize(
  ('other', 'shown'), [({}, True), ({'questions': 40}, False), ({'temperature': 1.0}, False)]
)
def test_evaluations_of_other_questions_have_no_change(tmp_path, other, shown):
  trained = evaluation(9, 'trained', 0.5, 20.0, 0.8)
  lines = [evaluation(0, 'untrained', 0.25, 60.0, 0.05) | other, trained]
  (tmp_path / 'eval.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  file = io.StringIO()
  with progress.Progress(9, 9, console=Console(file=file, force_terminal=False)) as display:
    display.ended(tmp_path, trained)
  assert all(text in file.getvalue() for text in ('25.0 %', '50.0 %', 'untrained', 'trained'))
  assert ('change' in file.getvalue()) == ('+25.0 points' in file.getvalue()) == shown


def test_closing_table_of_nothing():
  text = tables.render_text(tables.evaluation_table({}, {}, with_change=True))
  assert 'accuracy' in text


def _interval(key, value, low, high):
  return {key: value, f'{key}_low': low, f'{key}_high': high}


COMPARED = {
  'label': 'AgentDropout at equal tokens',
  **_interval('task/accuracy', 0.251, 0.225, 0.279),
  **{f'task/accuracy_by_{grader}': 0.26 for grader in ('equation', 'strict', 'legacy')},
  **_interval('tokens/written_per_question', 142.6, 130.1, 150.2),
  **_interval('tokens/read_per_question', 1979.0, 1900.0, 2050.0),
  'tokens/text_written_per_question': 119.2,
  'tokens/text_read_per_question': 1805.0,
  'tokens/critical_path_per_question': 80.2,
  'comm/calls_per_question': 6.0,
  'comm/silence_rate': 0.112,
  'money/per_question': 0.000123,
}
FIGURES = ('25.1 [22.5, 27.9]', '142.6 [130.1, 150.2]', '1979 [1900, 2050]', '119.2 + 1805',
           '80.2', '6.0', '11.2', '0.000123')  # fmt: skip


@pytest.mark.parametrize('width', [40, 120, 160])
def test_no_figure_of_a_table_is_cut_off(width):
  table = tables.comparison_table([COMPARED])
  (row,) = (x for x in tables.render_text(table, width).splitlines() if 'AgentDropout' in x)
  assert row.split('  ')[1:2] == ['AgentDropout at equal tokens']
  assert all(f'  {figure}' in row for figure in FIGURES)
  team = evaluation(9, 'trained', 0.55, 20.0, 0.8)
  text = tables.render_text(tables.evaluation_table(team, team, with_change=True), width)
  assert re.search(
    r' 55\.0 % \[50\.0, 60\.0\]   55\.0 % \[50\.0, 60\.0\]  .* \+0\.0 points\n', text
  )
  assert '…' not in text


@pytest.mark.parametrize('name', ['llama-3[fp8]', 'org/model[/b]', '[red]team'])
def test_names_in_brackets_are_no_markup(name):
  record = {'label': name, 'split': name, 'task/accuracy': 0.5, f'{records.GRADED}{name}': 0.5}
  record['agents'] = [{'name': name}]
  shown = tables.render_text(tables.evaluation_table(record, record, with_change=True))
  # Two heads, a row of its grader, two of its agent, the caption.
  assert shown.count(name) == 2 + 1 + 2 + 1
  shown = tables.render_text(tables.comparison_table([record]))
  assert shown.count(name) == 2
  probed = {'probe': name, 'task/accuracy': 0.5}
  assert name in tables.render_text(tables.probe_table([probed]))
  row = {'measure': name, 'a': 1, 'b': 2, 'difference': 1}
  shown = tables.render_text(tables.difference_table([name, name], [row]))
  assert shown.count(name) == 3


@pytest.mark.parametrize('terminal', [True, False])
def test_no_figure_that_a_run_shows_is_cut_off(terminal):
  file = io.StringIO()
  console = Console(file=file, force_terminal=terminal, width=80, color_system=None)
  with progress.Progress(3, 0, 'run', console=console) as display:
    display.note(tables.comparison_table([COMPARED]))
  assert all(f'  {figure}' in file.getvalue() for figure in FIGURES)
