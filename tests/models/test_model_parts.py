"""Models in several files, files that are a part of a model, and scalings in metadata."""

from __future__ import annotations

import copy
import json
import re

import numpy as np
import pytest
import raw_gguf
import safetensors.numpy

from agent_gspo.models import load
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.io import gguf, hf, tensor_names

_INDEX = 'model.safetensors.index.json'


def _flat(source) -> dict[str, np.ndarray]:
  """All weights of a model, by their path."""
  return tensor_names.flatten(load.load_model(source).params)


def _assert_same(found, expected) -> None:
  assert found.keys() == expected.keys()
  for path in expected:
    np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


# Split GGUF files.


def _split(folder, count=3, empty_first=False):
  """Writes a GGUF file and its parts; returns the file and the names of the parts."""
  whole = raw_gguf.valid()
  (folder / 'whole.gguf').write_bytes(whole.data())
  for i, part in enumerate(raw_gguf.split(whole, count, empty_first)):
    (folder / f'm-{i + 1:05}-of-{count:05}.gguf').write_bytes(part.data())
  return folder / 'whole.gguf', [f'm-{i + 1:05}-of-{count:05}.gguf' for i in range(count)]


@pytest.mark.parametrize(('count', 'empty_first'), [(2, False), (3, False), (5, True)])
def test_parts_are_read_as_one_whichever_is_given(count, empty_first, tmp_path):
  whole, parts = _split(tmp_path, count, empty_first)
  expected = load.load_model(f'gguf:{whole}')
  for part in parts:
    found = load.load_model(f'gguf:{tmp_path / part}')
    assert found.config == expected.config
    assert found.tokenizer.fingerprint == expected.tokenizer.fingerprint
    _assert_same(tensor_names.flatten(found.params), tensor_names.flatten(expected.params))
  files = load.local_files(f'gguf:{tmp_path / parts[-1]}')
  assert [file.name for file in files] == parts


def test_parts_of_the_gguf_package_are_read(tmp_path):
  package = pytest.importorskip('gguf')
  whole, _ = _split(tmp_path)
  writer = package.GGUFWriter(tmp_path / 'p.gguf', 'llama', split_max_tensors=4)
  reader = package.GGUFReader(whole)
  for key, field in reader.fields.items():
    if not key.startswith('GGUF.') and key != 'general.architecture':
      kind, *inner = field.types
      writer.add_key_value(key, field.contents(), kind, inner[0] if inner else None)
  for tensor in reader.tensors:
    writer.add_tensor(tensor.name, np.asarray(tensor.data))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  parts = sorted(tmp_path.glob('p-*.gguf'))
  assert len(parts) > 1
  _assert_same(_flat(f'gguf:{parts[0]}'), _flat(f'gguf:{whole}'))


def test_a_part_alone_names_the_others(tmp_path):
  _, (first, second, third) = _split(tmp_path)
  (tmp_path / second).unlink()
  for given in (first, third):
    with pytest.raises(FileNotFoundError, match=rf'is part \d of 3 .*{re.escape(second)} must be'):
      load.load_model(f'gguf:{tmp_path / given}')
  (tmp_path / third).rename(tmp_path / 'other.gguf')
  with pytest.raises(ValueError, match=r'is part 3 of 3 .*; must be named <name>-00003-of-00003'):
    load.load_model(f'gguf:{tmp_path / "other.gguf"}')
  (tmp_path / 'other.gguf').unlink()
  with pytest.raises(FileNotFoundError, match=f'{second}, {third} must be beside it'):
    load.load_model(f'gguf:{tmp_path / first}')


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
  _, (first, second, third) = _split(tmp_path)
  bytes_of = {name: (tmp_path / name).read_bytes() for name in (first, second, third)}

  def refused(message, **files):
    for name, content in {**bytes_of, **files}.items():
      (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
      load.load_model(f'gguf:{tmp_path / first}')

  refused('must be part 2 of 3 by its name, yet .*split.no=2', **{second: bytes_of[third]})
  other = raw_gguf.valid()
  del other.tensors['output_norm.weight']
  parts = [part.data() for part in raw_gguf.split(other, 3)]
  refused('is part of another GGUF file', **{third: parts[2]})
  parts = raw_gguf.split(raw_gguf.valid(), 3)
  parts[1].tensors |= dict([next(iter(parts[0].tensors.items()))])
  refused("tensor 'token_embd.weight' is in another part, too", **{second: parts[1].data()})
  parts = raw_gguf.split(raw_gguf.valid(), 3)
  parts[1].tensors.popitem()
  refused(r'hold \d+ tensors; must be split\.tensors\.count=11', **{second: parts[1].data()})
  refused(f'{second}: not a GGUF file', **{second: b'?'})
  refused(f'{third}: .*cut off', **{third: bytes_of[third][:40]})


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
  """A model in two shards with an index."""
  (tmp_path / 'm.gguf').write_bytes(raw_gguf.valid().data())
  model = load.load_model(f'gguf:{tmp_path / "m.gguf"}')
  path = tmp_path / 'model'
  hf.export_hf(model.config, model.params, path, model.tokenizer, max_shard_bytes=20_000)
  assert len(list(path.glob('*.safetensors'))) == 2
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
  # Others are no part of the model: another shape, another type, a name that nobody knows.
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
