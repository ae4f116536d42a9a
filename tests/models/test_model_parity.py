"""Compares import, export and the forward pass with transformers on torch."""

from __future__ import annotations

import copy
import json

import hf_shapes
import jax
import jax.numpy as jnp
import numpy as np
import pretrained
import pytest
from flax import traverse_util

from agent_gspo.models import transformer
from agent_gspo.models.io import hf, stored, tensor_names
from agent_gspo.models.io.hf_config import config_from_hf, config_to_hf
from agent_gspo.ops.attention import masks

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

_EXPERTS = {'num_experts': 6, 'num_experts_per_tok': 2, 'norm_topk_prob': True}
_CASES = {
  'llama': ('LlamaConfig', {'tie_word_embeddings': False}),
  'llama-tied': ('LlamaConfig', {'tie_word_embeddings': True, 'rms_norm_eps': 1e-3}),
  'llama3': ('LlamaConfig', {'tie_word_embeddings': False, 'rope_parameters': hf_shapes.LLAMA3}),
  'llama3-tied': (
    'LlamaConfig',
    {'tie_word_embeddings': True, 'rope_parameters': hf_shapes.LLAMA3},
  ),
  'llama-head-dim': ('LlamaConfig', {'head_dim': 20}),
  'qwen2': ('Qwen2Config', {'tie_word_embeddings': True}),
  'qwen2-untied': ('Qwen2Config', {'tie_word_embeddings': False}),
  'qwen3': ('Qwen3Config', {'tie_word_embeddings': True, 'head_dim': 16}),
  'mistral': ('MistralConfig', {'head_dim': 16, 'sliding_window': 7}),
  'mistral-full': ('MistralConfig', {'sliding_window': None, 'tie_word_embeddings': True}),
  'mistral-scaled': (
    'MistralConfig',
    {'sliding_window': 9, 'rope_parameters': {'rope_type': 'linear', 'factor': 4.0}},
  ),
  'gemma2': (
    'Gemma2Config',
    {'head_dim': 16, 'query_pre_attn_scalar': 24, 'sliding_window': 7},
  ),
  'gemma2-small-caps': (
    'Gemma2Config',
    {'head_dim': 16, 'attn_logit_softcapping': 2.0, 'final_logit_softcapping': 1.5},
  ),
  'gemma2-no-caps': (
    'Gemma2Config',
    {'head_dim': 12, 'attn_logit_softcapping': None, 'final_logit_softcapping': None},
  ),
  'smollm3': ('SmolLM3Config', {'no_rope_layer_interval': 2, **hf_shapes.IDS}),
  'smollm3-listed': ('SmolLM3Config', {'no_rope_layers': [0, 1, 1, 1], **hf_shapes.IDS}),
  'olmo2': ('Olmo2Config', {'tie_word_embeddings': False}),
  'qwen3-moe': ('Qwen3MoeConfig', {**_EXPERTS, 'moe_intermediate_size': 24, 'head_dim': 16}),
  'qwen3-moe-unnormalized': ('Qwen3MoeConfig', {**_EXPERTS, 'norm_topk_prob': False}),
  'olmoe': ('OlmoeConfig', {**_EXPERTS, **hf_shapes.IDS, 'norm_topk_prob': False}),
  'olmoe-normalized': ('OlmoeConfig', {**_EXPERTS, **hf_shapes.IDS}),
  'phi3': ('Phi3Config', {'sliding_window': 7, **hf_shapes.IDS}),
  'phi3-full': ('Phi3Config', {'num_key_value_heads': 4, **hf_shapes.IDS}),
  'gemma3-caps': (
    'Gemma3TextConfig',
    {'head_dim': 16, 'final_logit_softcapping': 2.0, 'layer_types': ['full_attention'] * 3},
  ),
  'gemma3': (
    'Gemma3TextConfig',
    {
      'head_dim': 16,
      'query_pre_attn_scalar': 24,
      'sliding_window': 7,
      'sliding_window_pattern': 2,
      'rope_parameters': {
        'full_attention': {'rope_type': 'linear', 'factor': 8.0, 'rope_theta': 1e6},
        'sliding_attention': {'rope_type': 'default', 'rope_theta': 1e4},
      },
    },
  ),
}


