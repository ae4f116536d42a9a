"""Tests the HTML report: its data, its form, and the graph of readers."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from report_pages import episode, parse, write_run

from agent_gspo.apps.reporting import html_report, report_data
from agent_gspo.workdir import records, writers

ROOT = pathlib.Path(__file__).resolve().parents[3]
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
  long = [episode(step, text='word ' * 1000) for step in range(1, 1501)]
  run = write_run(tmp_path / 'a', steps=5000, episodes=long)
  data = report_data.build([records.load_run(run)])
  (shown,) = data['runs']
  assert 700 < len(shown['steps']) <= 800
  assert shown['steps'][-1] == 5000
  assert shown['series']['task/accuracy'][-1] == pytest.approx(1, abs=0.002)
  assert shown['transcripts'] == 1500
  steps = [t['step'] for t in data['transcripts']]
  assert len(steps) == 1000
  assert steps == sorted(steps, reverse=True)
  assert steps[:667] == list(range(1500, 833, -1))
  assert steps[-1] == 1
  text = data['transcripts'][0]['messages'][0]['text']
  assert len(text) < 4100
  assert 'characters' in text
  assert html_report.write_report(run, tmp_path / 'r').stat().st_size < 7_000_000


def test_curves_of_runs_of_different_lengths_have_the_same_steps(tmp_path):
  runs = [write_run(tmp_path / f'{steps}', steps=steps) for steps in (801, 1700, 20)]
  shown = report_data.build([records.load_run(run) for run in runs])['runs']
  longest = shown[1]['steps']
  assert longest == [*range(3, 1700, 3), 1700]
  assert shown[0]['steps'] == longest[:267]
  assert shown[2]['steps'] == longest[:7]
  assert shown[1]['series']['task/accuracy'][:2] == pytest.approx([2 / 1700, 5 / 1700], rel=1e-5)


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
  with pytest.raises(ValueError, match='folders is empty'):
    html_report.write_report([], tmp_path / 'r')
  with pytest.raises(FileNotFoundError, match='holds no run'):
    html_report.write_report(tmp_path / 'nowhere', tmp_path / 'r')


def test_who_hears_whom_is_of_the_newest_evaluation_that_says_it(tmp_path):
  edge = {'author': 'holder', 'reader': 'solver', 'turns': 2, 'said': 1, 'told': 1, 'tokens': 8}
  back = {**edge, 'author': 'solver', 'reader': 'holder', 'tokens': 9}
  run = write_run(tmp_path / 'run')
  with (run / records.EVALUATIONS).open('a') as file:
    for edges in ([edge], [edge, back], [{'author': 'holder'}], None):
      told = {} if edges is None else {'edges': edges}
      file.write(json.dumps({'step': 5, 'label': 'trained', **told}) + '\n')
  with pytest.warns(UserWarning, match=r'line 5: .edges.'):
    (shown,) = report_data.build([records.load_run(run)])['runs']
  assert shown['edges'] == [back, edge]


def write_evaluation(folder, finished=True):
  """Writes an evaluation of a team and a baseline, as `launch/evaluate.py --out` does."""
  folder.mkdir(parents=True)
  systems = ('step 5', 'single agent')
  answers = [episode(n) | {'label': name, 'step': 5} for n in (1, 2) for name in systems]
  lines = (json.dumps(answer | {'variant': answer['label'], 'seconds': 3.0}) for answer in answers)
  (folder / 'results.jsonl').write_text(''.join(line + '\n' for line in lines))
  found = [{'label': name, 'step': 5, 'task/accuracy': 0.5} for name in systems]
  result = {'evaluations': found, 'config': {'seed': 3}, 'software': {'commit': 'abc'}}
  if finished:
    (folder / 'result.json').write_text(json.dumps(result))
  return folder


def test_an_evaluation_is_shown_like_a_run(tmp_path):
  write_run(tmp_path / 'all' / 'run')
  folder = write_evaluation(tmp_path / 'all' / 'evaluated')
  write_evaluation(tmp_path / 'all' / 'running', finished=False)
  data = report_data.build(report_data.load([tmp_path / 'all', folder]))
  assert [run['name'] for run in data['runs']] == ['run', 'evaluated', 'running']
  shown = data['runs'][1]
  assert [(e['label'], e.get('team')) for e in shown['evaluations']] == [
    ('step 5', True),
    ('single agent', None),
  ]
  assert shown['config'] == {'seed': 3}
  assert shown['about']['commit'] == 'abc'
  assert shown['about']['time of all steps and evaluations'] == '12.0 s'
  assert [run['transcripts'] for run in data['runs']] == [5, 4, 4]
  labels = [t['label'] for t in data['transcripts'] if t['run'] == 1]
  assert sorted(labels) == ['single agent', 'single agent', 'step 5', 'step 5']


def test_questions_before_and_after_training_are_kept(tmp_path):
  asked = lambda step, label: [episode(n) | {'step': step, 'label': label} for n in range(20)]
  episodes = [episode(n) | {'label': 'train'} for n in range(1, 901)]
  whole = [*asked(0, 'untrained'), *episodes, *asked(900, 'trained')]
  run = write_run(tmp_path / 'run', episodes=whole)
  chosen, total = report_data.pick_transcripts(run, 60)
  assert total == 940
  found = [(t['label'], t['question_id']) for t in chosen]
  for label in ('untrained', 'trained'):
    assert [q for name, q in found if name == label] == [f'q{n}' for n in range(15)]
  assert [t['step'] for t in chosen if t['label'] == 'train'][:20] == list(range(900, 880, -1))
  assert len(chosen) == 60


def test_long_conversations_leave_room_for_the_trained_team(tmp_path, monkeypatch):
  monkeypatch.setattr(report_data, '_MAX_CHARACTERS', 60_000)
  checked, odd_field = [], records.odd_field
  monkeypatch.setattr(records, 'odd_field', lambda *line: checked.append(0) or odd_field(*line))
  text = 'word ' * 700
  asked = lambda step, label: [
    episode(n, text=text) | {'step': step, 'split': 'test', 'label': label} for n in range(5)
  ]
  episodes = [*asked(0, 'untrained'), *(e for n in range(1, 5) for e in asked(10 * n, 'during'))]
  episodes += [episode(n, text=text) | {'label': 'train'} for n in range(1, 1200)]
  episodes += asked(40, 'trained')
  huge = {**episodes[-5], 'question': text, 'messages': 20 * episodes[-5]['messages']}
  episodes[-5] = huge  # alone too long for the page
  head = ('step', 'split', 'label')
  lines = [{key: e[key] for key in head} | e for e in episodes]
  data = report_data.build([records.load_run(write_run(tmp_path / 'run', episodes=lines))])
  shown = [(t['label'], t['step'], t['question_id']) for t in data['transcripts']]
  assert data['runs'][0]['transcripts'] == len(episodes)
  assert ('trained', 40, 'q1') in shown
  assert ('trained', 40, 'q0') not in shown
  assert {('untrained', 0, 'q0'), ('during', 10, 'q0'), ('during', 40, 'q0')} <= {*shown}
  assert ('train', 1199) in [s[:2] for s in shown]
  assert len(checked) < len(episodes)  # those that are not shown are not read whole


def test_a_served_report_follows_its_files(tmp_path, capsys):
  run = write_run(tmp_path / 'run')
  server = html_report.serve([run], 0)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  address = f'http://127.0.0.1:{server.server_port}/'
  ask = lambda **how: urllib.request.urlopen(urllib.request.Request(address, **how), timeout=30)
  try:
    with ask() as page:
      text, version = page.read().decode(), page.headers['ETag']
    assert f'"version":"{version}"' in text
    assert "connect-src 'self'" in text
    with ask(method='HEAD') as same:
      assert (same.read(), same.headers['ETag']) == (b'', version)
    with contextlib.closing(writers.RunWriter(run)) as writer:
      writer.metrics(6, {'task/accuracy': 0.5})
    with ask(method='HEAD') as newer:
      assert newer.headers['ETag'] != version
    for host in ('localhost:9000', 'LOCALHOST', '127.0.0.1'):  # of a forwarded port
      with ask(method='HEAD', headers={'Host': host}) as same:
        assert same.status == 200
    for host in ('elsewhere.example', f'elsewhere.example:{server.server_port}', ''):
      with pytest.raises(urllib.error.HTTPError, match='403'):
        ask(headers={'Host': host})
    with socket.create_connection(server.server_address[:2]) as closed:
      closed.sendall(b'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')
      closed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    run.rename(tmp_path / 'moved')
    with pytest.raises(urllib.error.HTTPError, match='404'):
      ask()
    (tmp_path / 'moved').rename(run)
  finally:
    server.shutdown()
    server.server_close()
  assert capsys.readouterr().err == ''
  assert 'connect-src' not in html_report.write_report(run, tmp_path / 'r').read_text()


def edges(tokens):
  """Returns the edges of a team in which `holder` wrote so many tokens to `solver`."""
  one = {'author': 'holder', 'reader': 'solver', 'turns': 2, 'said': 1, 'told': 1}
  return [{**one, 'tokens': tokens}]


@pytest.mark.parametrize(
  ('written', 'expected'),
  [
    (['untrained', 'trained', 'trained, price 0.5', 'trained, training split'], 'trained'),
    (['during', 'trained', 'untrained'], 'trained'),
    (['during', 'trained, price 0.5', 'trained, training split', 'untrained'], 'during'),
    ([None, 'trained, budget 8'], None),
    (['untrained', 'trained, training split'], 'untrained'),
    (['trained, training split'], 'nothing'),
  ],
)
def test_who_hears_whom_is_of_the_trained_team_first(tmp_path, written, expected):
  with contextlib.closing(writers.RunWriter(tmp_path / 'run')) as writer:
    for step, label in enumerate(written):
      name = {} if label is None else {'label': label}
      writer.evaluation({'step': step, 'split': 'test', **name, 'edges': edges(step)})
  (shown,) = report_data.build([records.load_run(tmp_path / 'run')])['runs']
  step = None if expected == 'nothing' else written.index(expected)
  assert [edge['tokens'] for edge in shown['edges']] == ([] if step is None else [step])
  assert shown['edges_of']['step'] == step
  assert shown['edges_of']['label'] == (None if step is None else expected)


def test_what_a_team_was_told_stands_beside_its_evaluation(tmp_path):
  told = {'trained': None, 'trained, price 0.5': 0.5, 'trained, budget 8': 8.0, 'x, price -': None}
  with contextlib.closing(writers.RunWriter(tmp_path / 'run')) as writer:
    for label in told:
      writer.evaluation({'step': 1, 'label': label})
  (shown,) = report_data.build([records.load_run(tmp_path / 'run')])['runs']
  assert {e['label']: e.get('told') for e in shown['evaluations']} == told
  assert 'told' not in shown['evaluations'][0]


def test_a_run_in_its_supervised_stage_has_a_report(tmp_path):
  run = supervised_run(tmp_path / 'runs' / 'new')
  assert report_data.find([tmp_path / 'runs']) == [run]
  (shown,) = json.loads(parse(html_report.write_report(run, tmp_path / 'r')).data)['runs']
  assert shown['sft']['series']['sft/loss_nats'] == [3.0, 1.5]
  (tmp_path / 'notes').mkdir()
  with pytest.raises(FileNotFoundError, match=r'notes holds no run: .* or sft\.jsonl in it'):
    report_data.find([tmp_path / 'notes'])
  with pytest.raises(FileNotFoundError, match=r'notes holds neither .* nor sft\.jsonl'):
    records.load_run(tmp_path / 'notes')


def supervised_run(workdir):
  workdir.mkdir(parents=True)
  (workdir / records.CONFIG).write_text('{"seed": 0}')
  steps = [{'step': i, 'sft/loss_nats': 3.0 / i} for i in (1, 2)]
  (workdir / records.SFT).write_text(''.join(json.dumps(step) + '\n' for step in steps))
  return workdir


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
  """Returns the page after its scripts have run without errors."""
  drawn, complaints = draw_with_complaints(page)
  assert 'CONSOLE' not in complaints
  return drawn


def draw_with_complaints(page) -> tuple[str, str]:
  return browse(page.as_uri(), page.parent / 'profile')


def browse(address, profile, seconds=2) -> tuple[str, str]:
  """Returns the page at an address after some seconds, and the browser's errors."""
  done = subprocess.run(
    [
      browser(),
      *('--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run'),
      *('--disable-background-networking', '--disable-component-update', '--disable-sync'),
      f'--user-data-dir={profile}',
      *(
        '--enable-logging=stderr',
        f'--virtual-time-budget={1000 * seconds}',
        '--dump-dom',
        address,
      ),
    ],
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
  )
  return done.stdout, done.stderr


