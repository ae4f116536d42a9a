"""Reads GGUF files written by the gguf package."""

from __future__ import annotations

import re
import struct
import subprocess
import sys

import chex
import gguf
import numpy as np
import pretrained
import pytest
import raw_gguf
from flax import traverse_util

from agent_gspo.models import load, rope
from agent_gspo.models.config import ModelConfig, RopeScaling, SlidingWindow
from agent_gspo.models.io import gguf as ours
from agent_gspo.models.io import hf, stored, tensor_names
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler

_CONFIGS = {
  'llama': ModelConfig(
    family='llama',
    vocab_size=260,
    num_layers=2,
    embed_dim=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    mlp_dim=96,
    rope_theta=50_000.0,
    norm_eps=1e-5,
    tie_embeddings=False,
    max_positions=512,
  ),
}
_CONFIGS['qwen2'] = _CONFIGS['llama'].replace(family='qwen2', norm_eps=1e-6)
_CONFIGS['gemma3_text'] = _CONFIGS['llama'].replace(
  family='gemma3_text',
  num_layers=7,
  tie_embeddings=True,
  query_scalar=16,
  rope_scaling=RopeScaling(8.0),
  sliding=SlidingWindow(24, (True,) * 5 + (False, True), 10_000.0),
)
_CONFIGS['qwen3'] = _CONFIGS['llama'].replace(family='qwen3', head_dim=32, tie_embeddings=True)


def _random(config: ModelConfig) -> dict:
  rng = np.random.default_rng(0)
  return {
    row.ours: rng.normal(size=row.shape).astype(np.float32) for row in tensor_names.table(config)
  }


def _permute(weight: np.ndarray, heads: int) -> np.ndarray:
  """Permutes q and k as llama.cpp's converter does for the llama architecture."""
  return (
    weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    .swapaxes(1, 2)
    .reshape(weight.shape)
  )


def _blocks(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> np.ndarray:
  """Returns random bytes of quantized blocks, small enough for finite float16."""
  shape = gguf.quants.quant_shape_to_byte_shape(shape, kind)
  return np.random.default_rng(0).integers(0, 60, shape).astype(np.uint8)


def _write(file, config: ModelConfig, flat: dict, kind=None, extra=(), splits=None, **fields):
  """Writes a model, its matrices as random blocks of a quantized `kind`, if one is given.

  Names come from the gguf package's own table, not from ours.
  """
  arch = {
    'llama': gguf.MODEL_ARCH.LLAMA,
    'qwen2': gguf.MODEL_ARCH.QWEN2,
    'qwen3': gguf.MODEL_ARCH.QWEN3,
    'gemma3_text': gguf.MODEL_ARCH.GEMMA3,
  }[config.family]
  name_map = gguf.get_tensor_name_map(arch, config.num_layers)
  writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch], **(splits or {}))
  if config.sliding is not None:
    writer.add_sliding_window(config.sliding.width)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config.rope_scaling.factor)
  writer.add_block_count(config.num_layers)
  writer.add_context_length(config.max_positions)
  writer.add_embedding_length(config.embed_dim)
  writer.add_feed_forward_length(config.mlp_dim)
  writer.add_head_count(config.num_heads)
  writer.add_head_count_kv(config.num_kv_heads)
  writer.add_key_length(config.head_dim)
  writer.add_rope_freq_base(config.rope_theta)
  writer.add_layer_norm_rms_eps(config.norm_eps)
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre('qwen2')
  tokens = [f't{i}' for i in range(config.vocab_size)]
  writer.add_token_list(tokens)
  writer.add_token_types([3, *[1] * (config.vocab_size - 1)])
  writer.add_token_merges(['t 1', 't 2'])
  writer.add_eos_token_id(0)
  writer.add_bool('test.flag', True)
  writer.add_array('test.floats', [0.5, -1.5])
  writer.add_float64('test.double', 1 / 3)
  writer.add_int64('test.negative', -(1 << 40))
  for key, value in fields.items():
    writer.add_string(key.replace('__', '.'), value)
  for row in tensor_names.table(config):
    weight = flat[row.ours].T if row.transposed else flat[row.ours]
    if config.family == 'llama' and row.hf.endswith(('q_proj.weight', 'k_proj.weight')):
      heads = config.num_heads if 'q_proj' in row.hf else config.num_kv_heads
      weight = _permute(weight, heads)
    if config.family == 'gemma3_text' and weight.ndim == 1:
      weight = weight + 1  # llama.cpp's converter does so
    name = name_map.get_name(row.hf, try_suffixes=('.weight', '.bias'))
    weight = np.ascontiguousarray(weight)
    if kind is not None and weight.ndim == 2:
      writer.add_tensor(name, _blocks(weight.shape, kind), raw_dtype=kind)
    else:
      writer.add_tensor(name, weight)
  for name, tensor in extra:
    writer.add_tensor(name, tensor)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


