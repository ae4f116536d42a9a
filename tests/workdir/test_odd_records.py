"""Checks that a report shows what it can of damaged records, and names the rest."""

from __future__ import annotations

import json
import pathlib
import re
import sys
import warnings

import hypothesis
import micro_run
import pytest
from hypothesis import strategies as st
from report_pages import episode, parse, write_run

from agent_gspo.apps import sweep
from agent_gspo.apps.reporting import html_report
from agent_gspo.workdir import json_lines, records

METRICS, EVALUATIONS, TRANSCRIPTS, CONFIG = (
  records.METRICS,
  records.EVALUATIONS,
  records.TRANSCRIPTS,
  records.CONFIG,
)
HUGE = 10**400
DEEP = '[' * 900 + ']' * 900
EVALUATION = {'step': 5, 'label': 'trained', 'task/accuracy': 0.5, 'agents': []}
MESSAGE = episode(1)['messages'][0]


def _evaluation(**fields) -> str:
  return json.dumps(EVALUATION | fields)


def _agent(**fields) -> str:
  return _evaluation(agents=[{'name': 'solver', **fields}])


def _episode(**fields) -> str:
  return json.dumps(episode(9) | fields)


def _message(**fields) -> str:
  return _episode(messages=[MESSAGE, MESSAGE | fields])


# Damage -> (file, its line, the field named in the warning; None: the line is shown).
ODD = {
  'metrics: a list': (METRICS, '[1, 2]', 'no JSON object'),
  'metrics: half an object': (METRICS, '{"step": 3, "a', 'no JSON object'),
  'metrics: too deep to read': (METRICS, '[' * 99999, 'no JSON object'),
  'metrics: too long a number': (METRICS, '{"step": 3, "a": ' + '9' * 5000 + '}', 'no JSON object'),
  'metrics: no step': (METRICS, '{"a": 1}', "'step'"),
  'metrics: step is true': (METRICS, '{"step": true}', "'step'"),
  'metrics: step is huge': (METRICS, json.dumps({'step': HUGE}), "'step'"),
  'metrics: value is nan': (METRICS, '{"step": 6, "a": NaN}', "'a'"),
  'metrics: value is deep': (METRICS, f'{{"step": 6, "a": {DEEP}}}', "'a'"),
  'metrics: step once more': (METRICS, '{"step": 2, "a": 1}', None),
  'metrics: largest values': (METRICS, '{"step": 6, "task/accuracy": 1.7e308}', None),
  'eval: empty': (EVALUATIONS, '{}', None),
  'eval: label is a list': (EVALUATIONS, _evaluation(label=['trained']), "'label'"),
  'eval: accuracy is huge': (EVALUATIONS, _evaluation(**{'task/accuracy': HUGE}), 'task/accuracy'),
  'eval: accuracy is text': (EVALUATIONS, _evaluation(**{'task/accuracy': 'x'}), None),
  'eval: agents is a number': (EVALUATIONS, _evaluation(agents=3), "'agents'"),
  'eval: an agent is a number': (EVALUATIONS, _agent(name=1), "'agents'"),
  'eval: an agent is huge': (EVALUATIONS, _agent(silence_rate=HUGE), "'agents'"),
  'eval: an edge leads nowhere': (EVALUATIONS, _evaluation(edges=[{'author': 'a'}]), "'edges'"),
  'transcripts: empty': (TRANSCRIPTS, '{}', None),
  'transcripts: messages is null': (TRANSCRIPTS, _episode(messages=None), None),
  'transcripts: a message is text': (TRANSCRIPTS, _episode(messages=['hi']), "'messages'"),
  'transcripts: nobody speaks': (TRANSCRIPTS, _episode(messages=[{}]), "'messages'"),
  'transcripts: silent is text': (TRANSCRIPTS, _message(silent='no'), "'messages'"),
  'transcripts: sources are objects': (TRANSCRIPTS, _message(read_from=[[{}, []]]), "'messages'"),
  'transcripts: a token alone': (TRANSCRIPTS, _message(tokens=[['x']]), "'messages'"),
  'transcripts: a tool wrote': (TRANSCRIPTS, _message(tokens=[['x', None]]), None),
  'transcripts: no source': (TRANSCRIPTS, _message(read_from=[['ghost', 7]]), None),
  'transcripts: score is text': (TRANSCRIPTS, _episode(task_score='right'), "'task_score'"),
  'config: no JSON': (CONFIG, '{', 'no run writes it'),
  'config: nan': (CONFIG, '{"a": NaN, "b": 1}', 'no run writes it'),
}