def shown(page) -> str:
  """Returns the drawn elements, without scripts."""
  return without_scripts(draw(page))


def without_scripts(drawn: str) -> str:
  return re.sub(r'<script.*?</script>', '', drawn, flags=re.DOTALL)


def part(drawn: str, start: str, end: str) -> str:
  """Returns the part of a page between one text, which must be unique, and another."""
  assert drawn.count(start) == 1
  return drawn.partition(start)[2].partition(end)[0]


def text_of(drawn: str) -> list[str]:
  return [text.strip() for text in re.split(r'<[^>]*>', drawn) if text.strip()]


@needs_browser
@pytest.mark.parametrize(('typed', 'found'), [('CRATE HOLDS', 2), ('(3)', 1), ('nobody says', 0)])
def test_searching_transcripts(tmp_path, typed, found):
  silent = [episode(step, text='', right=False) for step in (3, 4)]
  run = write_run(tmp_path / 'run', episodes=[episode(1), episode(2), *silent])
  page = html_report.write_report([run], tmp_path / 'report.html')
  types = f"""
    const search = document.querySelector('input[type=search]');
    search.value = {json.dumps(typed)};
    search.dispatchEvent(new Event('input'));
  """
  drawn = drawn_after(page, types)
  assert drawn.count('class="card transcript"') == found
  assert f'{found} of 4' in drawn


