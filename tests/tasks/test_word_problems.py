"""GSM8K, SVAMP, MultiArith: reading, cutting, storing, fetching."""

from __future__ import annotations

import functools
import hashlib
import http.server
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
from fractions import Fraction

import pytest

from agent_gspo.tasks import base
from agent_gspo.tasks.benchmarks.word_problems import (
  GSM8K,
  SVAMP,
  MultiArith,
  _number_text,
  _put_back,
)
from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.cuts import masked
from agent_gspo.tasks.data.near_duplicates import near_duplicates
from agent_gspo.tasks.data.prepared import prepare_questions
from agent_gspo.tasks.registry import make_task
from agent_gspo.types import Question

DATA = os.environ.get(sources.DATA_DIR_VARIABLE, '')
SOURCES = {source.path: source for task in (GSM8K, SVAMP, MultiArith) for source in task.SOURCES}
needs_data = pytest.mark.skipif(
  not all((pathlib.Path(DATA) / path).is_file() for path in SOURCES) or not DATA,
  reason=f'set ${sources.DATA_DIR_VARIABLE} to a folder with the official files',
)
NAMES = ('gsm8k', 'svamp', 'multiarith')


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp('cache')


@pytest.fixture(scope='module')
def tasks(cache):
  return {name: make_task(name, data_dir=DATA, cache_dir=cache) for name in NAMES}


def read_official(task):
  return task.read(*(pathlib.Path(DATA) / source.path for source in task.SOURCES))


@pytest.fixture
def no_data_dir(monkeypatch):
  monkeypatch.delenv(sources.DATA_DIR_VARIABLE, raising=False)


class _Server(http.server.ThreadingHTTPServer):
  """Serves a folder on loopback and remembers what was asked for."""

  def __init__(self, folder):
    self.paths = []
    super().__init__(('127.0.0.1', 0), functools.partial(_Handler, directory=folder))
    self.base_url = f'http://127.0.0.1:{self.server_address[1]}'


class _Handler(http.server.SimpleHTTPRequestHandler):
  def do_GET(self):
    self.server.paths.append(self.path)
    super().do_GET()

  def log_message(self, *args):
    pass


@pytest.fixture
def server(tmp_path):
  folder = tmp_path / 'www'
  folder.mkdir()
  served = _Server(folder)
  thread = threading.Thread(target=served.serve_forever, daemon=True)
  thread.start()
  served.folder = folder
  yield served
  served.shutdown()
  served.server_close()


def small_source(content=b'hello', commit='abc'):
  return sources.Source(
    path='set/file.txt',
    repository='owner/repo',
    commit=commit,
    remote_path='data/file.txt',
    sha256=hashlib.sha256(content).hexdigest(),
  )


def put(folder, path, content):
  (folder / path).parent.mkdir(parents=True, exist_ok=True)
  (folder / path).write_bytes(content)


# Fetching.


def test_fetch_prefers_the_data_folder(tmp_path, monkeypatch):
  put(tmp_path / 'data', 'set/file.txt', b'hello')
  found = sources.fetch(small_source(), data_dir=tmp_path / 'data', base_url='http://127.0.0.1:9')
  assert found == tmp_path / 'data/set/file.txt'
  monkeypatch.setenv(sources.DATA_DIR_VARIABLE, str(tmp_path / 'data'))
  assert sources.fetch(small_source(), base_url='http://127.0.0.1:9') == found


def test_fetch_downloads_once(tmp_path, server, no_data_dir):
  put(server.folder, 'owner/repo/abc/data/file.txt', b'hello')
  fetch = functools.partial(
    sources.fetch, small_source(), cache_dir=tmp_path / 'cache', base_url=server.base_url + '/'
  )
  found = fetch()
  assert found.read_bytes() == b'hello'
  assert fetch() == found
  assert server.paths == ['/owner/repo/abc/data/file.txt']
  assert [path.name for path in found.parent.iterdir()] == ['file.txt']
  # A download that was damaged on disk is fetched again.
  found.write_bytes(b'hel')
  assert fetch().read_bytes() == b'hello'
  assert len(server.paths) == 2


def test_fetch_falls_back_to_head(tmp_path, server, no_data_dir):
  put(server.folder, 'owner/repo/HEAD/data/file.txt', b'hello')
  found = sources.fetch(small_source(), cache_dir=tmp_path, base_url=server.base_url)
  assert found.read_bytes() == b'hello'