def add_line(run: pathlib.Path, file: str, line: str) -> int:
  """Inserts a line before a file's last one, or replaces `config.json`; returns its number."""
  if file == CONFIG:
    (run / file).write_text(line)
    return 1
  lines = (run / file).read_text().splitlines()
  lines.insert(-1, line)
  (run / file).write_text('\n'.join(lines) + '\n')
  return len(lines) - 1


def number_or_none(value) -> bool:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  return value is None or (is_number and abs(value) < 1.8e308)


def assert_showable(page: pathlib.Path) -> dict:
  """Checks that the page is whole and that its data have the expected form."""

  def refuse(constant):
    raise AssertionError(f'{constant} is no JSON')

  data = json.loads(parse(page).data, parse_constant=refuse)
  for run in data['runs']:
    assert all(number_or_none(step) and step is not None for step in run['steps'])
    assert all(len(values) == len(run['steps']) for values in run['series'].values())
    assert all(number_or_none(x) for values in run['series'].values() for x in values)
    for record in run['evaluations']:
      assert isinstance(record.get('label', ''), str)
      assert all(number_or_none(x) for key, x in record.items() if '/' in key or key == 'step')
      assert all(isinstance(agent['name'], str) for agent in record.get('agents', []))
    for edge in run['edges']:
      assert isinstance(edge['author'] + edge['reader'], str)
      assert all(number_or_none(edge[key]) for key in ('turns', 'said', 'told', 'tokens'))
  for transcript in data['transcripts']:
    assert data['runs'][transcript['run']]
    assert number_or_none(transcript.get('step'))
    for message in transcript['messages']:
      assert isinstance(message['agent'], str)
      assert all(isinstance(message.get(key) or '', str) for key in ('text', 'note'))
      assert all(number_or_none(message.get(key)) for key in ('written', 'read', 'reward'))
  return data


@pytest.mark.parametrize('name', ODD)
def test_odd_lines_are_left_out_and_named(tmp_path, name):
  file, line, reason = ODD[name]
  run = write_run(tmp_path / 'run')
  number = add_line(run, file, line)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    page = html_report.write_report(run, tmp_path / 'report.html')
  data = assert_showable(page)
  shown = data['runs'][0]
  # The lines around it are there.
  assert {1, 2, 3, 4, 5} <= set(shown['steps'])
  labels = [record.get('label') for record in shown['evaluations']]
  assert (labels[0], labels[-1]) == ('untrained', 'trained')
  assert {1, 2, 3, 4, 5} <= {t.get('step') for t in data['transcripts']}
  told = [str(w.message) for w in caught]
  if reason is None:
    assert told == []
    return
  (warning,) = told
  assert warning.startswith(f'{run / file}: left out ')
  assert re.search(reason, warning)
  assert file == CONFIG or f'line {number}: ' in warning


def test_odd_lines_are_told_once(tmp_path):
  run = write_run(tmp_path / 'run')
  (run / METRICS).write_text('[]\n' * 1000)
  with pytest.warns(UserWarning, match='left out 1000 lines') as caught:
    assert records.load_run(run).metrics == []
  assert len(caught) == 1


_VALUES = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(HUGE),
  lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
  ),
  max_leaves=6,
)
_LINES = {
  METRICS: {'step': 1, 'task/accuracy': 0.5, 'a': 1},
  EVALUATIONS: EVALUATION | {'agents': [{'name': 'solver', 'silence_rate': 0.5}], 'split': 'test'},
  TRANSCRIPTS: episode(1),
}


@pytest.mark.slow
@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(data=st.data())
def test_no_line_takes_a_report_down(tmp_path_factory, data):
  """Replaces values of real lines by anything, at any depth."""

  def changed(value):
    if data.draw(st.integers(0, 7)) == 0:
      return data.draw(_VALUES)
    if isinstance(value, dict):
      return {key: changed(inner) for key, inner in value.items()}
    return [changed(inner) for inner in value] if isinstance(value, list) else value

  folder = tmp_path_factory.mktemp('odd')
  run = write_run(folder / 'run', steps=2)
  for file, line in _LINES.items():
    add_line(run, file, json.dumps(changed(line)))
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    assert_showable(html_report.write_report(run, folder / 'report.html'))


