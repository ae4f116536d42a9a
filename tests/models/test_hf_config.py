"""Reads config.json files, and refuses others by name."""

from __future__ import annotations

import copy

import hf_shapes
import numpy as np
import pytest

from agent_gspo.models import rope
from agent_gspo.models.io.hf_config import config_from_hf

transformers = pytest.importorskip('transformers')

_BASE = {**hf_shapes.SHAPE, 'model_type': 'llama'}


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'model_type': 'mamba'}, "model_type='mamba'"),
    ({'model_type': 'gemma3', 'text_config': {}}, "model_type='gemma3' .* save that part"),
    ({'model_type': 'mixtral'}, "model_type='mixtral'"),
    ({'model_type': 'qwen3_moe', 'decoder_sparse_step': 2}, 'decoder_sparse_step=2 must be'),
    ({'model_type': 'qwen3_moe', 'mlp_only_layers': [1]}, r'mlp_only_layers=\[1\]'),
    ({'model_type': 'qwen3_moe', 'num_experts': 4}, 'experts_per_token=8 must be from 1 to .*=4'),
    ({'model_type': 'olmoe', 'num_experts': 4, 'num_local_experts': 8}, 'num_local_experts=8'),
    ({'model_type': 'olmoe', 'clip_qkv': 8.0}, r'clip_qkv=8\.0'),
    ({'final_logit_softcapping': 30.0}, r'final_logit_softcapping=30\.0'),
    ({'query_pre_attn_scalar': 64}, 'query_pre_attn_scalar=64'),
    ({'no_rope_layers': [1, 0, 1]}, r'no_rope_layers=\[1, 0, 1\]'),
    ({'model_type': 'olmo2', 'clip_qkv': 8.0}, r'clip_qkv=8\.0'),
    ({'model_type': 'gemma3_text', 'attn_logit_softcapping': 50.0}, 'attn_logit_softcapping'),
    ({'model_type': 'gemma2', 'use_bidirectional_attention': True}, 'use_bidirectional_attention'),
    ({'model_type': 'gemma2', 'sliding_window': None}, 'lacks sliding_window'),
    ({'model_type': 'gemma2', 'final_logit_softcapping': -1.0}, r'final_logit_softcapping=-1\.0'),
    ({'model_type': 'mistral', 'layer_types': ['full_attention'] * 3}, 'a list of sliding_att'),
    ({'model_type': 'mistral', 'rope_scaling': {'type': 'yarn', 'factor': 2.0}}, "type='yarn'"),
    ({'model_type': 'smollm3', 'no_rope_layers': [1, 0]}, r'no_rope_layers=\[1, 0\] must be'),
    ({'model_type': 'smollm3', 'no_rope_layers': [1, 0, 2]}, 'no_rope_layers'),
    ({'model_type': 'phi3', 'rope_scaling': {'type': 'longrope'}}, "type='longrope'"),
    ({'rope_scaling': {'rope_type': 'yarn', 'factor': 2.0}}, "rope_type='yarn'"),
    ({'rope_scaling': {'rope_type': 'llama3', 'factor': 2.0}}, 'low_freq_factor'),
    ({'model_type': 'qwen2', 'use_sliding_window': True}, 'use_sliding_window'),
    ({'sliding_window': 512}, 'sliding_window=512'),
    ({'layer_types': ['full_attention', 'sliding_attention']}, 'sliding_attention'),
    ({'hidden_act': 'gelu'}, "hidden_act='gelu'"),
    ({'attention_bias': True}, 'attention_bias'),
    ({'mlp_bias': True}, 'mlp_bias'),
    ({'is_causal': False}, 'is_causal=False must be absent or true'),
    ({'quantization_config': {'bits': 4}}, 'quantization_config'),
    ({'partial_rotary_factor': 0.5}, 'partial_rotary_factor'),
  ],
)
def test_unsupported_configs_are_refused_by_name(change, message):
  with pytest.raises(ValueError, match=message):
    config_from_hf({**_BASE, **change})
  with pytest.raises(ValueError, match='hidden_size'):
    config_from_hf({k: v for k, v in _BASE.items() if k != 'hidden_size'})


def test_a_causal_model_may_say_so():
  assert config_from_hf({**_BASE, 'is_causal': True}) == config_from_hf(_BASE)


def test_rope_fields_of_transformers_4_and_5_mean_the_same():
  scaling = {key: value for key, value in hf_shapes.LLAMA3.items() if key != 'rope_theta'}
  old = config_from_hf({**_BASE, 'rope_theta': 500_000.0, 'rope_scaling': scaling})
  new = config_from_hf({**_BASE, 'rope_parameters': {**scaling, 'rope_theta': 500_000.0}})
  assert old == new
  assert old.rope_scaling is not None
  assert old.rope_theta == 500_000.0
  both = {'rope_parameters': {**scaling, 'rope_theta': 500_000.0}, 'rope_scaling': scaling}
  assert config_from_hf({**_BASE, **both}) == old
  plain = {'rope_type': 'default', 'rope_theta': 1e6}  # transformers reads the other one
  with pytest.raises(ValueError, match=r'rope_scaling.* the same as rope_parameters beside it'):
    config_from_hf({**_BASE, **both, 'rope_parameters': plain})


_SCALED = {k: v for k, v in hf_shapes.LLAMA3.items() if k != 'rope_theta'}