def test_fetch_uses_the_cache_variable(tmp_path, server, monkeypatch, no_data_dir):
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path / 'elsewhere'))
  put(server.folder, 'owner/repo/abc/data/file.txt', b'hello')
  found = sources.fetch(small_source(), base_url=server.base_url)
  assert found == tmp_path / 'elsewhere/downloads/set/file.txt'


def test_the_folder_of_nobody_is_named(monkeypatch, no_data_dir):
  with pytest.raises(FileNotFoundError, match="data_dir='~nosuchuser/x' is not a folder"):
    sources.data_folder('~nosuchuser/x')
  monkeypatch.setenv('AGENT_GSPO_CACHE', '~nosuchuser/x')
  with pytest.raises(ValueError, match=r'~nosuchuser/x has no home folder .* set \$AGENT_GSPO_CAC'):
    sources.fetch(small_source())


def test_file_missing_in_the_data_folder_is_downloaded(tmp_path, server):
  (tmp_path / 'data').mkdir()
  put(server.folder, 'owner/repo/abc/data/file.txt', b'hello')
  found = sources.fetch(
    small_source(),
    data_dir=tmp_path / 'data',
    cache_dir=tmp_path / 'cache',
    base_url=server.base_url,
  )
  assert found.read_bytes() == b'hello'


def test_wrong_content_is_refused(tmp_path, server, no_data_dir):
  put(tmp_path / 'data', 'set/file.txt', b'changed')
  with pytest.raises(ValueError, match=r'file .*file.txt has sha256 [0-9a-f]{64}, but the offic'):
    sources.fetch(small_source(), data_dir=tmp_path / 'data', cache_dir=tmp_path)
  put(server.folder, 'owner/repo/abc/data/file.txt', b'changed')
  with pytest.raises(ValueError, match=r'download http://127.*file.txt has sha256'):
    sources.fetch(small_source(), cache_dir=tmp_path / 'cache', base_url=server.base_url)
  assert not (tmp_path / 'cache/downloads').exists()


def test_unreachable_file_names_folder_file_and_remedy(tmp_path, server, no_data_dir):
  (tmp_path / 'data').mkdir()
  with pytest.raises(FileNotFoundError) as caught:
    sources.fetch(
      small_source(), data_dir=tmp_path / 'data', cache_dir=tmp_path, base_url=server.base_url
    )
  message = str(caught.value)
  assert f'{tmp_path / "data"} has no set/file.txt' in message
  assert '404' in message
  assert 'Remedy: put the file at <folder>/set/file.txt' in message
  with pytest.raises(FileNotFoundError, match=r'\$AGENT_GSPO_DATA_DIR is not set; download fail'):
    sources.fetch(small_source(), cache_dir=tmp_path, base_url='nonsense')


def test_misspelt_folder(tmp_path, monkeypatch):
  with pytest.raises(FileNotFoundError, match=r"data_dir='.*nope' is not a folder"):
    make_task('svamp', data_dir=tmp_path / 'nope', cache_dir=tmp_path)
  monkeypatch.setenv(sources.DATA_DIR_VARIABLE, str(tmp_path / 'nada'))
  with pytest.raises(FileNotFoundError, match=r"\$AGENT_GSPO_DATA_DIR='.*nada' is not a folder"):
    make_task('gsm8k', cache_dir=tmp_path)


@pytest.mark.parametrize('name', NAMES)
def test_a_task_without_its_files(name, tmp_path, server):
  (tmp_path / 'data').mkdir()
  with pytest.raises(FileNotFoundError, match=rf'cannot get {name}/.*Remedy'):
    make_task(
      name, data_dir=tmp_path / 'data', cache_dir=tmp_path / 'cache', base_url=server.base_url
    )
  # Nothing is left that a second try would take for finished.
  with pytest.raises(FileNotFoundError, match=rf'cannot get {name}/'):
    make_task(
      name, data_dir=tmp_path / 'data', cache_dir=tmp_path / 'cache', base_url=server.base_url
    )


def test_a_task_with_a_changed_file(tmp_path):
  put(tmp_path / 'data', MultiArith.SOURCES[0].path, b'[]')
  with pytest.raises(ValueError, match='but the official file'):
    make_task('multiarith', data_dir=tmp_path / 'data', cache_dir=tmp_path)


