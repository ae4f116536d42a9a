"""Tests launch/evaluate.py and launch/compare.py, with resumed and foreign folders."""

from __future__ import annotations

import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys

import micro_run
import pytest
import talkative_run

from agent_gspo.apps.commands import compare, evaluation_folder
from agent_gspo.apps.reporting import tables
from agent_gspo.tasks.options import SPLITS
from agent_gspo.workdir import json_lines

ARGUMENTS = (
  f'--config={talkative_run.CONFIG}',
  '--config.evaluation.batch_questions=2',
  '--baseline=single,self_consistency,debate,agent_prune',
  '--probes',
  '--price_written=2',
)


@functools.cache
def evaluated() -> tuple[pathlib.Path, str]:
  """Returns the folder and the output of a whole evaluation."""
  folder = micro_run.folder() / 'evaluated'
  done = micro_run.run(micro_run.command('evaluate', *ARGUMENTS, f'--out={folder}'))
  assert done.returncode == 0, done.stderr
  assert re.match(r'untrained: 0 of \d+ questions\n', done.stderr)  # in a log, from the start
  return folder, done.stdout


def result() -> dict:
  return json.loads((evaluated()[0] / 'result.json').read_text())


def test_result_holds_every_system_and_its_figures():
  figures = result()
  evaluations = figures['evaluations']
  labels = [e['label'] for e in evaluations]
  k = evaluations[3]['samples']
  assert labels == [
    'untrained',
    'constant answer',
    'single agent',
    f'self-consistency (k={k})',
    'debate',
    'AgentPrune',
  ]
  assert len(figures['probes']) == 8
  assert figures['left_out'] == {}
  assert figures['question_ids'] == [f'relay-test-{i}' for i in range(4)]
  team = evaluations[0]
  prices = team['money/prices_per_million']
  none = {'inserted': 0.0, 'factors': {}}
  assert prices == {'written': 2.0, 'read': 0.0, 'source': 'flags', **none}
  assert team['money/per_question'] == pytest.approx(2e-6 * team['tokens/written_per_question'])
  printed = evaluated()[1]
  for text in (*labels, 'informant1: tokens written', 'messages shuffled', 'points per 100 tokens'):
    assert text in printed


def test_figures_are_those_of_the_records():
  folder, _ = evaluated()
  figures, records = evaluation_folder.read(folder)
  assert figures['label'] == 'untrained'
  written = [m['written'] for r in records for m in r['messages']]
  assert sum(written) / 4 == figures['tokens/written_per_question']
  assert {'question', 'gold', 'answer', 'task_score', 'messages'} <= records[0].keys()
  debate, records = evaluation_folder.read(folder, 'debate')
  assert [len(r['messages']) for r in records] == [6] * 4
  assert debate['comm/calls_per_question'] == 6.0