def _config(case: str):
  kind, options = _CASES[case]
  return getattr(transformers, kind)(**{**hf_shapes.SHAPE, **copy.deepcopy(options)})


def _torch_model(case: str):
  """Returns a small model in which no norm is 1 and no bias 0."""
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(_config(case)).eval()
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      centre = 1.0 if 'norm' in name else 0.0
      parameter.copy_(centre + 0.2 * torch.randn_like(parameter))
  return model


def _logits(config, params, ids: np.ndarray) -> np.ndarray:
  """Ours, float32 `[B, T, V]`, at full precision on any device."""
  batch, length = ids.shape
  positions = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
  mask = masks.causal(jnp.full(batch, length), length)
  model = transformer.Transformer(config)
  with jax.default_matmul_precision('highest'):
    hidden, _ = model.apply({'params': params}, ids, positions, mask)
    return np.asarray(model.apply({'params': params}, hidden, method='logits'))


def _torch_logits(model, ids: np.ndarray) -> np.ndarray:
  with torch.no_grad():
    return model(torch.from_numpy(ids).long()).logits.float().numpy()


def _ids(vocab: int, batch: int = 2, length: int = 60) -> np.ndarray:
  return np.random.default_rng(0).integers(0, vocab, (batch, length)).astype(np.int32)


def _load(folder):
  config, params = hf.open_hf(folder)
  return config, stored.read(params)


def _assert_same(tree, other) -> None:
  tree, other = (traverse_util.flatten_dict(x, sep='/') for x in (tree, other))
  assert tree.keys() == other.keys()
  for path in tree:
    np.testing.assert_array_equal(np.asarray(tree[path]), np.asarray(other[path]), err_msg=path)


def _random(config, seed: int = 0):
  key = jax.random.key(seed)
  params = transformer.init_params(config, key)
  leaves, treedef = jax.tree.flatten(params)
  noise = [
    leaf + 0.2 * jax.random.normal(jax.random.fold_in(key, i), leaf.shape)
    for i, leaf in enumerate(leaves)
  ]
  return jax.tree.unflatten(treedef, noise)