def drawn_after(page, action) -> str:
  """Returns the page after a script that runs once it has loaded."""
  text = page.read_text(encoding='utf-8')
  script = f"<script>addEventListener('load', () => {{ {action} }})</script>"
  page.write_text(text.replace('</body>', script + '</body>'), encoding='utf-8')
  return shown(page)


def paired_run(workdir):
  """Writes a run with two questions before and after training; the second costs more."""
  long = [m | {'written': 90, 'worth': 2.0} for m in episode(2)['messages']]
  told = {
    'before': episode(1) | {'step': 0, 'label': 'untrained'},
    'after': episode(1, text='') | {'step': 5, 'label': 'trained'},
    'other': episode(2) | {'step': 5, 'label': 'trained', 'messages': long},
  }
  return write_run(workdir, episodes=[*told.values()])


@needs_browser
def test_a_question_is_shown_before_and_after_training(tmp_path):
  page = html_report.write_report([paired_run(tmp_path / 'run')], tmp_path / 'report.html')
  drawn = drawn_after(page, CHOOSE.format('side by side', 1))
  assert drawn.count('class="card transcript"') == 1
  titles = re.findall(r'class="origin"><span[^>]*>\w+</span>([^<]*)<', drawn)
  assert titles == ['step 0 · untrained · train', 'step 5 · trained · train']
  assert 'read 1 message' in drawn  # of the holder, before