# Storing.


def test_prepare_stores_order_and_text(tmp_path):
  made = {
    split: [Question(id=f'{split}-{i}', text=f'é {i} ’s?', answer=f'-{i}') for i in range(size)]
    for split, size in (('train', 300), ('test', 3))
  }
  reads = []

  def read():
    reads.append(1)
    return made

  for _ in range(2):
    stored = prepare_questions('toy', read, tmp_path)
    assert {split: list(found) for split, found in stored.items()} == made
    assert stored['train'][-1] == made['train'][-1]
  assert len(reads) == 1
  other = prepare_questions('other', lambda: {'test': made['test']}, tmp_path)
  assert set(other) == {'test'}


@pytest.mark.parametrize(
  ('files', 'content'),
  [
    ('*.array_record*', b''),
    ('dataset_info.json', b'{"name": '),
    ('dataset_info.json', b'\xff'),
    ('dataset_info.json', None),
  ],
)
def test_damaged_stored_questions_name_the_folder_to_remove(tmp_path, files, content):
  made = {'test': [Question(id='a', text='b', answer='1')]}
  prepare_questions('toy', lambda: made, tmp_path)
  (file,) = tmp_path.rglob(files)
  file.write_bytes(content) if content is not None else file.unlink()
  named = rf'the questions stored in {re.escape(str(tmp_path))}/toy are damaged .* Remove that'
  with pytest.raises(ValueError, match=named):
    list(prepare_questions('toy', lambda: made, tmp_path)['test'])
  shutil.rmtree(tmp_path / 'toy')
  assert list(prepare_questions('toy', lambda: made, tmp_path)['test']) == made['test']


def test_what_reading_raises_comes_through_when_questions_are_stored(tmp_path):
  def read():
    raise KeyError('a field')

  with pytest.raises(KeyError, match='a field'):
    prepare_questions('toy', read, tmp_path)


def test_reading_stored_questions_needs_no_tensorflow(tmp_path):
  program = f"""
import sys

class WithoutTensorFlow:
  def __init__(self, finder):
    self.finder = finder

  def __getattr__(self, name):
    return getattr(self.finder, name)

  def find_spec(self, name, *rest):
    if name.partition('.')[0] != 'tensorflow':
      return self.finder.find_spec(name, *rest)

sys.meta_path[:] = [WithoutTensorFlow(finder) for finder in sys.meta_path]
from agent_gspo.tasks.data.prepared import prepare_questions
from agent_gspo.types import Question

read = lambda: {{'test': [Question(id='a', text='b', answer='1')]}}
print(prepare_questions('toy', read, {str(tmp_path)!r})['test'][0].text)
"""
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, check=False
  )
  assert done.stdout == 'b\n', done.stderr


# Reading.


def test_number_text():
  assert _number_text(39.0) == '39'
  assert _number_text('25000.0') == '25000'
  assert _number_text('2.5') == '2.5'
  assert _number_text('387.85') == '387.85'
  assert _number_text('0.8333333333333334') == '5/6'
  assert _number_text('3.33333') == '10/3'
  assert _number_text('16.153846153846153') == '210/13'
  assert _number_text('-4.0') == '-4'


def test_put_back():
  text = "Bo did n't pay $ number1 for number10 bite - size cakes , but Sue ’ s mom did ."
  numbers = ['0', '2.5', *'23456789', '11.0']
  assert _put_back(text, numbers) == (
    "Bo didn't pay $2.5 for 11 bite-size cakes, but Sue’s mom did."
  )