@pytest.mark.parametrize('case', _CASES)
def test_imported_model_gives_torch_logits(case, tmp_path):
  model = _torch_model(case)
  model.save_pretrained(tmp_path)
  config, params = _load(tmp_path)
  ids = _ids(config.vocab_size)
  expected = _torch_logits(model, ids)
  assert np.std(expected) > 0.5  # otherwise the tolerance would prove nothing
  np.testing.assert_allclose(_logits(config, params, ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize('case', _CASES)
def test_exported_model_gives_our_logits_in_transformers(case, tmp_path):
  config = config_from_hf(_config(case).to_dict())
  params = _random(config)
  hf.export_hf(config, params, tmp_path)
  model, report = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, output_loading_info=True
  )
  assert not any(report[kind] for kind in ('missing_keys', 'unexpected_keys', 'mismatched_keys'))
  ids = _ids(config.vocab_size)
  np.testing.assert_allclose(
    _logits(config, params, ids), _torch_logits(model.eval(), ids), atol=1e-4, rtol=0
  )


@pytest.mark.parametrize('case', _CASES)
def test_import_of_export_is_exact(case, tmp_path):
  config = config_from_hf(_config(case).to_dict())
  params = _random(config)
  hf.export_hf(config, params, tmp_path)
  config_back, params_back = _load(tmp_path)
  assert config_back == config
  _assert_same(params_back, params)


@pytest.mark.parametrize('case', _CASES)
def test_table_names_exactly_the_parameters_of_the_module(case):
  config = config_from_hf(_config(case).to_dict())
  params = traverse_util.flatten_dict(transformer.init_params(config, jax.random.key(0)), sep='/')
  assert {row.ours: row.shape for row in tensor_names.table(config)} == {
    path: leaf.shape for path, leaf in params.items()
  }


def test_shards_written_here_are_read_by_both(tmp_path):
  config = config_from_hf(transformers.Qwen2Config(**hf_shapes.SHAPE).to_dict())
  params = _random(config)
  hf.export_hf(config, params, tmp_path, max_shard_bytes=40_000)
  assert len(list(tmp_path.glob('model-*-of-*.safetensors'))) > 3
  _assert_same(_load(tmp_path)[1], params)
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
  ids = _ids(config.vocab_size)
  np.testing.assert_allclose(
    _logits(config, params, ids), _torch_logits(model, ids), atol=1e-4, rtol=0
  )
  # A second export leaves no shard of the first behind.
  hf.export_hf(config, params, tmp_path)
  assert [file.name for file in tmp_path.glob('model*')] == ['model.safetensors']
  _assert_same(_load(tmp_path)[1], params)


def test_shards_written_by_transformers_are_read(tmp_path):
  model = _torch_model('llama')
  model.save_pretrained(tmp_path, max_shard_size='40KB')
  assert (tmp_path / 'model.safetensors.index.json').is_file()
  config, params = _load(tmp_path)
  ids = _ids(config.vocab_size)
  np.testing.assert_allclose(
    _logits(config, params, ids), _torch_logits(model, ids), atol=1e-4, rtol=0
  )
  next(tmp_path.glob('model-00002-*')).unlink()
  with pytest.raises(FileNotFoundError, match='model-00002'):
    _load(tmp_path)
  model.save_pretrained(tmp_path)
  assert (tmp_path / 'model.safetensors.index.json').is_file()  # of the shards, now useless
  _assert_same(_load(tmp_path)[1], params)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_half_precision_is_widened_exactly(dtype, tmp_path):
  model = _torch_model('qwen3').to(getattr(torch, dtype))
  model.save_pretrained(tmp_path)
  _, params = _load(tmp_path)
  expected = model.model.layers[1].mlp.down_proj.weight.detach().float().numpy().T
  found = params['layers_1']['mlp']['down']['kernel']
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('case', ['gemma2', 'mistral', 'phi3', 'olmo2', 'smollm3'])
def test_bfloat16_is_about_as_near_as_that_of_transformers(case, tmp_path):
  model = _torch_model(case)
  model.save_pretrained(tmp_path)
  config, params = _load(tmp_path)
  ids = _ids(config.vocab_size)
  exact, theirs = _torch_logits(model, ids), _torch_logits(model.to(torch.bfloat16), ids)
  ours = _logits(config.replace(dtype='bfloat16'), params, ids)
  error = lambda found: np.linalg.norm(found - exact) / np.linalg.norm(exact)
  assert 0 < error(ours) < 1.5 * error(theirs) < 0.1


def test_model_saved_without_its_head_is_read(tmp_path):
  model = _torch_model('qwen2')
  model.save_pretrained(tmp_path / 'whole')
  model.model.save_pretrained(tmp_path / 'bare', max_shard_size='40KB')
  _assert_same(_load(tmp_path / 'bare')[1], _load(tmp_path / 'whole')[1])
  _torch_model('llama').model.save_pretrained(tmp_path / 'untied')
  with pytest.raises(ValueError, match=r'missing \(1\): lm_head\.weight'):
    _load(tmp_path / 'untied')


def test_language_part_of_a_model_with_images_is_read(tmp_path):
  text = {**hf_shapes.SHAPE, **hf_shapes.IDS, 'head_dim': 16, 'sliding_window': 7}
  vision = {'hidden_size': 32, 'intermediate_size': 64, 'num_hidden_layers': 1}
  vision |= {'num_attention_heads': 2, 'image_size': 28, 'patch_size': 14}
  ids = {'image_token_index': 90, 'boi_token_index': 91, 'eoi_token_index': 92}
  config = transformers.Gemma3Config(
    text_config=text, vision_config=vision, mm_tokens_per_image=4, **ids
  )
  torch.manual_seed(0)
  model = transformers.Gemma3ForConditionalGeneration(config).eval()
  model.save_pretrained(tmp_path / 'whole')
  with pytest.raises(ValueError, match=r'`model\.model\.language_model\.save_pretrained'):
    _load(tmp_path / 'whole')
  model.model.language_model.save_pretrained(tmp_path / 'text')
  found, params = _load(tmp_path / 'text')
  ids = _ids(90)
  expected = _torch_logits(model, ids)
  assert np.std(expected) > 0.1
  np.testing.assert_allclose(_logits(found, params, ids), expected, atol=1e-4, rtol=0)


def _save(tensors, config, folder) -> None:
  import safetensors.numpy

  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
  (folder / 'config.json').write_text(json.dumps(config_to_hf(config)))


@pytest.fixture
def tensors():
  """Returns config and tensors of a tied Llama, by their Hugging Face names."""
  config = config_from_hf(
    transformers.LlamaConfig(**hf_shapes.SHAPE, tie_word_embeddings=True).to_dict()
  )
  rng = np.random.default_rng(0)
  return config, {
    row.hf: rng.normal(size=row.stored_shape).astype(np.float32)
    for row in tensor_names.table(config)
  }


def test_wrong_tensor_names_are_listed(tensors, tmp_path):
  config, weights = tensors
  weights['model.layers.1.mlp.oops.weight'] = weights.pop('model.layers.1.mlp.up_proj.weight')
  _save(weights, config, tmp_path)
  with pytest.raises(ValueError, match=r'missing.*1\.mlp\.up_proj.*not expected.*1\.mlp\.oops'):
    _load(tmp_path)


def test_wrong_shape_names_the_tensor(tensors, tmp_path):
  config, weights = tensors
  weights['model.layers.0.self_attn.k_proj.weight'] = np.zeros((48, 24), np.float32)
  _save(weights, config, tmp_path)
  with pytest.raises(ValueError, match='layers_0/attn/k/kernel'):
    _load(tmp_path)


def test_head_beside_tied_embedding_must_agree(tensors, tmp_path):
  config, weights = tensors
  weights['lm_head.weight'] = weights['model.embed_tokens.weight'].copy()
  weights['model.layers.0.self_attn.rotary_emb.inv_freq'] = np.ones(6, np.float32)
  _save(weights, config, tmp_path)
  assert 'lm_head' not in _load(tmp_path)[1]
  weights['lm_head.weight'][0, 0] += 1
  _save(weights, config, tmp_path)
  with pytest.raises(ValueError, match='tie_word_embeddings'):
    _load(tmp_path)


def test_export_refuses_other_parameters(tmp_path):
  config = config_from_hf(transformers.LlamaConfig(**hf_shapes.SHAPE).to_dict())
  params = _random(config)
  with_adapter = transformer.init_params(config.replace(lora_rank=2), jax.random.key(0))
  with pytest.raises(ValueError, match='merge'):
    hf.export_hf(config, with_adapter, tmp_path)
  with pytest.raises(ValueError, match='lm_head/kernel'):
    hf.export_hf(config.replace(tie_embeddings=True), params, tmp_path)
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  with pytest.raises(ValueError, match='bfloat16'):
    hf.export_hf(config, half, tmp_path)


@pytest.mark.slow
def test_smollm2_gives_torch_logits_after_export(tmp_path):
  model = pretrained.smollm()
  hf.export_hf(model.config, model.params, tmp_path, model.tokenizer)
  reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
  chat = [{'role': 'user', 'content': 'Ann has 7 eggs, Ben has 12. How many in all?'}]
  text = model.tokenizer.render_chat(chat, add_generation_prompt=True)
  ids = np.asarray([model.tokenizer.encode(text)], np.int32)
  np.testing.assert_allclose(
    # Logits reach 39 here: 2e-4 is 5e-6 of them.
    _logits(model.config, model.params, ids),
    _torch_logits(reference, ids),
    atol=2e-4,
    rtol=0,
  )
  config, params = _load(tmp_path)
  assert config == model.config
  _assert_same(params, model.params)
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert (
    tokenizer.apply_chat_template(chat, add_generation_prompt=True).input_ids == ids[0].tolist()
  )
  assert tokenizer.eos_token_id == model.tokenizer.eos_id