@pytest.mark.parametrize('family', _CONFIGS)
def test_parameters_come_back_exactly(family, tmp_path):
  config = _CONFIGS[family]
  flat = _random(config)
  _write(tmp_path / 'm.gguf', config, flat)
  model = ours.open_gguf(tmp_path / 'm.gguf')
  assert model.config == config
  found = traverse_util.flatten_dict(stored.read(model.params), sep='/')
  assert found.keys() == flat.keys()
  for path in flat:
    close = 3e-7 if family == 'gemma3_text' and path.endswith('scale') else 0
    np.testing.assert_allclose(found[path], flat[path], rtol=0, atol=close, err_msg=path)
    assert found[path].flags.c_contiguous
    assert found[path].flags.writeable


def test_split_files_are_read_from_any_part(tmp_path):
  config = _CONFIGS['qwen3']
  flat = _random(config)
  _write(tmp_path / 'm.gguf', config, flat, splits={'split_max_tensors': 9})
  parts = sorted(tmp_path.iterdir())
  assert parts[0].name == 'm-00001-of-00003.gguf'
  assert load.local_files(f'gguf:{parts[1]}') == parts
  found = traverse_util.flatten_dict(stored.read(ours.open_gguf(parts[2]).params), sep='/')
  chex.assert_trees_all_equal(found, flat)
  alone = tmp_path / 'alone.gguf'
  alone.write_bytes(parts[0].read_bytes())
  with pytest.raises(ValueError, match=r'is one of 3 parts, .* tells of 1\. '):
    ours.open_gguf(alone)
  parts[2].write_bytes(parts[1].read_bytes())
  with pytest.raises(ValueError, match=r'00003-of-00003\.gguf: is not part 3'):
    ours.open_gguf(parts[0])
  parts[2].unlink()
  with pytest.raises(FileNotFoundError, match='m-00003'):
    ours.open_gguf(parts[0])


@pytest.mark.parametrize('name', ['Q4_K', 'Q5_0', 'Q6_K', 'Q8_0'])
def test_quantized_parameters_are_those_of_gguf(name, tmp_path):
  config = _CONFIGS['qwen2'].replace(embed_dim=256, mlp_dim=512, head_dim=64)
  kind = gguf.GGMLQuantizationType[name]
  _write(tmp_path / 'm.gguf', config, _random(config), kind)
  found = traverse_util.flatten_dict(
    stored.read(ours.open_gguf(tmp_path / 'm.gguf').params), sep='/'
  )
  for row in tensor_names.table(config):
    if len(row.shape) == 2:
      expected = gguf.dequantize(_blocks(row.stored_shape, kind), kind)
      expected = expected.T if row.transposed else expected
      np.testing.assert_array_equal(found[row.ours], expected, err_msg=row.ours)


def test_metadata_equals_that_of_gguf(tmp_path):
  _write(tmp_path / 'm.gguf', _CONFIGS['qwen2'], _random(_CONFIGS['qwen2']))
  fields = gguf.GGUFReader(tmp_path / 'm.gguf').fields
  expected = {key: field.contents() for key, field in fields.items()}
  assert expected['test.floats'] == [0.5, -1.5]
  assert ours.open_gguf(tmp_path / 'm.gguf').metadata == expected


def test_runs_without_gguf_files_do_not_import_it():
  script = "import sys, agent_gspo.models.load; assert 'gguf' not in sys.modules"
  subprocess.run([sys.executable, '-c', script], check=True)