@needs_data
def test_counts_and_hashes_are_the_manifest_s(tasks):
  manifest = {
    entry['path']: entry for entry in json.loads((pathlib.Path(DATA) / 'MANIFEST.json').read_text())
  }
  for path, source in SOURCES.items():
    assert source.sha256 == manifest[path]['sha256']
  read = {task.name: read_official(task) for task in (GSM8K, SVAMP, MultiArith)}
  counts = {name: {split: len(found) for split, found in read[name].items()} for name in NAMES}
  root = 'gsm8k/grade_school_math/data'
  held_in = counts['gsm8k']['train'] + counts['gsm8k']['validation']
  assert held_in == manifest[f'{root}/train.jsonl']['records'] == 7473
  assert counts['gsm8k']['test'] == manifest[f'{root}/test.jsonl']['records'] == 1319
  assert counts['svamp']['test'] == manifest['svamp/SVAMP.json']['records'] == 1000
  svamp_train = manifest['svamp/data/mawps-asdiv-a_svamp/train.csv']['records']
  assert counts['svamp']['train'] + counts['svamp']['validation'] == svamp_train == 3138
  whole = sum(counts['multiarith'][split] for split in base.SPLITS)
  assert whole == manifest[MultiArith.SOURCES[0].path]['records'] == 600
  # Near-duplicates of test questions are taken out, and nothing else.
  dropped = {'gsm8k': 2, 'svamp': 13, 'multiarith': 119}
  for name in NAMES:
    held_in = [*read[name]['train'], *read[name]['validation']]
    assert len(near_duplicates(held_in, read[name]['test'])) == dropped[name]
  # The cut is part of every reported number: it must not move.
  assert {name: task.describe() for name, task in tasks.items()} == {
    'gsm8k': {'name': 'gsm8k', 'train': 6934, 'validation': 537, 'test': 1319},
    'svamp': {'name': 'svamp', 'train': 2819, 'validation': 306, 'test': 1000},
    'multiarith': {'name': 'multiarith', 'train': 280, 'validation': 26, 'test': 175},
  }


@needs_data
@pytest.mark.parametrize('name', NAMES)
def test_gold_is_right_by_its_own_grader(name, tasks):
  for split in base.SPLITS:
    for question in tasks[name].questions(split):
      assert tasks[name].score(question, question.answer) == 1
      assert tasks[name].score(question, f'The answer is {question.answer}. So 3 steps.') == 1
      assert tasks[name].score(question, str(Fraction(question.answer) + 1)) == 0
      assert ',' not in question.answer
      assert not re.search('number[0-9]', question.text)
      assert question.text


@needs_data
@pytest.mark.parametrize('name', NAMES)
def test_splits_are_disjoint(name, tasks):
  ids, texts = [], {}
  for split in base.SPLITS:
    ids += [question.id for question in tasks[name].questions(split)]
    texts[split] = {masked(question.text) for question in tasks[name].questions(split)}
  assert len(set(ids)) == len(ids)
  for one, other in itertools.combinations(base.SPLITS, 2):
    assert not texts[one] & texts[other]


@needs_data
def test_known_questions(tasks):
  gsm8k, svamp, multiarith = (tasks[name] for name in NAMES)
  first = gsm8k.questions('test')[0]
  assert first.text.startswith('Janet’s ducks lay 16 eggs per day.')
  assert (first.id, first.answer) == ('gsm8k-test-0', '18')
  golds = [q.answer for split in base.SPLITS for q in gsm8k.questions(split)]
  assert sum(gold.startswith('-') for gold in golds) == 5
  assert '109200000' in golds
  assert svamp.questions('test')[0].text == (
    'Each pack of dvds costs 76 dollars. If there is a discount of 25 dollars on each pack. '
    'How much do you have to pay to buy each pack?'
  )
  assert multiarith.questions('train')[0].text.count('  ') == 0
  assert gsm8k.constant_answer_accuracy('test') == pytest.approx(0.0303, abs=1e-4)


@needs_data
def test_svamp_training_file_holds_multiarith(tasks):
  """The warning in SVAMP's docstring, counted."""
  seen = {
    masked(q.text) for split in ('train', 'validation') for q in tasks['svamp'].questions(split)
  }
  problems = [q for found in read_official(MultiArith).values() for q in found]
  assert sum(masked(q.text) in seen for q in problems) >= 590


@needs_data
def test_download_gives_the_same_task(tasks, tmp_path, server, no_data_dir):
  for source in MultiArith.SOURCES:
    content = (pathlib.Path(DATA) / source.path).read_bytes()
    put(server.folder, source.urls('')[0].lstrip('/'), content)
  fetched = make_task('multiarith', cache_dir=tmp_path / 'cache', base_url=server.base_url)
  for split in base.SPLITS:
    assert list(fetched.questions(split)) == list(tasks['multiarith'].questions(split))
  # The second time nothing is fetched, nor are the files needed.
  make_task('multiarith', cache_dir=tmp_path / 'cache', base_url='http://127.0.0.1:9')
  assert len(server.paths) == 1