@needs_browser
def test_a_click_on_a_message_opens_what_the_model_read_and_wrote(tmp_path):
  first, second = episode(1)['messages']
  tokens = [['The', -0.5], ['crate', None]]
  first |= {'prompt': 'Q ? say :', 'tokens': tokens, 'task': 1.0, 'token_cost': 0.5}
  first |= {'observed': ['at b2', 'dark'], 'earned': 1.5}  # in an environment
  again = {**first, 'round': 1, 'prompt': 'solver : 12'}
  run = write_run(tmp_path / 'run', episodes=[episode(1) | {'messages': [first, second, again]}])
  page = html_report.write_report([run], tmp_path / 'report.html')
  drawn = drawn_after(page, "document.querySelectorAll('.message .text')[2].click()")
  opened = text_of(part(drawn, '<details class="read" open="">', '</details>'))
  read = ['Q ? say :', 'The', 'crate', 'solver : 12']
  assert opened == ['prompt, and tokens with log-probs', *read, 'The', '-0.5', 'crate', 'tool']
  assert drawn.count('reward +0.500 = task 1.000 - tokens 0.500') == 2
  assert 'read 1 message<' in drawn  # of a record without a prompt
  assert drawn.count('observes: at b2') == drawn.count('observes: dark') == 2
  assert drawn.count('earned +1.50') == 2