def test_llama3_frequency_factors_become_a_rope_scaling(tmp_path):
  config = _CONFIGS['llama'].replace(rope_theta=500_000.0)
  scaled = config.replace(rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192))
  factors = (rope.frequencies(config) / rope.frequencies(scaled)).astype(np.float32)
  flat = _random(config)
  _write(tmp_path / 'm.gguf', config, flat, extra=[('rope_freqs.weight', factors)])
  assert ours.open_gguf(tmp_path / 'm.gguf').config == scaled
  other = [('rope_freqs.weight', factors[::-1].copy())]
  _write(tmp_path / 'n.gguf', config, flat, extra=other)
  with pytest.raises(ValueError, match=r'rope_freqs\.weight is not a Llama 3 scaling'):
    ours.open_gguf(tmp_path / 'n.gguf')


def test_what_cannot_be_read_is_refused_by_name(tmp_path):
  config = _CONFIGS['llama']
  flat = _random(config)
  file = tmp_path / 'm.gguf'
  _write(file, config, flat, extra=[('blk.0.oops.weight', np.ones(3, np.float32))])
  with pytest.raises(ValueError, match=r'not expected.*blk\.0\.oops'):
    stored.read(ours.open_gguf(file).params)
  _write(file, config, flat, llama__rope__scaling__type='yarn')
  with pytest.raises(ValueError, match=r"rope\.scaling\.type='yarn'"):
    stored.read(ours.open_gguf(file).params)
  _write(file, config, flat)
  metadata = ours.open_gguf(file).metadata
  for key, value, message in (
    ('general.architecture', 'mamba', "architecture='mamba'"),
    ('llama.block_count', None, r'lacks llama\.block_count'),
    ('llama.expert_count', 8, 'mixtures'),
    ('llama.rope.dimension_count', 8, 'partial'),
    ('llama.attention.causal', False, r'attention\.causal=False must be absent or true'),
  ):
    with pytest.raises(ValueError, match=message):
      ours.config_from_gguf({**metadata, key: value}, tied=True, where='x.gguf')
  causal = {**metadata, 'llama.attention.causal': True}
  assert ours.config_from_gguf(causal, tied=False, where='x.gguf') == config


def test_damaged_files_are_refused(tmp_path):
  file = tmp_path / 'm.gguf'
  _write(file, _CONFIGS['llama'], _random(_CONFIGS['llama']))
  raw = file.read_bytes()
  big_endian = raw[:4] + b'\x00\x00\x00\x03' + raw[8:]
  for data in (raw[:-5000], raw[:300], raw[:20], b'', b'PK\x03\x04' + raw[4:], big_endian):
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r'm\.gguf: not a GGUF file, or damaged .* fetch the file'):
      ours.open_gguf(file)
  with pytest.raises(FileNotFoundError, match=r'none\.gguf'):
    load.load_model(f'gguf:{tmp_path / "none.gguf"}')


def _header(key=None, value=None, drop=(), **fields):
  """Returns a damage that sets a key to (type, value), drops keys and sets header fields."""

  def damage(file):
    for name in drop:
      del file.metadata[name]
    if key is not None:
      file.metadata[key] = value
    for field, number in fields.items():
      setattr(file, field, number)

  return damage


def _tensor(name, **fields):
  def damage(file):
    for field, value in fields.items():
      setattr(file.tensors[name], field, value)

  return damage


def _weights(number: float):
  def damage(file):
    data = np.zeros(16, np.float32)
    data[3] = number
    file.tensors['output_norm.weight'].data = data.tobytes()

  return damage


