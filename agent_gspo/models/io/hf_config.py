"""Converts between Hugging Face's config.json and `ModelConfig`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from agent_gspo.models.config import MAX_LAYERS, ModelConfig, RopeScaling
from agent_gspo.models.families import DEFAULTS, FAMILIES, Family
from agent_gspo.models.io.fields import Fields, named
from agent_gspo.values import shown


def config_from_hf(hf: Mapping[str, Any], where: str = 'config.json') -> ModelConfig:
  """Returns the architecture in a config.json (of transformers 4 or 5); null counts as absent.

  Raises:
    ValueError: The model type or an option is not supported, or a field without a default is
      missing, or a value is invalid. The message names file, field and value.
  """
  family = hf.get('model_type')
  if not isinstance(family, str) or family not in FAMILIES:
    raise ValueError(
      f'{where}: model_type={shown(family)} is not supported, only {", ".join(FAMILIES)}.'
    )
  spec, given = FAMILIES[family], {k: v for k, v in hf.items() if v is not None}
  fields = Fields({**DEFAULTS, **spec.defaults, **given}, where)
  _refuse(fields, spec)
  theta, scaling = _rope(fields)
  heads, width = fields.whole('num_attention_heads'), fields.whole('hidden_size')
  shape: dict[str, Any] = {
    'vocab_size': fields.whole('vocab_size'),
    'num_layers': fields.whole('num_hidden_layers', high=MAX_LAYERS),
    'embed_dim': width,
    'num_heads': heads,
    'num_kv_heads': fields.whole('num_key_value_heads', heads),
    'head_dim': fields.whole('head_dim', max(width // heads, 1)),
    'mlp_dim': fields.whole('intermediate_size'),
    'rope_theta': theta,
    'rope_scaling': scaling,
    'norm_eps': fields.number('rms_norm_eps', high=1.0),
    'tie_embeddings': fields.flag('tie_word_embeddings'),
    'max_positions': fields.whole('max_position_embeddings'),
  }
  return named(where, lambda: ModelConfig(family, **shape))


def _refuse(fields: Fields, spec: Family) -> None:
  """Raises ValueError for options that would silently change the computed function."""
  for field, value in {**spec.fixed, **dict.fromkeys(spec.refused, False)}.items():
    found = fields.get(field, value)
    if found != value and (found or value):
      raise fields.wrong(field, f'absent or {json.dumps(value)}; nothing else is supported')
  kinds = fields.get('layer_types', [])
  if not isinstance(kinds, list) or any(kind != 'full_attention' for kind in kinds):
    raise fields.wrong('layer_types', 'a list of "full_attention"; nothing else is supported')


_ROPE_FIELDS = ('rope_theta', 'rope_parameters', 'rope_scaling')
_ROPE_KEYS = {'rope_type', 'type', 'rope_theta', 'partial_rotary_factor'}
_LLAMA3_KEYS = {
  'factor',
  'low_freq_factor',
  'high_freq_factor',
  'original_max_position_embeddings',
}


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
  """Reads base and scaling: transformers 5 keeps both in `rope_parameters`, 4 in two fields.

  Raises:
    ValueError: A key is unknown (it may change the function), or a value is invalid.
  """
  for field in fields.values:
    if field.startswith('rope_') and field not in _ROPE_FIELDS and fields.get(field, False):
      raise fields.wrong(field, 'absent or false; it is not supported')
  rope = _full_attention(_rope_section(fields))
  theta = rope.number('rope_theta', fields.number('rope_theta', low=1.0), low=1.0)
  if rope.get('partial_rotary_factor', fields.get('partial_rotary_factor', 1.0)) != 1.0:
    raise ValueError(f'{fields.where}: partial_rotary_factor is not supported but for 1.')
  name = 'type' if rope.values.get('rope_type') is None else 'rope_type'  # old files, new ones
  kind = rope.get(name, 'default')
  if kind not in ('default', 'llama3'):
    raise rope.wrong(name, '"default" or "llama3"; take a model without another scaling')
  if rope.get('type', kind) != kind:
    raise rope.wrong('type', f'absent, or {kind!r} as rope_type beside it')
  for key in rope.values:
    if key not in _ROPE_KEYS | (_LLAMA3_KEYS if kind == 'llama3' else set()):
      rope.absent(key, f'it is no key of rope_type {kind!r}')
  if kind == 'default':
    return theta, None
  low, high = rope.number('low_freq_factor'), rope.number('high_freq_factor')
  if low >= high:
    raise rope.wrong('low_freq_factor', f'below high_freq_factor={high}')
  positions = rope.whole('original_max_position_embeddings')
  if fields.get('original_max_position_embeddings', positions) != positions:
    raise fields.wrong('original_max_position_embeddings', f'{positions} as in {rope.prefix[:-1]}')
  return theta, RopeScaling(
    factor=rope.number('factor'),
    low_freq_factor=low,
    high_freq_factor=high,
    original_max_positions=positions,
  )


def _rope_section(fields: Fields) -> Fields:
  """Returns the section on rotary embeddings; two sections must agree."""
  new, old = (fields.section(name) for name in ('rope_parameters', 'rope_scaling'))
  if not new.values or not old.values:
    return new if new.values else old
  both = {**old.values, **new.values}
  apart = new.values.keys() ^ old.values.keys()
  if apart - {'rope_theta'} or both != {**new.values, **old.values}:
    raise fields.wrong('rope_scaling', 'absent, or the same as rope_parameters beside it')
  return dataclasses.replace(new, values=both)


def _full_attention(section: Fields) -> Fields:
  """Returns the fields of a section for layers with full attention, the only supported kind."""
  kinds = [key for key in section.values if key.endswith('_attention')]
  if not kinds and not any(isinstance(value, Mapping) for value in section.values.values()):
    return section
  section.get('full_attention')
  own = section.section('full_attention')
  for key, value in section.values.items():
    if value != own.values:
      section.absent(key, 'it differs from full_attention beside it, and all layers are of that')
  return own


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
  """Returns the contents of a config.json that transformers 4 and 5 both read."""
  c = config
  hf = {
    'architectures': [c.spec.architecture],
    'model_type': c.family,
    'vocab_size': c.vocab_size,
    'num_hidden_layers': c.num_layers,
    'hidden_size': c.embed_dim,
    'num_attention_heads': c.num_heads,
    'num_key_value_heads': c.num_kv_heads,
    'head_dim': c.head_dim,
    'intermediate_size': c.mlp_dim,
    **c.spec.fixed,
    'rope_theta': c.rope_theta,
    'rms_norm_eps': c.norm_eps,
    'tie_word_embeddings': c.tie_embeddings,
    'max_position_embeddings': c.max_positions,
    'torch_dtype': 'float32',
  }
  if c.rope_scaling is not None:
    hf['rope_scaling'] = {
      'rope_type': 'llama3',
      'factor': c.rope_scaling.factor,
      'low_freq_factor': c.rope_scaling.low_freq_factor,
      'high_freq_factor': c.rope_scaling.high_freq_factor,
      'original_max_position_embeddings': c.rope_scaling.original_max_positions,
    }
  return hf