CHOOSE = """
  const box = document.querySelector('[aria-label="{}"]');
  box.selectedIndex = {};
  box.dispatchEvent(new Event('change'));
"""


@needs_browser
@pytest.mark.parametrize(
  ('label', 'index', 'expected'),
  [
    ('order', 1, ['q2-', 'q1-', 'q1-']),
    ('order', 2, ['q1-', 'q1-', 'q2-']),
    ('order', 3, ['q2-', 'q1-', 'q1-']),
    ('agent', 1, ['q1-', 'q1-', 'q2-']),
    ('silence', 1, ['q1-']),
  ],
)
def test_conversations_are_sorted_and_filtered(tmp_path, label, index, expected):
  page = html_report.write_report([paired_run(tmp_path / 'run')], tmp_path / 'report.html')
  drawn = drawn_after(page, CHOOSE.format(label, index))
  found = re.findall(r'class="card transcript" id="[^"]*(q\d)"', drawn)
  if label == 'agent':
    found = sorted(found)
  assert [f'{name}-' for name in found] == expected


@needs_browser
def test_a_link_opens_its_conversation(tmp_path):
  page = html_report.write_report([paired_run(tmp_path / 'run')], tmp_path / 'report.html')
  drawn = drawn_after(page, "location.hash = '#untrained-0-q1'")
  first = part(drawn, 'class="card transcript" id="untrained-0-q1"', '</summary>')
  assert ' open=""' in first.partition('>')[0]
  assert drawn.index('id="untrained-0-q1"') < drawn.index('id="trained-5-q2"')


@needs_browser
def test_seeds_are_brought_together(tmp_path):
  runs = []
  for seed in range(2):
    runs.append(write_run(tmp_path / f'lambda=0_seed_{seed}', steps=5))
    (runs[-1] / records.CONFIG).write_text(json.dumps({'seed': seed, 'a': {'b': 1}}))
    with contextlib.closing(writers.RunWriter(runs[-1])) as writer:
      writer.metrics(6, {'task/accuracy': 0.2 + 0.4 * seed})
  page = html_report.write_report(runs, tmp_path / 'report.html')
  at_end = """
    const chart = document.querySelector('svg[aria-label=Accuracy]');
    const clientX = chart.getBoundingClientRect().right;
    chart.dispatchEvent(new PointerEvent('pointermove', {clientX}));
  """
  drawn = drawn_after(page, at_end)
  assert '<i class="dot" style="background:var(--c0)"></i>lambda=0 (2 seeds)</h3>' in drawn
  tip = text_of(part(drawn, '<b>step 6</b>', '</figure>'))
  assert tip[:2] == ['training', '40.0 % [20.0 %, 60.0 %]']
  assert 'evaluations, lowest to highest seed' in drawn