_COUNT, _FLOAT = raw_gguf.UINT32, raw_gguf.FLOAT32
_DAMAGED = 'not a GGUF file, or damaged'
_DAMAGES = {
  'keys': (_header(num_keys=2**60), _DAMAGED),
  'tensors': (_header(num_tensors=2**60), _DAMAGED),
  'one key too many': (_header(num_keys=22), _DAMAGED),
  'string': (_header('a', (raw_gguf.STRING, b'\xff' * 8)), _DAMAGED),
  'array': (_header('a', (raw_gguf.ARRAY, struct.pack('<IQ', 6, 2**61))), _DAMAGED),
  'array of texts': (_header('a', (raw_gguf.ARRAY, struct.pack('<IQ', 8, 2**40))), _DAMAGED),
  'array of arrays': (_header('a', (raw_gguf.ARRAY, struct.pack('<IQ', 9, 1) * 5000)), _DAMAGED),
  'value type': (_header('a', (13, b'')), _DAMAGED),
  'not UTF-8': (_header('a', (raw_gguf.STRING, struct.pack('<Q', 2) + b'\xff\xfe')), _DAMAGED),
  'alignment': (_header('general.alignment', (_COUNT, 0)), _DAMAGED),
  'empty': (_tensor('output_norm.weight', dims=[0]), _DAMAGED),
  'huge': (_tensor('output_norm.weight', dims=[2**60]), _DAMAGED),
  'type': (_tensor('output_norm.weight', kind=99), _DAMAGED),
  'blocks': (_tensor('output_norm.weight', kind=raw_gguf.Q8_0), _DAMAGED),
  'offset': (_tensor('output_norm.weight', offset=1 << 40), _DAMAGED),
  'overlap': (_tensor('output_norm.weight', offset=0), 'does not begin where the one before'),
  'half as many bytes': (
    _tensor('output_norm.weight', kind=raw_gguf.F16),
    '32 bytes follow the last tensor',
  ),
  'integers': (
    _tensor('output_norm.weight', kind=raw_gguf.I32),
    'tensors of type I32 are not supported',
  ),
  'shape': (
    _tensor('output_norm.weight', dims=[4, 4]),
    r"'output_norm.weight' \(final_norm/scale\) has shape \(4, 4\), .* implies \(16,\)",
  ),
  'shape of q': (
    _tensor('blk.0.attn_q.weight', dims=[256]),
    r"'blk.0.attn_q.weight' .* has shape \(256,\)",
  ),
  'nan': (_weights(np.nan), r"'output_norm.weight' .* holds NaN or infinite weights"),
  'inf': (_weights(np.inf), r"'output_norm.weight' .* holds NaN or infinite weights"),
  'layers': (
    _header('llama.block_count', (_COUNT, 10**9)),
    'llama.block_count=1000000000 must be a whole number from 1 to 1000',
  ),
  'no layers': (_header('llama.block_count', (_COUNT, 0)), 'llama.block_count=0 must be'),
  'text': (_header('llama.embedding_length', (raw_gguf.STRING, 'x')), "embedding_length='x' must"),
  'heads': (_header('llama.attention.head_count', (_COUNT, 0)), 'head_count=0 must be a whole'),
  'truth': (_header('llama.attention.head_count', (raw_gguf.BOOL, True)), 'head_count=True must'),
  'key heads': (_header('llama.attention.head_count_kv', (_COUNT, 3)), 'num_kv_heads=3'),
  'theta': (_header('llama.rope.freq_base', (_FLOAT, 0.0)), 'freq_base=0.0 must be a finite'),
  'theta nan': (_header('llama.rope.freq_base', (_FLOAT, np.nan)), 'freq_base=nan must be a'),
  'epsilon': (
    _header('llama.attention.layer_norm_rms_epsilon', (_FLOAT, -1e-5)),
    'rms_epsilon=.* must be a finite number above 0',
  ),
  'epsilon nan': (
    _header('llama.attention.layer_norm_rms_epsilon', (_FLOAT, np.nan)),
    'rms_epsilon=nan must be a finite number above 0',
  ),
  'vocabulary': (
    _header('tokenizer.ggml.tokens', (raw_gguf.STRING, 'a b')),
    'tokenizer.ggml.tokens',
  ),
}


def test_raw_file_is_valid(tmp_path):
  file = tmp_path / 'm.gguf'
  file.write_bytes(raw_gguf.valid().data())
  model = load.load_model(f'gguf:{file}')
  assert model.config == raw_gguf.CONFIG.replace(unsaid=((259, 260),))  # an unused token
  assert model.tokenizer.decode(model.tokenizer.encode('abc<|end|>')) == 'abc<|end|>'


