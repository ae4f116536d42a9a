"""Checks that official files are fetched, verified, and stored once."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil

import pytest
from loopback_server import serve

from agent_gspo.tasks.data import sources
from agent_gspo.tasks.data.prepared import prepare_questions
from agent_gspo.tasks.registry import make_task
from agent_gspo.types import Question

NOWHERE = 'http://127.0.0.1:9'
SOURCE = sources.Source(
  'set/file.txt',
  'owner/repo',
  'abc',
  hashlib.sha256(b'hello').hexdigest(),
  remote_path='data/file.txt',
)


@pytest.fixture(autouse=True)
def no_data_dir(monkeypatch):
  monkeypatch.delenv(sources.DATA_DIR_VARIABLE, raising=False)


@pytest.fixture
def served(tmp_path):
  """Yields the address and the folder of a file server."""
  (tmp_path / 'www').mkdir()
  with serve(tmp_path / 'www') as address:
    yield address, tmp_path / 'www'


def put(path, content=b'hello'):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(content)
  return path


def test_fetch_prefers_the_data_folder(tmp_path, monkeypatch):
  path = put(tmp_path / 'data/set/file.txt')
  assert sources.fetch(SOURCE, data_dir=tmp_path / 'data', base_url=NOWHERE) == path
  monkeypatch.setenv(sources.DATA_DIR_VARIABLE, str(tmp_path / 'data'))
  assert sources.fetch(SOURCE, base_url=NOWHERE) == path


@pytest.mark.parametrize('ref', ['abc', 'HEAD'])
def test_fetch_downloads_once(tmp_path, served, monkeypatch, ref):
  """Downloads again only if the file on disk is damaged."""
  address, folder = served
  remote = put(folder / f'owner/repo/{ref}/data/file.txt')
  (tmp_path / 'data').mkdir()
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path / 'cache'))
  fetch = functools.partial(
    sources.fetch, SOURCE, data_dir=tmp_path / 'data', base_url=address + '/'
  )
  found = fetch()
  assert found == tmp_path / 'cache/downloads/set/file.txt'
  assert found.read_bytes() == b'hello'
  assert [path.name for path in found.parent.iterdir()] == ['file.txt']
  remote.rename(folder / 'away')
  assert fetch() == found
  (folder / 'away').rename(remote)
  found.write_bytes(b'hel')
  assert fetch().read_bytes() == b'hello'


def test_folders_of_an_unknown_user_are_errors(monkeypatch):
  with pytest.raises(FileNotFoundError, match="data_dir='~nosuchuser/x' is not a folder"):
    sources.data_folder('~nosuchuser/x')
  monkeypatch.setenv('AGENT_GSPO_CACHE', '~nosuchuser/x')
  with pytest.raises(ValueError, match=r'~nosuchuser/x has no home folder .* set \$AGENT_GSPO_CAC'):
    sources.fetch(SOURCE)


def test_wrong_content_is_refused(tmp_path, served):
  address, folder = served
  put(tmp_path / 'data/set/file.txt', b'changed')
  with pytest.raises(ValueError, match=r'file .*file.txt has sha256 [0-9a-f]{64}, but the offic'):
    sources.fetch(SOURCE, data_dir=tmp_path / 'data', cache_dir=tmp_path)
  put(folder / 'owner/repo/abc/data/file.txt', b'changed')
  with pytest.raises(ValueError, match=r'download http://127.*file.txt has sha256'):
    sources.fetch(SOURCE, cache_dir=tmp_path / 'cache', base_url=address)
  assert not (tmp_path / 'cache/downloads').exists()


def test_unreachable_file_names_folder_file_and_remedy(tmp_path, served):
  with pytest.raises(FileNotFoundError) as caught:
    sources.fetch(SOURCE, data_dir=tmp_path, cache_dir=tmp_path, base_url=served[0])
  message = str(caught.value)
  assert f'{tmp_path} has no set/file.txt' in message
  assert '404' in message
  assert 'Remedy: put the file at <folder>/set/file.txt' in message
  with pytest.raises(FileNotFoundError, match=r'\$AGENT_GSPO_DATA_DIR is not set; download fail'):
    sources.fetch(SOURCE, cache_dir=tmp_path, base_url='nonsense')


def test_misspelt_folder(tmp_path, monkeypatch):
  with pytest.raises(FileNotFoundError, match=r"data_dir='.*nope' is not a folder"):
    make_task('svamp', data_dir=tmp_path / 'nope', cache_dir=tmp_path)
  monkeypatch.setenv(sources.DATA_DIR_VARIABLE, str(tmp_path / 'nada'))
  with pytest.raises(FileNotFoundError, match=r"\$AGENT_GSPO_DATA_DIR='.*nada' is not a folder"):
    make_task('gsm8k', cache_dir=tmp_path)


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
