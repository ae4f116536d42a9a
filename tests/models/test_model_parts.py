"""Tests sharded models, incomplete models, and rope scalings in metadata."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import raw_gguf
import safetensors.numpy
from flax import traverse_util

from agent_gspo.models import load
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import gguf, hf

_INDEX = 'model.safetensors.index.json'


def _flat(source) -> dict[str, np.ndarray]:
  """Returns all weights of a model by path."""
  return traverse_util.flatten_dict(load.load_model(source).params, sep='/')


def _assert_same(found, expected) -> None:
  assert found.keys() == expected.keys()
  for path in expected:
    np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


def test_a_missing_part_of_a_split_gguf_file_is_named(tmp_path):
  part = raw_gguf.valid()
  part.metadata['split.count'] = raw_gguf.UINT16, 3
  (tmp_path / 'm-00001-of-00003.gguf').write_bytes(part.data())
  with pytest.raises(FileNotFoundError, match=r'm-00002-of-00003\.gguf: no such GGUF file'):
    load.load_model(f'gguf:{tmp_path}/m-00001-of-00003.gguf')


# Metadata of GGUF files on rotary embeddings.


def _with_rope(**fields) -> ModelConfig:
  metadata = {key: value for key, (_, value) in raw_gguf.valid().metadata.items()}
  metadata['tokenizer.ggml.tokens'] = ['t'] * 260
  metadata |= {f'llama.{key.replace("__", ".")}': value for key, value in fields.items()}
  return gguf.config_from_gguf(metadata, tied=True, where='x.gguf')


@pytest.mark.parametrize(
  'fields',
  [
    {'rope__scaling__type': 'none'},
    {'rope__scaling__type': 'linear'},
    {'rope__scaling__type': 'linear', 'rope__scaling__factor': 1.0},
    {'rope__scale_linear': 1.0},
    {'rope__scaling__factor': 0.0, 'rope__scaling__attn_factor': 1.0},
  ],
)
def test_rope_metadata_without_effect_are_read(fields):
  assert _with_rope(**fields) == _with_rope()


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'rope__scaling__type': 'yarn'}, r"llama\.rope\.scaling\.type='yarn' must be absent"),
    ({'rope__scaling__type': 3}, r'rope\.scaling\.type=3 must be absent'),
    ({'rope__scaling__factor': 4.0}, r'rope\.scaling\.factor=4\.0 must be absent or without'),
    ({'rope__scale_linear': 2.0}, r'rope\.scale_linear=2\.0 must be absent'),
    ({'rope__scaling__factor': float('nan')}, r'factor=nan must be absent'),
    ({'rope__scaling__attn_factor': 0.5}, r'attn_factor=0\.5 must be absent'),
    ({'rope__scaling__yarn_beta_fast': 32.0}, r'yarn_beta_fast=32\.0 must be absent'),
    ({'rope__dimension_sections': [2, 2, 4, 0]}, r'dimension_sections=.* must be absent'),
    ({'rope__freq_base_swa': 1e4}, r'freq_base_swa=10000\.0 must be absent'),
  ],
)
def test_rope_metadata_that_are_not_understood_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    _with_rope(**fields)


# Hugging Face folders.


@pytest.fixture
def folder(tmp_path):
  """Writes a model in two shards with an index."""
  (tmp_path / 'm.gguf').write_bytes(raw_gguf.valid().data())
  model = load.load_model(f'gguf:{tmp_path / "m.gguf"}')
  path = tmp_path / 'model'
  hf.export_hf(model.config, model.params, path, model.tokenizer)
  second = safetensors.numpy.load_file(path / 'model.safetensors')
  (path / 'model.safetensors').unlink()
  embedding = 'model.embed_tokens.weight'
  first = {embedding: second.pop(embedding)}
  weight_map = {}
  for i, tensors in enumerate((first, second)):
    file = f'model-{i + 1:05}-of-00002.safetensors'
    safetensors.numpy.save_file(tensors, path / file, metadata={'format': 'pt'})
    weight_map |= dict.fromkeys(tensors, file)
  (path / _INDEX).write_text(json.dumps({'metadata': {}, 'weight_map': weight_map}))
  return path


def _change_shard(folder, number, change):
  file = sorted(folder.glob('*.safetensors'))[number]
  tensors = safetensors.numpy.load_file(file)
  change(tensors)
  safetensors.numpy.save_file(tensors, file, metadata={'format': 'pt'})


def test_the_index_decides_which_copy_is_read(folder):
  before = _flat(f'hf:{folder}')
  stale = {'model.embed_tokens.weight': np.full((260, 16), 7.0, np.float32)}
  _change_shard(folder, 1, lambda tensors: tensors.update(stale))
  _assert_same(_flat(f'hf:{folder}'), before)
  # Other tensors are ignored: another shape or type, an unknown name.
  stale = {'model.embed_tokens.weight': np.zeros(3, np.int8), 'old.weight': np.ones(2, np.int32)}
  _change_shard(folder, 1, lambda tensors: tensors.update(stale))
  (folder / 'model-00003-of-00003.safetensors').write_bytes(b'not even one')
  _assert_same(_flat(f'hf:{folder}'), before)


def test_an_index_that_names_what_is_not_there_is_refused(folder):
  index = json.loads((folder / _INDEX).read_text())

  def refused(error, message, **changes):
    changed = copy.deepcopy(index)
    changed['weight_map'] |= changes
    (folder / _INDEX).write_text(json.dumps(changed))
    with pytest.raises(error, match=message):
      load.load_model(f'hf:{folder}')

  name = 'model.norm.weight'
  first, second = sorted(set(index['weight_map'].values()))
  assert index['weight_map'][name] == second
  lacks = f'{first}: lacks the tensor {name!r}, which must be in this file by .*index'
  refused(ValueError, lacks, **{name: first})
  refused(FileNotFoundError, r'x\.safetensors: no such file', **{name: 'x.safetensors'})
  for outside in ('../x.safetensors', '/etc/passwd', 'sub/x.safetensors'):
    refused(ValueError, f'weight_map names {outside!r}, which is no name', **{name: outside})
  missing = copy.deepcopy(index)
  del missing['weight_map'][name]
  (folder / _INDEX).write_text(json.dumps(missing))
  with pytest.raises(ValueError, match=rf'missing \(1\): {name}'):
    load.load_model(f'hf:{folder}')


def test_tensors_that_follow_from_the_config_are_not_missed(folder):
  index = json.loads((folder / _INDEX).read_text())
  first = min(index['weight_map'].values())
  index['weight_map']['model.layers.0.self_attn.rotary_emb.inv_freq'] = first
  buffer = {'model.layers.0.self_attn.rotary_emb.inv_freq': np.ones(4, np.float32)}
  before = _flat(f'hf:{folder}')
  _change_shard(folder, 0, lambda tensors: tensors.update(buffer))
  (folder / _INDEX).write_text(json.dumps(index))
  _assert_same(_flat(f'hf:{folder}'), before)


@pytest.mark.parametrize('beside_a_model', [False, True])
def test_an_adapter_is_called_one(beside_a_model, folder):
  if not beside_a_model:
    for file in folder.iterdir():
      file.unlink()
  (folder / 'adapter_model.safetensors').write_bytes(b'')
  message = r"adapter_config\.json: .* an adapter of the model 'owner/base'; .*merge_and_unload"
  config = {'peft_type': 'LORA', 'base_model_name_or_path': 'owner/base'}
  (folder / 'adapter_config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError, match=message):
    load.load_model(f'hf:{folder}')
  (folder / 'adapter_config.json').write_text('[]')
  with pytest.raises(ValueError, match=r'adapter_config\.json: must hold a JSON object'):
    load.load_model(f'hf:{folder}')
  (folder / 'adapter_config.json').unlink()
  with pytest.raises(ValueError, match=r'adapter_model\.safetensors: the folder holds an adapter'):
    load.load_model(f'hf:{folder}')