@pytest.mark.parametrize('name', _DAMAGES)
def test_damage_is_named(name, tmp_path):
  damage, message = _DAMAGES[name]
  file = _damaged(damage, tmp_path)
  with pytest.raises(ValueError, match=rf'^{re.escape(str(file))}: .*{message}'):
    stored.read(ours.open_gguf(file).params)


def _damaged(damage, folder):
  content = raw_gguf.valid()
  damage(content)
  file = folder / 'm.gguf'
  file.write_bytes(content.data())
  return file


def _list(kind: int, values: list):
  return (raw_gguf.ARRAY, (kind, values))


def _tokens(index: int, token: str):
  def damage(file):
    file.metadata['tokenizer.ggml.tokens'][1][1][index] = token

  return damage


_GGML = 'tokenizer.ggml'
_TOKENIZER_DAMAGES = {
  'types': (
    _header(f'{_GGML}.token_type', _list(raw_gguf.INT32, [1] * 259)),
    r'token_type=\[1, 1, .* must be a list of 260 types',
  ),
  'types of text': (
    _header(f'{_GGML}.token_type', _list(raw_gguf.STRING, ['1'] * 260)),
    'token_type=.* must be a list of 260 types',
  ),
  'no such type': (
    _header(f'{_GGML}.token_type', _list(raw_gguf.INT32, [1] * 259 + [7])),
    r'token_type=.* must be a list of 260 types \(0 to 6\), one for each token',
  ),
  'no types': (_header(drop=[f'{_GGML}.token_type']), r'lacks tokenizer\.ggml\.token_type'),
  'tokens': (
    _header(f'{_GGML}.tokens', _list(raw_gguf.INT32, [1] * 260)),
    r'tokenizer\.ggml\.tokens=.* must be a list of texts',
  ),
  'token twice': (_tokens(256, 'a'), r"tokenizer\.ggml\.tokens holds 'a' twice"),
  'merge of one': (
    _header(f'{_GGML}.merges', _list(raw_gguf.STRING, ['ab'])),
    r"tokenizer\.ggml\.merges holds 'ab', which does not join two tokens",
  ),
  'merge of three': (
    _header(f'{_GGML}.merges', _list(raw_gguf.STRING, ['a b c'])),
    "merges holds 'a b c', which does not join",
  ),
  'merge to nothing': (
    _header(f'{_GGML}.merges', _list(raw_gguf.STRING, ['a b', 'b c'])),
    "merges holds 'b c', which does not join",
  ),
  'merges of numbers': (
    _header(f'{_GGML}.merges', _list(raw_gguf.INT32, [1])),
    r'merges=\[1\] must be a list of texts',
  ),
  'no merges': (_header(drop=[f'{_GGML}.merges']), r'lacks tokenizer\.ggml\.merges'),
  'end': (
    _header(f'{_GGML}.eos_token_id', (_COUNT, 260)),
    'eos_token_id=260 must be a whole number from 0 to 259',
  ),
  'negative end': (
    _header(f'{_GGML}.eos_token_id', (raw_gguf.INT32, -1)),
    'eos_token_id=-1 must be a whole number from 0 to 259',
  ),
  'unused end': (
    _header(f'{_GGML}.eos_token_id', (_COUNT, 259)),
    "eos_token='<unused>' is not in the vocabulary",
  ),
  'no end': (_header(drop=[f'{_GGML}.eos_token_id']), r'lacks tokenizer\.ggml\.eos_token_id'),
  'beginning': (
    _header(f'{_GGML}.bos_token_id', (raw_gguf.STRING, 'a')),
    "bos_token_id='a' must be a whole number",
  ),
  'model': (_header(f'{_GGML}.model', _list(raw_gguf.INT32, [1])), r'model=\[1\]: only byte-level'),
  'splitting': (_header(f'{_GGML}.pre', (_COUNT, 1)), 'pre=1 is not supported, only smollm'),
  'template': (
    _header('tokenizer.chat_template', (_COUNT, 1)),
    r'tokenizer\.chat_template=1 must be a text',
  ),
}