def test_true_lines_are_left_as_they_are():
  workdir = micro_run.finished()
  for file in (METRICS, EVALUATIONS, TRANSCRIPTS):
    found = list(json_lines.iterate(workdir / file))
    assert len(found) > 5
    assert not any(records.odd_field(file, record) for record in found)


def _as_folder(run: pathlib.Path, name: str) -> list[str]:
  (run / name).unlink()
  (run / name).mkdir()
  return [str(run)]


def _without(run: pathlib.Path, *names: str) -> list[str]:
  for name in names:
    (run / name).unlink()
  return [str(run)]


# Mistake -> (arguments of the command for a run, text of its one-line error).
_REFUSED = {
  'no run': (lambda run: [str(run.parent / 'nowhere')], 'nowhere holds no run: give a folder'),
  'a file': (lambda run: [str(run / METRICS)], 'metrics.jsonl holds no run: give a folder'),
  'an empty folder': (lambda run: [str(run / 'tensorboard')], 'tensorboard holds no run'),
  'no records': (
    lambda run: _without(run, METRICS, EVALUATIONS),
    'run holds no run: give a folder',
  ),
  'out is a folder': (lambda run: [str(run), f'--out={run}'], 'run is a folder: name a file, such'),
  'out below a file': (lambda run: [str(run), f'--out={run / METRICS / "r"}'], 'metrics.jsonl'),
}
_TAKEN = {
  'metrics alone': lambda run: _without(run, EVALUATIONS, TRANSCRIPTS, CONFIG),
  'evaluations alone': lambda run: _without(run, METRICS, TRANSCRIPTS, CONFIG),
  'transcripts is a folder': lambda run: _as_folder(run, TRANSCRIPTS),
  'metrics is a folder': lambda run: _as_folder(run, METRICS),
  'config is a folder': lambda run: _as_folder(run, CONFIG),
}


@pytest.fixture
def command(monkeypatch):
  """Returns a function that runs launch/report.py here and returns its exit status."""
  import agent_gspo.apps.commands.report

  monkeypatch.setattr(warnings, 'formatwarning', warnings.formatwarning)

  def run(*arguments: str) -> int:
    monkeypatch.setattr(sys, 'argv', ['report.py', *arguments])
    try:
      agent_gspo.apps.commands.report.cli()
    except SystemExit as exit_:
      return exit_.code
    return 0

  return run


@pytest.mark.parametrize('name', _REFUSED)
def test_what_cannot_be_shown_is_one_line_and_status_2(tmp_path, capsys, command, name):
  arguments, expected = _REFUSED[name]
  assert command(*arguments(write_run(tmp_path / 'run'))) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('error: ')
  assert expected in line


@pytest.mark.parametrize('name', _TAKEN)
def test_a_part_of_a_run_is_shown(tmp_path, capsys, command, name):
  run = write_run(tmp_path / 'run')
  assert command(*_TAKEN[name](run)) == 0
  assert_showable(run / 'report.html')
  assert capsys.readouterr().err == ''


def test_a_sweep_survives_a_result_without_figures(tmp_path, monkeypatch):
  script = tmp_path / 'train.py'
  script.write_text(
    'import pathlib, sys\n'
    'workdir = pathlib.Path(sys.argv[1].partition("=")[2])\n'
    'line = \'{"label": "trained", "step": 1, "task/accuracy": null, "agents": 3}\'\n'
    '(workdir / "eval.jsonl").write_text(\'{"label": ["x"]}\\n[]\\n\' + line + "\\n")\n'
    '(workdir / "done").touch()\n'
  )
  monkeypatch.setattr(sweep, '_TRAIN', (sys.executable, str(script)))
  todo, notes = sweep.points(tmp_path, sweep.grid([('a', ['1'])]), [0]), []
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    assert sweep.run_missing(todo, 'c.py', [], note=notes.append) == []
  assert notes[-1] == 'end   a=1, seed 0: accuracy -, - tokens per question'