@pytest.mark.parametrize('family', ['Llama', 'Qwen2', 'Qwen3'])
@pytest.mark.parametrize(
  'section',
  [
    {},
    {'rope_theta': 5e5},
    {'rope_theta': 5e5, 'rope_scaling': None, 'rope_interleaved': False},
    {'rope_parameters': {}},
    {'rope_parameters': {'rope_type': 'default'}},
    {'rope_parameters': {'rope_theta': 5e5}},
    {'rope_parameters': {'rope_type': 'default'}, 'rope_theta': 7e4},
    {'rope_parameters': {'rope_type': 'default', 'rope_theta': 5e5}, 'rope_theta': 7e4},
    {'rope_scaling': {'type': 'default', 'rope_theta': 5e5}},
    {'rope_scaling': _SCALED, 'rope_theta': 5e5},
    {'rope_scaling': {'type': 'linear', 'factor': 8.0}},
    {'rope_scaling': {**_SCALED, 'type': 'llama3'}},
    {'rope_parameters': _SCALED, 'rope_scaling': hf_shapes.LLAMA3 | {'rope_theta': 5e5}},
  ],
)
def test_rope_frequencies_are_those_of_transformers(family, section):
  pytest.importorskip('torch')
  shape = {**hf_shapes.SHAPE, 'head_dim': 16}
  config = getattr(transformers, f'{family}Config')(**shape, **copy.deepcopy(section))
  theirs = transformers.AutoModelForCausalLM.from_config(config).model.rotary_emb
  shape['model_type'] = family.lower()
  ours = rope.frequencies(config_from_hf({**shape, **section}))
  np.testing.assert_allclose(ours, theirs.inv_freq.numpy(), rtol=2e-6)


def test_rope_sections_of_layer_types_are_read():
  full = {'rope_type': 'default', 'rope_theta': 5e5}
  for kinds in (
    {'full_attention': full},
    {'full_attention': full, 'sliding_attention': full},
    {'full_attention': full, 'sliding_attention': None},
  ):
    assert config_from_hf({**_BASE, 'rope_parameters': kinds}).rope_theta == 5e5
  scaled = config_from_hf({**_BASE, 'rope_scaling': {'full_attention': hf_shapes.LLAMA3}})
  assert scaled == config_from_hf({**_BASE, 'rope_parameters': hf_shapes.LLAMA3})
  outside = {'rope_theta': 7e4, 'rope_parameters': {'full_attention': {'rope_type': 'default'}}}
  assert config_from_hf({**_BASE, **outside}).rope_theta == 7e4


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'rope_parameters': {'sliding_attention': {'rope_theta': 5e5}}}, r'lacks .*full_attention'),
    ({'rope_parameters': {'full_attention': None}}, r'lacks rope_parameters\.full_attention'),
    ({'rope_parameters': {'full_attention': 5e5}}, 'full_attention=500000.0 must be an object'),
    ({'rope_parameters': {'global': {'rope_theta': 5e5}}}, r'lacks .*full_attention'),
    (
      {'rope_parameters': {'full_attention': {'rope_theta': 5e5}, 'rope_theta': 1e4}},
      r'rope_parameters\.rope_theta=10000\.0 must be absent: it differs from full_attention',
    ),
    (
      {'rope_parameters': {'full_attention': {'rope_theta': 5e5}, 'sliding_attention': {}}},
      r'rope_parameters\.sliding_attention=\{\} must be absent',
    ),
    (
      {'rope_parameters': {'full_attention': {'rope_theta': 5e5, 'factor': 2.0}}},
      r'rope_parameters\.full_attention\.factor=2\.0 must be absent',
    ),
    ({'rope_parameters': {'theta': 5e5}}, r'rope_parameters\.theta=500000\.0 must be absent'),
    ({'rope_scaling': {'factor': 8.0}}, r'rope_scaling\.factor=8\.0 must be absent'),
    (
      {'rope_scaling': {**hf_shapes.LLAMA3, 'beta_fast': 32}},
      r'rope_scaling\.beta_fast=32 must be absent',
    ),
    (
      {'rope_scaling': {'type': 'linear', 'rope_type': 'default'}},
      r"rope_scaling\.type='linear' must be absent, or 'default'",
    ),
    (
      {'rope_scaling': {'rope_theta': 5e5}, 'rope_parameters': {'rope_theta': 1e4}},
      'rope_scaling=.* must be absent, or the same',
    ),
    ({'rope_scaling': {'type': 'dynamic', 'factor': 2.0}}, "rope_scaling.type='dynamic'"),
    ({'rope_parameters': {'rope_type': 'longrope'}}, "rope_type='longrope'"),
    ({'rope_scaling': {'rope_type': 'default', 'mrope_section': [2, 2, 4]}}, 'mrope_section'),
    (
      {'rope_scaling': hf_shapes.LLAMA3, 'original_max_position_embeddings': 64},
      'original_max_position_embeddings=64 must be 32',
    ),
    ({'rope_interleaved': True}, 'rope_interleaved=True must be absent'),
    ({'rope_local_base_freq': 1e4}, 'rope_local_base_freq=10000.0 must be absent'),
  ],
)
def test_rope_sections_that_are_not_understood_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    config_from_hf({**_BASE, **change})