@pytest.mark.slow
def test_a_killed_evaluation_ends_with_the_very_same_result(tmp_path):
  folder, _ = evaluated()
  lines = (folder / 'results.jsonl').read_bytes().splitlines(keepends=True)
  cut = tmp_path / 'cut'
  cut.mkdir()
  shutil.copy(folder / 'evaluation.json', cut)
  # Killed while it wrote a line, in the middle of a batch.
  (cut / 'results.jsonl').write_bytes(b''.join(lines[:9]) + lines[9][: len(lines[9]) // 2])
  done = micro_run.run(micro_run.command('evaluate', *ARGUMENTS, f'--out={cut}'))
  assert done.returncode == 0, done.stderr
  records = list(map(json.loads, lines))
  own = [record['variant'] for record in records].count(records[0]['variant'])
  answered = sum(record['variant'] == records[0]['variant'] for record in records[:9])
  assert re.search(
    rf'^{own - answered} of {own} episodes in .*, the others before$', done.stdout, re.M
  )
  assert without_command(cut) == without_command(folder)
  assert (cut / 'learnt.json').read_bytes() == (folder / 'learnt.json').read_bytes()
  again = (cut / 'results.jsonl').read_bytes().splitlines(keepends=True)
  assert again[:9] == lines[:9]
  without_time = lambda line: {
    k: v for k, v in json.loads(line).items() if k not in ('seconds', 'checksum')
  }
  key = lambda record: (record['variant'], record['question_id'])
  assert sorted(map(without_time, again), key=key) == sorted(map(without_time, lines), key=key)


def test_a_team_that_cannot_be_probed_is_refused_before_it_is_asked(tmp_path):
  # Messages of a debate are read in the next round, and there is one alone.
  fields = ('--config.team.topology=debate', '--config.team.rounds=1')
  done = micro_run.run(micro_run.command('evaluate', *ARGUMENTS, *fields, f'--out={tmp_path}'))
  assert done.returncode == 2
  assert re.fullmatch(
    r'error: --probes: no agent of this team reads .* leave out --probes\.\n', done.stderr
  )
  assert list(tmp_path.iterdir()) == []


# The folder


_TASK = """
import json, sys, types
import micro_run
from agent_gspo.apps.commands import evaluate
from agent_gspo.config import check
for place in sys.argv[1:]:
  options = {'file': place + '/own.jsonl'}
  config = micro_run.changed(task__name='questions', task__options=options)
  parts = check.check(config, training=False)
  about = dict(config=parts.config, team=parts.team, sharing=parts.sharing, source='x')
  found = evaluate._fingerprint(types.SimpleNamespace(**about), 'weights', 0)
  print(json.dumps(found['task']))
"""


def test_an_evaluation_goes_on_where_its_questions_lie_elsewhere(tmp_path):
  rows = [{'question': f'How many of {split} ?', 'answer': '3', 'split': split} for split in SPLITS]
  for place in ('a', 'b'):
    (tmp_path / place).mkdir()
    (tmp_path / place / 'own.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  done = subprocess.run(
    [sys.executable, '-c', _TASK, tmp_path / 'a', tmp_path / 'b'],
    env={**micro_run.environment(), 'PYTHONPATH': f'{micro_run.CONFIG.parent}:{micro_run.ROOT}'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  first, second = map(json.loads, done.stdout.splitlines())
  assert first == second == {'name': 'questions', 'options': {}}


FINGERPRINT = {'temperature': 0.5, 'team': {'edges': [[0, 1]], 'rounds': 1}, 'seed': 0}


@pytest.mark.parametrize(
  ('changed', 'message'),
  [
    ({'temperature': 1.0}, r'temperature: 0\.5 there, 1\.0 now'),
    ({'team': {'edges': [(0, 1)], 'rounds': 2}}, r'team\.rounds: 1 there, 2 now'),
    ({'team': {'edges': [], 'rounds': 1}}, r'team\.edges: '),
    ({'more': 'x'}, r"more: None there, 'x' now"),
  ],
)
def test_a_folder_of_another_evaluation_is_refused(tmp_path, changed, message):
  evaluation_folder.Folder(tmp_path, FINGERPRINT)
  evaluation_folder.Folder(tmp_path, {**FINGERPRINT, 'team': {'rounds': 1, 'edges': [(0, 1)]}})
  with pytest.raises(ValueError, match=message):
    evaluation_folder.Folder(tmp_path, {**FINGERPRINT, **changed})


def test_results_without_their_evaluation_are_refused(tmp_path):
  (tmp_path / 'results.jsonl').write_text('{}\n')
  with pytest.raises(ValueError, match=r'holds results without evaluation\.json'):
    evaluation_folder.Folder(tmp_path, FINGERPRINT)


def test_an_evaluation_has_a_folder_of_its_own(tmp_path):
  (tmp_path / 'metrics.jsonl').write_text('{}\n')
  with pytest.raises(ValueError, match=r'--out=.* is the folder of a run; must be another one'):
    evaluation_folder.Folder(tmp_path, FINGERPRINT)
  evaluation_folder.Folder(tmp_path / 'evaluation', FINGERPRINT)


@pytest.mark.parametrize('name', ['evaluation.json', 'learnt.json'])
@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'{"a": ', 'not valid JSON'),
    (b'{"a": "\xff"}', 'not valid JSON'),
    (b'[1]', r'must hold a JSON object, not \[1\]'),
  ],
)
def test_damaged_files_of_a_folder_are_named(tmp_path, name, content, message):
  evaluation_folder.Folder(tmp_path, FINGERPRINT)
  (tmp_path / name).write_bytes(content)
  with pytest.raises(ValueError, match=rf'{name}: {message}.*take another --out\.'):
    evaluation_folder.Folder(tmp_path, FINGERPRINT)


def test_answers_that_are_not_whole_are_asked_again(tmp_path):
  folder, _ = evaluated()
  shutil.copy(folder / 'evaluation.json', tmp_path)
  fingerprint = json.loads((folder / 'evaluation.json').read_text())
  first, second = (folder / 'results.jsonl').read_text().splitlines()[:2]
  one, other = map(json.loads, (first, second))
  said = {**one['messages'][0], 'agent': 'stranger'}
  broken = [
    first[:50],
    '[]',
    '{}',
    first.replace('"written": ', '"written": 1'),
    json.dumps({k: v for k, v in one.items() if k != 'checksum'}),
    json.dumps({k: v for k, v in one.items() if k != 'variant'}),
    json.dumps({**one, 'task_score': 3}),
    json.dumps({**one, 'messages': [said, *one['messages'][1:]]}),
    json.dumps({**one, 'checksum': other['checksum']}),
  ]
  for line in broken:
    (tmp_path / 'results.jsonl').write_text(f'{line}\n{second}\n')
    with pytest.warns(UserWarning, match=r'results\.jsonl, line 1 is no whole answer: left out'):
      answers = evaluation_folder.Folder(tmp_path, fingerprint)
    assert answers.get(one['variant'], one['question_id'], 1) == []
    assert answers.get(other['variant'], other['question_id'], 1) == [without_checksum(other)]


def resealed(record: dict) -> str:
  return json.dumps(evaluation_folder.sealed(without_checksum(record)))


def without_command(folder: pathlib.Path) -> dict:
  """Returns the result without its command and checksum, which depend on --out."""
  result = without_checksum(json.loads((folder / 'result.json').read_text()))
  assert result['software'].pop('command')
  return result


def without_checksum(record: dict) -> dict:
  return {k: v for k, v in record.items() if k != 'checksum'}


@pytest.mark.filterwarnings('error')
@pytest.mark.slow
@pytest.mark.parametrize('changed', [(), ('topology=debate', 'rounds=2', 'max_episode_tokens=17')])
def test_what_a_whole_evaluation_wrote_is_read_without_a_warning(tmp_path, changed):
  fields = [f'--config.team.{field}' for field in changed]
  arguments = (f'--config={talkative_run.CONFIG}', *fields, '--baseline=all', '--probes')
  done = micro_run.run(micro_run.command('evaluate', *arguments, f'--out={tmp_path}'))
  assert done.returncode == 0, done.stderr
  fingerprint = json.loads((tmp_path / 'evaluation.json').read_text())
  answers = evaluation_folder.Folder(tmp_path, fingerprint)
  records = list(json_lines.iterate(tmp_path / 'results.jsonl'))
  assert len(records) > 4 * 12
  for record in records:
    assert answers.get(record['variant'], record['question_id'], 1) == [without_checksum(record)]


def test_a_folder_keeps_records_whole(tmp_path):
  folder = evaluation_folder.Folder(tmp_path / 'new', FINGERPRINT)
  record = {'variant': 'v', 'question_id': 'a', 'sample': 0, 'task_score': 0.1, 'messages': []}
  folder.add([record, {**record, 'question_id': 'b'}])
  folder.learn('mask', (1, 2))
  with (tmp_path / 'new' / 'results.jsonl').open('a') as file:
    file.write('{"variant": "v", "quest')
  again = evaluation_folder.Folder(tmp_path / 'new', FINGERPRINT)
  assert again.get('v', 'a', 1) == folder.get('v', 'a', 1) == [record]
  assert again.get('v', 'c', 1) == []
  assert again.learnt == folder.learnt == {'mask': [1, 2]}
  again.add([{**record, 'question_id': 'c'}])
  found = list(json_lines.iterate(tmp_path / 'new' / 'results.jsonl'))
  assert [r['question_id'] for r in found] == ['a', 'b', 'c']


def test_reading_what_is_not_there(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'holds no result\.json'):
    evaluation_folder.read(tmp_path)
  with pytest.raises(ValueError, match="holds no evaluation 'star'; it holds 'untrained', 'single"):
    evaluation_folder.read(evaluated()[0], 'star')


# Comparing


def compare_command(monkeypatch, *systems):
  monkeypatch.setattr(sys, 'argv', ['compare.py', *map(str, systems)])
  compare.cli()


def test_compare_two_systems(monkeypatch, capsys):
  folder, _ = evaluated()
  compare_command(monkeypatch, folder, f'{folder}:debate')
  printed = capsys.readouterr().out
  team, debate = (next(e for e in result()['evaluations'] if e['label'] == label)
                  for label in ('untrained', 'debate'))  # fmt: skip
  gap = team['tokens/written_per_question'] - debate['tokens/written_per_question']
  line = next(line for line in printed.splitlines() if 'Ctok' in line)
  assert f'{gap:+.1f} [' in line
  assert all(text in printed for text in ('accuracy, %', 'Ptok', 'untrained', '4 questions'))


def test_compare_takes_a_label_with_a_colon(monkeypatch, tmp_path, capsys):
  other = tmp_path / 'other'
  shutil.copytree(evaluated()[0], other)
  changed = result()
  changed['evaluations'][0]['label'] = 'step 3, solver of hf:a/b'
  (other / 'result.json').write_text(resealed(changed))
  compare_command(monkeypatch, f'{other}:step 3, solver of hf:a/b', f'{other}:debate')
  assert 'solver of hf:a/b' in capsys.readouterr().out


def test_compare_leaves_out_what_failed_in_one(monkeypatch, tmp_path, capsys):
  folder, _ = evaluated()
  other = tmp_path / 'other'
  shutil.copytree(folder, other)
  changed = result()
  team, failed = changed['evaluations'][0], changed['question_ids'][1]
  team['failed'] = {failed: 'withheld'}
  (other / 'result.json').write_text(resealed(changed))
  lines = (other / 'results.jsonl').read_text().splitlines(keepends=True)
  gone = lambda r: (r['variant'], r['question_id']) == (team['variant'], failed)
  kept = [line for line in lines if not gone(json.loads(line))]
  (other / 'results.jsonl').write_text(''.join(kept))
  assert len(kept) == len(lines) - 1
  compare_command(monkeypatch, folder, other)
  assert '3 questions, 1 that failed in one left out' in capsys.readouterr().out


def test_compare_reads_the_questions_and_not_the_options(monkeypatch, tmp_path, capsys):
  folder, _ = evaluated()
  other = tmp_path / 'other'
  shutil.copytree(folder, other)
  changed = result()
  changed['evaluation']['task']['options'] = {'view': 'whole'}
  (other / 'result.json').write_text(resealed(changed))
  compare_command(monkeypatch, folder, other)
  assert '4 questions' in capsys.readouterr().out
  records = [json.loads(line) for line in (other / 'results.jsonl').read_text().splitlines()]
  records[0]['gold'] += '9'
  (other / 'results.jsonl').write_text(''.join(resealed(r) + '\n' for r in records))
  with pytest.raises(SystemExit):
    compare_command(monkeypatch, folder, other)
  assert 'evaluate both systems with the same task.options' in capsys.readouterr().err


def test_compare_refuses_what_cannot_be_compared(monkeypatch, tmp_path, capsys):
  folder, _ = evaluated()
  other = tmp_path / 'other'

  def refused(message):
    with pytest.raises(SystemExit) as exit_:
      compare_command(monkeypatch, folder, other)
    assert exit_.value.code == 2
    assert re.fullmatch(rf'error: .*{message}.*\n', capsys.readouterr().err)

  refused(r'holds no result\.json')
  shutil.copytree(folder, other)
  changed = result()
  changed['evaluation']['task']['name'] = 'another'
  (other / 'result.json').write_text(resealed(changed))
  refused('different tasks or splits')
  changed = result()
  changed['question_ids'].pop()
  (other / 'result.json').write_text(resealed(changed))
  refused('4 and 3 answers, 3 of them to the same')


@pytest.mark.filterwarnings('ignore:results.jsonl, line 1')
def test_damaged_folders_of_evaluations_are_refused(tmp_path):
  folder = tmp_path / 'folder'
  shutil.copytree(evaluated()[0], folder)
  whole = (folder / 'results.jsonl').read_text()
  first, *rest = whole.splitlines(keepends=True)
  question = json.loads(first)['question_id']
  for line in ('', first[:50] + '\n', first.replace('"written": ', '"written": "x", "was": ')):
    (folder / 'results.jsonl').write_text(line + ''.join(rest))
    with pytest.raises(ValueError, match=rf"holds no whole answer to question '{question}'"):
      evaluation_folder.read(folder)
  (folder / 'results.jsonl').write_text(whole)
  for text in (
    '[]',
    '{"evaluations": ',
    '{"evaluations": [], "question_ids": []}',
  ):
    (folder / 'result.json').write_text(text)
    with pytest.raises(ValueError, match=r'result\.json is damaged\. Evaluate again with another'):
      evaluation_folder.read(folder)


# Tables


def test_tables_show_what_is_known():
  figures = result()
  text = tables.render_text(tables.comparison_table(figures['evaluations']), 200)
  constant = next(line for line in text.splitlines() if 'constant' in line)
  assert constant.split()[-1] == '-'  # no calls, no money
  text = tables.render_text(tables.probe_table(figures['probes']), 200)
  assert len([line for line in text.splitlines() if 'muted' in line]) == 3
  rows = [{'measure': 'x', 'a': 1, 'b': 2, 'difference': -1.0, 'difference_low': -2.0,
           'difference_high': 0.5}]  # fmt: skip
  assert '-1.0 [-2.0, +0.5]' in tables.render_text(tables.difference_table(['A', 'B'], rows))