def computed(runs, expression):
  """Returns the value of an expression in the scripts of a page on some runs."""
  if shutil.which('node') is None:
    pytest.skip('no node to run the scripts with')
  data = json.dumps(json.dumps(report_data.build([records.load_run(run) for run in runs])))
  assets = ROOT / 'agent_gspo/apps/reporting/assets'
  page = f'const document = {{getElementById: () => ({{textContent: {data}}})}};'
  scripts = [(assets / f'{name}.js').read_text() for name in ('seeds', 'dom', 'summary')]
  made = 'h = (tag, attributes, ...children) => children.join("");'
  code = '\n'.join([page, *scripts, made, f'console.log(JSON.stringify({expression}))'])
  done = subprocess.run(['node', '-'], input=code, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def test_seeds_that_end_at_different_steps_are_one_evaluation(tmp_path):
  runs = []
  for seed, steps in enumerate((5, 7, 9)):
    runs.append(tmp_path / f'seed_{seed}')
    with contextlib.closing(writers.RunWriter(runs[-1])) as writer:
      writer.config({'seed': seed})
      labels = [(0, 'untrained'), (3, 'during'), (steps - 2, 'trained'), (steps, 'trained')]
      for step, label in labels:
        writer.evaluation(
          {'step': step, 'label': label, 'split': 'test', 'task/accuracy': seed / 4}
        )
      writer.evaluation({'step': steps, 'label': 'during', 'split': 'test'})
  fields = ['label', 'step', 'seeds', 'task/accuracy']
  found = computed(runs, f'sets[0].evaluations.map((e) => {fields}.map((key) => e[key] ?? null))')
  assert found == [
    ['untrained', 0, 3, 0.25],
    ['during', 3, 3, 0.25],
    ['trained', 9, 3, 0.25],
    *(['during', steps, None, None] for steps in (5, 7, 9)),
  ]


@pytest.mark.parametrize(
  'other',
  [{}, {'questions': 40}, {'temperature': 0.0}, {'samples_per_question': 4}, {'spread': True}],
)
def test_a_change_is_shown_between_evaluations_of_the_same_questions(tmp_path, other):
  asked = {'split': 'test', 'questions': 10, 'temperature': 1.0}
  with contextlib.closing(writers.RunWriter(tmp_path / 'run')) as writer:
    writer.evaluation({'step': 0, 'label': 'untrained', 'task/accuracy': 0.25, **asked})
    writer.evaluation({'step': 4, 'label': 'trained', 'task/accuracy': 0.75, **asked, **other})
  pair = 'beforeAndAfter(sets[0])'
  found = computed([tmp_path / 'run'], f'change(FIGURES[0], {pair}.before, {pair}.after).pill')
  assert found == (None if other else '+50.0 points')


@needs_browser
@pytest.mark.parametrize('changes', [True, False])
def test_an_open_page_is_loaded_anew_once_its_files_change(tmp_path, monkeypatch, changes):
  run = write_run(tmp_path / 'run')
  page, loaded = html_report._page, []

  def counted(*arguments):
    loaded.append(page(*arguments))
    if changes and len(loaded) == 1:
      with contextlib.closing(writers.RunWriter(run)) as writer:
        writer.metrics(6, {'task/accuracy': 0.5})
    return loaded[-1]

  monkeypatch.setattr(html_report, '_page', counted)
  server = html_report.serve([run], 0)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    drawn, _ = browse(f'http://127.0.0.1:{server.server_port}/', tmp_path / 'profile', seconds=12)
  finally:
    server.shutdown()
    server.server_close()
  assert len(loaded) == 1 + changes
  assert f'agent_gspo report · {5 + changes} steps' in drawn


@needs_browser
def test_a_chart_can_be_saved(tmp_path):
  page = html_report.write_report([write_run(tmp_path / 'run')], tmp_path / 'report.html')
  save = """
    URL.createObjectURL = (blob) => { blob.text().then((text) => {
      document.body.append(Object.assign(document.createElement('output'), {textContent: text}));
    }); return 'data:,'; };
    HTMLAnchorElement.prototype.click = () => {};
    document.querySelectorAll('figure .save')[0].click();
    document.querySelectorAll('figure .save')[1].click();
  """
  table, drawing = re.findall(r'<output>(.*?)</output>', drawn_after(page, save), re.DOTALL)
  assert table.splitlines()[:2] == ['name,step,value,low,high', 'training,1,0.2,,']
  assert drawing.startswith('&lt;svg ')
  assert 'xmlns="http://www.w3.org/2000/svg"' in drawing
  assert 'stroke: rgb(' in drawing  # not a variable of the page
  assert 'evaluation, 95 % interval&lt;/text' in drawing


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


@needs_browser
@pytest.mark.parametrize(('count', 'smoothing'), [(1, 0.6), (1, 0), (2, 0.6)])
def test_a_tooltip_shows_what_was_measured_under_its_name(tmp_path, count, smoothing):
  runs = [write_run(tmp_path / f'run{i}') for i in range(count)]
  page = html_report.write_report(runs, tmp_path / 'report.html')
  point = f"""
    const slider = document.querySelector('input[type=range]');
    slider.value = {smoothing};
    slider.dispatchEvent(new Event('input'));
    const chart = document.querySelector('svg[aria-label=Accuracy]');
    const clientX = chart.getBoundingClientRect().right;
    chart.dispatchEvent(new PointerEvent('pointermove', {{clientX}}));
  """
  tip = text_of(part(drawn_after(page, point), '<b>step 5</b>', '</figure>'))
  mean = sum(0.6 ** (5 - step) * step / 5 for step in range(1, 6)) / sum(0.6**i for i in range(5))
  expected = []
  for name in ['training'] if count == 1 else ['run0', 'run1']:
    expected += [name, '100.0 %']
    expected += [f'{name}, smoothed', f'{100 * mean:.1f} %'] if smoothing else []
  assert tip == expected


@needs_browser
def test_agents_that_held_notes_of_one_kind_alone_keep_their_rows(tmp_path):
  # An agent without notes of a kind has no rate for them.
  rates = {'ann': (0.25, None), 'bob': (None, 0.5), 'cy': (0.75, 0.125), 'solver': (None, None)}
  keys = ('silence_rate_relevant', 'silence_rate_irrelevant')
  agents = [{'name': name, **dict(zip(keys, known, strict=True))} for name, known in rates.items()]
  with contextlib.closing(writers.RunWriter(tmp_path / 'run')) as writer:
    writer.evaluation({'step': 1, 'label': 'trained', 'task/accuracy': 0.5, 'agents': agents})
  drawn = shown(html_report.write_report([tmp_path / 'run'], tmp_path / 'report.html'))
  for kind, rates in (
    ('relevant', ['25.0 %', '-', '75.0 %']),
    ('irrelevant', ['-', '50.0 %', '12.5 %']),
  ):
    card = text_of(part(drawn, f'>Silent turns, note {kind}</h4>', '<div class="card'))[:6]
    assert card == ['ann', rates[0], 'bob', rates[1], 'cy', rates[2]]


@needs_browser
def test_a_section_that_fails_leaves_the_others(tmp_path):
  data = report_data.build([records.load_run(write_run(tmp_path / 'run'))])
  data['transcripts'] = [{'run': 0}]  # which no workdir gives: of every line the messages are read
  page = tmp_path / 'report.html'
  page.write_text(html_report.render('run', {**data, 'written': ''}), encoding='utf-8')
  drawn, complaints = draw_with_complaints(page)
  drawn = without_scripts(drawn)
  assert 'TypeError' in complaints
  assert 'Transcripts could not be drawn: TypeError' in drawn
  assert '>Before and after training</h2>' in drawn
  assert '>Configuration</h2>' in drawn


def told_run(workdir):
  """Writes a run with prices in prompts, evaluated at two steps."""
  with contextlib.closing(writers.RunWriter(workdir)) as writer:
    told = {0.002: (61.0, 0.5), 0: (64.0, 0.75), 0.01: (20.0, 0.25)}
    for label, accuracy in (('constant answer', 0.1), ('single agent', 0.4), ('untrained', 0.2)):
      measured = {'task/accuracy': accuracy, 'tokens/written_per_question': 40 * accuracy}
      writer.evaluation({'step': 0, 'label': label, **measured})
    figures = {'trained': (40.0, 0.6)}
    figures |= {f'trained, price {price:g}': shown for price, shown in told.items()}
    figures[records.SEEN] = (45.0, 0.95)
    for step in (2, 4):
      writer.metrics(step, {'task/accuracy': 0.5})
      for label, (tokens, accuracy) in figures.items():
        measured = {'task/accuracy': accuracy, 'tokens/written_per_question': tokens + step}
        writer.evaluation({'step': step, 'label': label, **measured})
    writer.transcripts(
      [episode(4) | {'label': label} for label in ('train', 'trained', 'trained, price 0.01')]
    )
  return workdir


@needs_browser
def test_answers_to_prices_are_a_curve_of_their_own(tmp_path):
  drawn = shown(html_report.write_report([told_run(tmp_path / 'run')], tmp_path / 'report.html'))
  chart = part(drawn, '>Accuracy against tokens written<', '</figure>')
  assert 'told a price or budget' in chart
  assert records.SEEN not in chart
  marks = re.findall(r'<rect x="([0-9.]+)" [^>]*stroke="var\(--c0\)"[^>]*><title>([^<]*)', chart)
  assert [name.split(', ')[1:3] for _, name in marks] == [
    [f'price {price}', 'step 4'] for price in ('0', '0.002', '0.01')
  ]
  # Joined in order of the price, from right to left here.
  curves = re.findall(r'<path ([^>]*)d="M([0-9. L]*)"([^>]*)>', chart)
  (curve,) = (d for before, d, behind in curves if 'dasharray' not in before + behind)
  across = [float(point.split()[0]) for point in curve.split('L')]
  assert across == sorted(across, reverse=True)
  width = float(re.search(r'<svg width="([0-9.]+)"', chart)[1])
  labels = re.findall(
    r'<text class="tick halo" x="([0-9.]+)" y="[0-9.]+" text-anchor="(start|end)">([^<]+)<',
    chart,
  )
  assert [text for *_, text in labels] == ['constant answer', 'single agent', '0', '0.002', '0.01']
  for x, anchor, text in labels:
    left = float(x) - 6 * len(text) * (anchor == 'end')
    assert left > 0
    assert left + 6 * len(text) < width
    assert anchor == ('end' if float(x) > width / 2 else 'start')


@needs_browser
def test_transcripts_say_of_which_evaluation_they_are(tmp_path):
  page = html_report.write_report([told_run(tmp_path / 'run')], tmp_path / 'report.html')
  drawn = drawn_after(page, CHOOSE.format('which evaluation', 3))
  assert drawn.count('class="card transcript"') == 1
  assert 'step 4 · trained, price 0.01 · train · 13 written' in drawn


@needs_browser
@pytest.mark.parametrize('other', [{}, {'questions': 40}, {'temperature': 0.0}])
def test_figures_of_different_measurements_have_no_change(tmp_path, other):
  before = {'split': 'test', 'questions': 10, 'temperature': 1.0}
  after = {**before, **other}
  with contextlib.closing(writers.RunWriter(tmp_path / 'run')) as writer:
    for step, label, measured in ((0, 'untrained', before), (4, 'trained', after)):
      writer.evaluation(
        {'step': step, 'label': label, 'task/accuracy': 0.25 + step / 8, **measured}
      )
  drawn = shown(html_report.write_report([tmp_path / 'run'], tmp_path / 'report.html'))
  assert ('+50.0 points' in drawn) == (not other)
  assert '75.0 %' in drawn
  told = 'test split, {questions} questions, temperature {temperature:g}'.format
  source = f'before: {told(**before)}; after: {told(**after)}' if other else told(**before)
  assert f'{source}<' in drawn


@needs_browser
def test_no_label_of_a_tick_is_cut_off(tmp_path):
  with contextlib.closing(writers.RunWriter(tmp_path / 'run')) as writer:
    for step in (0, 200_000):
      writer.metrics(step, {'task/accuracy': 0.5})
  drawn = shown(html_report.write_report([tmp_path / 'run'], tmp_path / 'report.html'))
  chart = part(drawn, '<figcaption><span>Accuracy<', '</figure>')
  width = float(re.search(r'<svg width="([0-9.]+)"', chart)[1])
  ticks = re.findall(r'x="([0-9.]+)" y="[0-9.]+" text-anchor="middle">([0-9][^<]*)<', chart)
  x, text = ticks[-1]
  assert text == '200k'
  assert math.ceil(float(x) + 6.3 * len(text) / 2) <= width


@needs_browser
@pytest.mark.parametrize('supervised', [True, False])
def test_a_run_without_steps_is_drawn_without_errors(tmp_path, supervised):
  run = tmp_path / 'run'
  if supervised:
    supervised_run(run)
  else:
    run.mkdir()
    (run / records.METRICS).touch()
  drawn = shown(html_report.write_report([run], tmp_path / 'report.html'))
  assert 'no step and no evaluation so far' in drawn
  assert ('SFT, nats per token' in drawn) == supervised
