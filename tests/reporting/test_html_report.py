"""The HTML report: its data, its form, and who read whom."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from report_pages import episode, parse, write_run

from agent_gspo.reporting import html_report, report_data
from agent_gspo.workdir import records

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTILE = '</script><script>alert(1)</script><!-- &amp; "quoted" \u2028 \ud83d'


def test_the_report_is_one_valid_file_with_the_runs_in_it(tmp_path):
  runs = [write_run(tmp_path / 'a'), write_run(tmp_path / 'b', steps=3)]
  out = html_report.write_report(runs, tmp_path / 'deep' / 'report.html')
  page = parse(out)
  data = json.loads(page.data)
  assert [run['name'] for run in data['runs']] == ['a', 'b']
  assert data['runs'][0]['steps'] == [1, 2, 3, 4, 5]
  assert data['runs'][0]['series']['task/accuracy'] == [0.2, 0.4, 0.6, 0.8, 1.0]
  assert 'bad' not in data['runs'][0]['series']
  assert data['runs'][0]['config'] == {'task.name': 'notes', 'layers': '1, 2'}
  assert [e['task/accuracy'] for e in data['runs'][1]['evaluations']] == [0.125, 0.875]
  assert len(data['transcripts']) == 8
  assert {t['run'] for t in data['transcripts']} == {0, 1}
  tags = [tag for tag, _ in page.seen]
  assert tags.count('script') == 2
  # Nothing is fetched, and the page says so itself.
  assert not [a for _, a in page.seen if 'src' in a or a.get('href', '').startswith('http')]
  policy = next(a for _, a in page.seen if a.get('http-equiv') == 'Content-Security-Policy')
  assert "default-src 'none'" in policy['content']
  assert 'http' not in re.sub(r'http://www\.w3\.org/2000/svg|http-equiv', '', out.read_text())


def test_what_agents_write_cannot_leave_its_place(tmp_path):
  hostile = [episode(1, text=HOSTILE) | {'question': HOSTILE}]
  out = html_report.write_report(write_run(tmp_path / '<b>&run', episodes=hostile), tmp_path / 'r')
  page = parse(out)
  assert [tag for tag, _ in page.seen].count('script') == 2
  assert 'b' not in [tag for tag, _ in page.seen]
  data = json.loads(page.data)
  assert data['transcripts'][0]['question'] == HOSTILE
  assert data['transcripts'][0]['messages'][0]['text'] == HOSTILE
  assert '<' not in html_report.script_json(HOSTILE)


def test_sizes_are_bounded(tmp_path):
  long = [episode(step, text='word ' * 4000) for step in range(1, 701)]
  run = write_run(tmp_path / 'a', steps=5000, episodes=long)
  data = report_data.build(records.load_runs([run]))
  (shown,) = data['runs']
  assert len(shown['steps']) == 800
  assert shown['steps'][-1] == 5000
  assert shown['series']['task/accuracy'][-1] == pytest.approx(1, abs=0.002)
  assert shown['transcripts'] == 700
  steps = [t['step'] for t in data['transcripts']]
  assert len(steps) == 300
  assert steps == sorted(steps, reverse=True)
  assert steps[:200] == list(range(700, 500, -1))
  assert steps[-1] == 1
  text = data['transcripts'][0]['messages'][0]['text']
  assert len(text) < 4100
  assert 'characters' in text
  assert html_report.write_report(run, tmp_path / 'r').stat().st_size < 5_000_000


@pytest.mark.filterwarnings('ignore:.*left out')
def test_unfinished_and_odd_runs(tmp_path):
  (tmp_path / 'started').mkdir()
  (tmp_path / 'started' / records.METRICS).touch()
  parse(html_report.write_report(tmp_path / 'started', tmp_path / 'r'))
  odd = tmp_path / 'odd'
  odd.mkdir()
  (odd / records.METRICS).write_text('{"step": 1, "a": true}\n{"no step": 1}\n{"step": 2, "a')
  (odd / records.TRANSCRIPTS).write_text('{"step": 1}\n')
  (odd / records.CONFIG).write_text('{')
  parse(html_report.write_report([odd], tmp_path / 'r'))
  with pytest.raises(ValueError, match='workdirs is empty'):
    html_report.write_report([], tmp_path / 'r')
  with pytest.raises(FileNotFoundError, match='holds no run'):
    html_report.write_report(tmp_path / 'nowhere', tmp_path / 'r')


def test_who_hears_whom_is_of_the_newest_evaluation_that_says_it(tmp_path):
  edge = {'author': 'holder', 'reader': 'solver', 'turns': 2, 'said': 1, 'told': 1, 'tokens': 8}
  back = {**edge, 'author': 'solver', 'reader': 'holder', 'tokens': 9}
  run = write_run(tmp_path / 'run')
  with (run / records.EVALUATIONS).open('a') as file:
    for edges in ([edge], [edge, back, {'author': 'holder'}], None):
      told = {} if edges is None else {'edges': edges}
      file.write(json.dumps({'step': 5, 'label': 'trained', **told}) + '\n')
  with pytest.warns(UserWarning, match=r'edges\[2\]'):
    (shown,) = report_data.build([records.load_run(run)])['runs']
  assert shown['edges'] == [back, edge]


def test_the_command_runs_from_anywhere(tmp_path):
  write_run(tmp_path / 'sweep' / 'a')
  write_run(tmp_path / 'sweep' / 'b')
  command = [sys.executable, '-I', str(ROOT / 'launch' / 'report.py')]
  done = subprocess.run(
    [*command, 'sweep/a'], cwd=tmp_path, capture_output=True, text=True, check=True
  )
  assert 'wrote sweep/a/report.html' in done.stdout
  parse(tmp_path / 'sweep' / 'a' / 'report.html')
  subprocess.run([*command, 'sweep', '--out=both.html'], cwd=tmp_path, check=True)
  assert len(json.loads(parse(tmp_path / 'both.html').data)['runs']) == 2
  failed = subprocess.run([*command, '.'], cwd=tmp_path, capture_output=True, text=True)
  assert failed.returncode == 2
  assert 'holds no run' in failed.stderr


def browser():
  names = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
  return next(filter(None, map(shutil.which, names)), None)


needs_browser = pytest.mark.skipif(browser() is None, reason='no Chromium to draw the report with')


def draw(page) -> str:
  """The page as a browser has it once its scripts have run; they must not complain."""
  done = subprocess.run(
    [
      browser(),
      *('--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run'),
      *('--disable-background-networking', '--disable-component-update', '--disable-sync'),
      f'--user-data-dir={page.parent / "profile"}',
      *('--enable-logging=stderr', '--virtual-time-budget=2000', '--dump-dom', page.as_uri()),
    ],
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
  )
  assert 'CONSOLE' not in done.stderr
  return done.stdout


@needs_browser
@pytest.mark.parametrize(('typed', 'found'), [('CRATE HOLDS', 2), ('(3)', 1), ('nobody says', 0)])
def test_searching_transcripts(tmp_path, typed, found):
  silent = [episode(step, text='', right=False) for step in (3, 4)]
  run = write_run(tmp_path / 'run', episodes=[episode(1), episode(2), *silent])
  page = html_report.write_report([run], tmp_path / 'report.html')
  types = f"""<script>addEventListener('load', () => {{
    const search = document.querySelector('input[type=search]');
    search.value = {json.dumps(typed)};
    search.dispatchEvent(new Event('input'));
  }})</script>"""
  text = page.read_text(encoding='utf-8')
  page.write_text(text.replace('</body>', types + '</body>'), encoding='utf-8')
  drawn = draw(page)
  assert drawn.count('class="card transcript"') == found
  assert f'{found} of 4' in drawn


@needs_browser
@pytest.mark.parametrize('count', [1, 3])
def test_a_browser_draws_it_without_errors(tmp_path, count):
  hostile = [episode(1, text=HOSTILE), episode(2, text='', right=False)]
  runs = [write_run(tmp_path / f'run{i}', episodes=hostile) for i in range(count)]
  drawn = draw(html_report.write_report(runs, tmp_path / 'report.html'))
  assert drawn.count('class="card transcript"') == 2 * count
  assert 'says nothing' in drawn
  assert '87.5 %' in drawn
  assert '+75.0 points' in drawn
  assert '<polyline' in drawn or '<path' in drawn
  assert drawn.count('<script') == 2


@needs_browser
def test_charts_are_drawn_before_any_observer_reports(tmp_path):
  page = html_report.write_report([write_run(tmp_path / 'run')], tmp_path / 'report.html')
  silent = '<script>ResizeObserver = class { observe() {} }</script>'
  text = page.read_text(encoding='utf-8')
  page.write_text(text.replace('<head>', '<head>' + silent), encoding='utf-8')
  drawn = draw(page)
  assert drawn.count('<figure') == drawn.count('role="img"') == 3
