"""Hugging Face's config.json <-> `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gspo.models.config import ModelConfig, RopeScaling

_ARCHITECTURES = {
  'llama': 'LlamaForCausalLM',
  'qwen2': 'Qwen2ForCausalLM',
  'qwen3': 'Qwen3ForCausalLM',
}
# What a config.json may leave out, by transformers' own defaults.
_MAX_POSITIONS = {'llama': 2048, 'qwen2': 32768, 'qwen3': 32768}
_HEAD_DIM = {'qwen3': 128}


def config_from_hf(hf: Mapping[str, Any]) -> ModelConfig:
  """Architecture from the contents of a config.json (of transformers 4 or 5).

  Raises:
    ValueError: the model type, or one of its options, is not supported; or a field that
      has no default is missing. The message names the field and its value.
  """
  family = hf.get('model_type')
  if family not in _ARCHITECTURES:
    raise ValueError(f'model_type={family!r} is not supported, only {", ".join(_ARCHITECTURES)}.')
  missing = [field for field in _REQUIRED if field not in hf]
  if missing:
    raise ValueError(f'config.json lacks {", ".join(missing)}.')
  _refuse(hf, family)
  theta, scaling = _rope(hf)
  heads, width = hf['num_attention_heads'], hf['hidden_size']
  return ModelConfig(
    family=family,
    vocab_size=hf['vocab_size'],
    num_layers=hf['num_hidden_layers'],
    embed_dim=width,
    num_heads=heads,
    num_kv_heads=hf.get('num_key_value_heads') or heads,
    head_dim=hf.get('head_dim') or _HEAD_DIM.get(family, width // heads),
    mlp_dim=hf['intermediate_size'],
    rope_theta=theta,
    rope_scaling=scaling,
    norm_eps=hf.get('rms_norm_eps', 1e-6),
    tie_embeddings=hf.get('tie_word_embeddings', False),
    qkv_bias=family == 'qwen2',
    qk_norm=family == 'qwen3',
    max_positions=hf.get('max_position_embeddings', _MAX_POSITIONS[family]),
  )


_REQUIRED = (
  'vocab_size',
  'num_hidden_layers',
  'hidden_size',
  'num_attention_heads',
  'intermediate_size',
)


def _refuse(hf: Mapping[str, Any], family: str) -> None:
  """Raises ValueError for options that would silently change the function computed."""
  if hf.get('hidden_act', 'silu') != 'silu':
    raise ValueError(f'hidden_act={hf["hidden_act"]!r} is not supported, only "silu".')
  for field in ('quantization_config', 'attention_bias', 'mlp_bias', 'use_sliding_window'):
    if hf.get(field):
      raise ValueError(f'{field}={hf[field]!r} is not supported; it must be absent or false.')
  if family == 'llama' and hf.get('sliding_window'):
    raise ValueError(f'sliding_window={hf["sliding_window"]!r} is not supported.')
  kinds = set(hf.get('layer_types') or ()) - {'full_attention'}
  if kinds:
    raise ValueError(f'layer_types {sorted(kinds)} are not supported, only "full_attention".')


def _rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
  """Base and scaling: transformers 5 keeps both in `rope_parameters`, 4 beside each other."""
  fields = hf.get('rope_parameters') or hf.get('rope_scaling') or {}
  theta = float(fields.get('rope_theta', hf.get('rope_theta', 10_000.0)))
  if fields.get('partial_rotary_factor', hf.get('partial_rotary_factor', 1.0)) != 1.0:
    raise ValueError('partial_rotary_factor is not supported; it must be absent or 1.')
  kind = fields.get('rope_type', fields.get('type', 'default'))
  if kind == 'default':
    return theta, None
  if kind != 'llama3':
    raise ValueError(f'rope_type={kind!r} is not supported, only "default" and "llama3".')
  try:
    return theta, RopeScaling(
      factor=float(fields['factor']),
      low_freq_factor=float(fields['low_freq_factor']),
      high_freq_factor=float(fields['high_freq_factor']),
      original_max_positions=fields['original_max_position_embeddings'],
    )
  except KeyError as error:
    raise ValueError(f'rope_scaling of type "llama3" lacks {error}.') from error


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
  """The contents of a config.json, in the form that transformers 4 and 5 both read."""
  c = config
  hf = {
    'architectures': [_ARCHITECTURES[c.family]],
    'model_type': c.family,
    'vocab_size': c.vocab_size,
    'num_hidden_layers': c.num_layers,
    'hidden_size': c.embed_dim,
    'num_attention_heads': c.num_heads,
    'num_key_value_heads': c.num_kv_heads,
    'head_dim': c.head_dim,
    'intermediate_size': c.mlp_dim,
    'hidden_act': 'silu',
    'rope_theta': c.rope_theta,
    'rms_norm_eps': c.norm_eps,
    'tie_word_embeddings': c.tie_embeddings,
    'attention_bias': False,  # Qwen2's biases are implied by its model_type
    'max_position_embeddings': c.max_positions,
    'torch_dtype': 'float32',
  }
  if c.family != 'llama':
    hf['use_sliding_window'] = False
  if c.rope_scaling is not None:
    hf['rope_scaling'] = {
      'rope_type': 'llama3',
      'factor': c.rope_scaling.factor,
      'low_freq_factor': c.rope_scaling.low_freq_factor,
      'high_freq_factor': c.rope_scaling.high_freq_factor,
      'original_max_position_embeddings': c.rope_scaling.original_max_positions,
    }
  return hf
