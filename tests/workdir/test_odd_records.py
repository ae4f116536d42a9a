"""Whatever the files of a run hold, a report shows what can be shown and names the rest."""

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
EDGE = {'author': 'a', 'reader': 'b', 'turns': 1.0, 'said': 1.0, 'told': 0.5, 'tokens': 4.0}
MESSAGE = episode(1)['messages'][0]


def _evaluation(**fields) -> str:
  return json.dumps(EVALUATION | fields)


def _agent(**fields) -> str:
  return _evaluation(agents=[{'name': 'solver', **fields}])


def _edge(**fields) -> str:
  return _evaluation(edges=[EDGE, EDGE | fields])


def _episode(**fields) -> str:
  return json.dumps(episode(9) | fields)


def _message(**fields) -> str:
  return _episode(messages=[MESSAGE, MESSAGE | fields])


# What is odd -> (file, a line of it, what the warning about that line says, None for no warning).
ODD = {
  'metrics: a list': (METRICS, '[1, 2]', 'what is no JSON object'),
  'metrics: no JSON': (METRICS, 'step 3', 'what is no JSON object'),
  'metrics: half an object': (METRICS, '{"step": 3, "a', 'what is no JSON object'),
  'metrics: too deep to read': (METRICS, '[' * 99999, 'what is no JSON object'),
  'metrics: too long a number': (METRICS, '{"step": 3, "a": ' + '9' * 5000 + '}', 'no JSON object'),
  'metrics: an empty line': (METRICS, '', None),
  'metrics: no step': (METRICS, '{"a": 1}', r'the whole line \(no step\)'),
  'metrics: step is text': (METRICS, '{"step": "3"}', r"'step', the whole line \(no step\)"),
  'metrics: step is true': (METRICS, '{"step": true}', "'step'"),
  'metrics: step is nan': (METRICS, '{"step": NaN}', "'step'"),
  'metrics: step is huge': (METRICS, json.dumps({'step': HUGE}), "'step'"),
  'metrics: step once more': (METRICS, '{"step": 2, "a": 1}', None),
  'metrics: value is text': (METRICS, '{"step": 6, "task/accuracy": "x"}', "'task/accuracy'"),
  'metrics: value is an object': (METRICS, '{"step": 6, "a": {"b": 1}}', "'a'"),
  'metrics: value is deep': (METRICS, f'{{"step": 6, "a": {DEEP}}}', "'a'"),
  'metrics: value is null': (METRICS, '{"step": 6, "task/accuracy": null}', None),
  'metrics: largest values': (METRICS, '{"step": 6, "task/accuracy": 1.7e308}', None),
  'eval: empty': (EVALUATIONS, '{}', None),
  'eval: label is a list': (EVALUATIONS, _evaluation(label=['trained']), "'label'"),
  'eval: temperature is text': (EVALUATIONS, _evaluation(temperature='hot'), "'temperature'"),
  'eval: accuracy is huge': (EVALUATIONS, _evaluation(**{'task/accuracy': HUGE}), 'task/accuracy'),
  'eval: an end of an interval': (EVALUATIONS, _evaluation(**{'task/accuracy_low': {}}), '_low'),
  'eval: agents is null': (EVALUATIONS, _evaluation(agents=None), "'agents'"),
  'eval: an agent is text': (EVALUATIONS, _evaluation(agents=['solver']), "'agents'"),
  'eval: an agent is nobody': (EVALUATIONS, _evaluation(agents=[{}]), "'agents'"),
  'eval: an agent is a number': (EVALUATIONS, _agent(name=1), "'agents'"),
  'eval: an agent writes text': (EVALUATIONS, _agent(written_per_question='many'), None),
  'eval: an agent is huge': (EVALUATIONS, _agent(silence_rate=HUGE), "'agents'"),
  'eval: an edge is text': (EVALUATIONS, _evaluation(edges=['a to b']), "'edges'"),
  'eval: an edge leads nowhere': (EVALUATIONS, _evaluation(edges=[{'author': 'a'}]), "'edges'"),
  'eval: an author is a number': (EVALUATIONS, _edge(author=1), "'edges'"),
  'eval: tokens heard are huge': (EVALUATIONS, _edge(tokens=HUGE), "'edges'"),
  'eval: no turn of an edge': (EVALUATIONS, _edge(turns=0.0), None),
  'eval: something deep': (EVALUATIONS, _evaluation()[:-1] + f', "x": {DEEP}}}', "'x'"),
  'transcripts: empty': (TRANSCRIPTS, '{}', None),
  'transcripts: messages is null': (TRANSCRIPTS, _episode(messages=None), "'messages'"),
  'transcripts: messages is text': (TRANSCRIPTS, _episode(messages='hi'), "'messages'"),
  'transcripts: a message is text': (TRANSCRIPTS, _episode(messages=['hi']), "'messages'"),
  'transcripts: nobody speaks': (TRANSCRIPTS, _episode(messages=[{}]), "'messages'"),
  'transcripts: agent is a list': (TRANSCRIPTS, _message(agent=['a']), "'messages'"),
  'transcripts: round is a list': (TRANSCRIPTS, _message(round=[0]), "'messages'"),
  'transcripts: written is huge': (TRANSCRIPTS, _message(written=HUGE), "'messages'"),
  'transcripts: largest counts': (TRANSCRIPTS, _message(written=1.7e308, read=1.7e308), None),
  'transcripts: silent is text': (TRANSCRIPTS, _message(silent='no'), "'messages'"),
  'transcripts: source is a number': (TRANSCRIPTS, _message(read_from=3), "'messages'"),
  'transcripts: sources are objects': (TRANSCRIPTS, _message(read_from=[[{}, []]]), "'messages'"),
  'transcripts: prompt is a list': (TRANSCRIPTS, _message(prompt=['x']), "'messages'"),
  'transcripts: a token is text': (TRANSCRIPTS, _message(tokens=['x']), "'messages'"),
  'transcripts: a tool wrote': (TRANSCRIPTS, _message(tokens=[['x', None]]), None),
  'transcripts: no source': (TRANSCRIPTS, _message(read_from=[['ghost', 7]]), None),
  'transcripts: question is a list': (TRANSCRIPTS, _episode(question=['x']), "'question'"),
  'transcripts: score is text': (TRANSCRIPTS, _episode(task_score='right'), "'task_score'"),
  'transcripts: of another run': (TRANSCRIPTS, _episode(run=99), None),
  'transcripts: something deep': (TRANSCRIPTS, _episode()[:-1] + f', "x": {DEEP}}}', "'x'"),
  'config: no JSON': (CONFIG, '{', 'what is no JSON object'),
  'config: nan': (CONFIG, '{"a": NaN, "b": 1}', "'a'"),
  'config: huge': (CONFIG, json.dumps({'a': HUGE}), "'a'"),
  'config: deep': (CONFIG, f'{{"a": {DEEP}}}', "'a'"),
}