@pytest.mark.parametrize('name', _TOKENIZER_DAMAGES)
def test_damage_of_the_tokenizer_is_named(name, tmp_path):
  damage, message = _TOKENIZER_DAMAGES[name]
  file = _damaged(damage, tmp_path)
  with pytest.raises(ValueError, match=rf'^{re.escape(str(file))}.*{message}'):
    load.load_model(f'gguf:{file}')


@pytest.mark.parametrize('what', ['key', 'tensor'])
def test_names_that_are_there_twice(what, tmp_path):
  content = raw_gguf.valid()
  if what == 'key':
    content.metadata['llama.block_coumt'] = content.metadata['llama.block_count']
  else:
    content.tensors['output_morm.weight'] = content.tensors['output_norm.weight']
  file = tmp_path / 'm.gguf'
  data = content.data()
  file.write_bytes(data.replace(b'block_coumt', b'block_count').replace(b'morm', b'norm'))
  with pytest.raises(ValueError, match=_DAMAGED):
    ours.open_gguf(file)


def test_factors_that_are_no_scaling(tmp_path):
  file = tmp_path / 'm.gguf'
  for factors in ([np.nan] * 4, [0.0] * 4, [np.inf] * 4, [1.0] * 3):
    content = raw_gguf.valid()
    data = np.asarray(factors, np.float32).tobytes()
    content.tensors['rope_freqs.weight'] = raw_gguf.Tensor([len(factors)], raw_gguf.F32, data)
    file.write_bytes(content.data())
    with pytest.raises(ValueError, match=r'm\.gguf: .*rope_freqs\.weight is not a Llama 3'):
      stored.read(ours.open_gguf(file).params)


@pytest.mark.slow
def test_smollm2_has_the_weights_that_transformers_reads():
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  reader = pytest.importorskip('transformers.modeling_gguf_pytorch_utils')
  model = pretrained.smollm()
  file = pretrained.smollm_file()
  reference_config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
  with torch.device('meta'):
    skeleton = transformers.AutoModelForCausalLM.from_config(reference_config)
  found = reader.load_gguf_checkpoint(file, return_tensors=True, model_to_load=skeleton)
  reference = found['tensors']
  flat = traverse_util.flatten_dict(model.params, sep='/')
  assert sum(array.size for array in flat.values()) == 134_515_008
  for row in tensor_names.table(model.config):
    array = flat[row.ours].T if row.transposed else flat[row.ours]
    np.testing.assert_array_equal(array, reference[row.hf].numpy(), err_msg=row.ours)
  config = hf.config_from_hf(reference_config.to_dict())
  assert config.replace(norm_eps=model.config.norm_eps) == model.config
  assert config.norm_eps == pytest.approx(model.config.norm_eps)


@pytest.mark.slow
def test_gemma_writes_what_transformers_writes():
  """Greedy text of Gemma 3 270M (Q4_K_M), one prompt longer than a window; see `pretrained`."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  file = pretrained.gemma_file()
  days = ' '.join(f'On day {i} he sold {i * 7 % 23} loaves and {i % 9} cakes.' for i in range(46))
  prompts = ['The capital of France is', '2 + 2 =', 'def fibonacci(n):\n    ', f'{days} On day 46']
  model = load.load_model(f'gguf:{file}')
  ids = [[*model.tokenizer.begins_with, *model.tokenizer.encode(text)] for text in prompts]
  assert len(ids[-1]) > model.config.sliding.width
  sampler = Sampler(model.config, max_new_tokens=16, decode_rows=4)
  rows = keys.row_keys(keys.stream(0, 'train'), np.arange(4)[:, None])
  arrays = [np.asarray(x, np.int32) for x in ids]
  samples = sampler(model.params, arrays, rows, temperature=0.0, stop_ids=[model.tokenizer.eos_id])
  del model
  reference = transformers.AutoModelForCausalLM.from_pretrained(
    file.parent, gguf_file=file.name, dtype=torch.float32
  )
  for prompt, found in zip(ids, samples.token_ids, strict=True):
    text = reference.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
    assert text[0, len(prompt) :].tolist() == found.tolist()