def add_line(run: pathlib.Path, file: str, line: str) -> int:
  """Puts a line last but one into a file of a run; `config.json` is replaced. Gives its number."""
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
  """The page is whole, and its data are what its scripts rely on."""

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
  where = f'{run / file}' + ('' if file == CONFIG else f', line {number}') + ': left out '
  (warning,) = told
  assert warning.startswith(where)
  assert re.search(reason, warning)


def test_a_file_of_odd_lines_is_told_in_a_few(tmp_path):
  run = write_run(tmp_path / 'run')
  (run / METRICS).write_text('[]\n' * 1000)
  with pytest.warns(UserWarning, match='left out') as caught:
    assert records.load_run(run).metrics == []
  told = [str(w.message) for w in caught]
  assert len(told) == 6
  assert told[-1] == f'{run / METRICS}: left out something odd in 995 more lines'


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


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(data=st.data())
def test_no_line_takes_a_report_down(tmp_path_factory, data):
  """Of real lines, some values are replaced by anything, at any depth."""

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
    assert [records.clean(file, record) for record in found] == [(record, []) for record in found]


def _as_folder(run: pathlib.Path, name: str) -> list[str]:
  (run / name).unlink()
  (run / name).mkdir()
  return [str(run)]


def _without(run: pathlib.Path, *names: str) -> list[str]:
  for name in names:
    (run / name).unlink()
  return [str(run)]


# What is odd about the command -> (its arguments for a run, what its one line of error holds).
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
  """Runs launch/report.py here and gives its exit status."""
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
  assert notes[-1] == 'end   a=1, seed 0: accuracy -, - tokens a question'
