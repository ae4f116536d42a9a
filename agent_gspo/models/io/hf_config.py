"""Converts between Hugging Face's config.json and `ModelConfig`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gspo.models.config import MAX_LAYERS, ModelConfig, RopeScaling, SlidingWindow
from agent_gspo.models.families import FAMILIES, FULL, OPTIONAL, SLIDING, Family
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
      f'{where}: model_type={shown(family)} is not supported, only {", ".join(FAMILIES)}. Of a '
      'model with a text part of one of these, save that part by itself, in transformers with '
      '`model.model.language_model.save_pretrained(folder)`.'
    )
  spec, given = FAMILIES[family], {k: v for k, v in hf.items() if v is not None}
  defaults = {k: v for k, v in spec.defaults.items() if k not in OPTIONAL or k not in hf}
  fields = Fields({**defaults, **given}, where)
  _refuse(fields, spec)
  theta, scaling = _rope(fields, spec)
  layers = fields.whole('num_hidden_layers', high=MAX_LAYERS)
  heads, width = fields.whole('num_attention_heads'), fields.whole('hidden_size')
  shape: dict[str, Any] = {
    'vocab_size': fields.whole('vocab_size'),
    'num_layers': layers,
    'embed_dim': width,
    'num_heads': heads,
    'num_kv_heads': fields.whole('num_key_value_heads', heads),
    'head_dim': fields.whole('head_dim', max(width // heads, 1)),
    'mlp_dim': fields.whole(spec.width),
    'rope_theta': theta,
    'rope_scaling': scaling,
    'rope_layers': _rope_layers(fields, spec, layers),
    'sliding': _sliding(fields, spec, layers),
    'attention_cap': fields.optional('attn_logit_softcapping'),
    'logit_cap': fields.optional('final_logit_softcapping'),
    'norm_eps': fields.number('rms_norm_eps', high=1.0),
    'tie_embeddings': fields.flag('tie_word_embeddings'),
    'max_positions': fields.whole('max_position_embeddings'),
  }
  if spec.is_mixture:
    shape |= {
      'num_experts': _num_experts(fields, given),
      'experts_per_token': fields.whole('num_experts_per_tok'),
      'norm_topk': fields.flag('norm_topk_prob'),
    }
  if 'query_pre_attn_scalar' in spec.defaults:
    shape['query_scalar'] = fields.whole('query_pre_attn_scalar')
  return named(where, lambda: ModelConfig(family, **shape))


def _num_experts(fields: Fields, given: Mapping[str, Any]) -> int:
  """Reads the number of experts; transformers 5 has another name for it in some families."""
  count = fields.whole('num_local_experts', fields.whole('num_experts'))
  if given.get('num_experts', count) != count:
    raise fields.wrong('num_local_experts', f'num_experts={given["num_experts"]}, or absent')
  return count


# Fields of other families that would change the function.
_REFUSED = ('mlp_bias', 'quantization_config', 'query_pre_attn_scalar', *OPTIONAL)


def _refuse(fields: Fields, spec: Family) -> None:
  """Raises ValueError for options that would silently change the computed function."""
  unread = {field for field in (*_REFUSED, *spec.refused) if field not in spec.defaults}
  expected = {'is_causal': True, **spec.fixed, **dict.fromkeys(sorted(unread), False)}
  for field, value in expected.items():
    found = fields.get(field, value)
    if found != value and (found or value):
      raise fields.wrong(field, f'absent or {json.dumps(value)}; nothing else is supported')


def _rope_layers(fields: Fields, spec: Family, count: int) -> tuple[bool, ...] | None:
  """Reads which of `count` layers have rotary positions; None for all."""
  if 'no_rope_layers' not in spec.defaults:
    return None
  every = fields.whole('no_rope_layer_interval')
  found = fields.get('no_rope_layers', [int((i + 1) % every > 0) for i in range(count)])
  if not isinstance(found, list) or len(found) < count or any(x not in (0, 1) for x in found):
    raise fields.wrong('no_rope_layers', f'a list of {count} numbers, 1 for rotary positions')
  layers = tuple(bool(rotary) for rotary in found[:count])
  return None if all(layers) else layers


def _sliding(fields: Fields, spec: Family, count: int) -> SlidingWindow | None:
  """Reads which of `count` layers have a sliding window; None if there are none."""
  allowed = {'none': [FULL], 'some': [FULL, SLIDING]}.get(spec.windows, [SLIDING])
  if spec.windows == 'all' and fields.values.get('sliding_window') is None:
    allowed = [FULL]
  kinds = fields.get('layer_types', [])
  if not kinds:
    every = fields.whole('sliding_window_pattern') if len(allowed) > 1 else 1
    kinds = [allowed[(i + 1) % every > 0] for i in range(count)]
  if not isinstance(kinds, list) or any(kind not in allowed for kind in kinds):
    raise fields.wrong('layer_types', f'a list of {" or ".join(allowed)}')
  if SLIDING not in kinds:
    return None
  if len(kinds) != count:
    raise fields.wrong('layer_types', f'a list of num_hidden_layers={count} kinds')
  theta, scaling = _rope(fields, spec, SLIDING)
  if scaling is not None and 'rope_local_base_freq' in spec.defaults:
    raise fields.wrong('rope_parameters', 'without a scaling for sliding_attention')
  layers = tuple(kind == SLIDING for kind in kinds)
  return SlidingWindow(fields.whole('sliding_window'), layers, theta, scaling)


_ROPE_FIELDS = ('rope_theta', 'rope_parameters', 'rope_scaling')
_ROPE_KEYS = {'rope_type', 'type', 'rope_theta', 'partial_rotary_factor'}
_LLAMA3_POSITIONS = 'original_max_position_embeddings'
# Scaling -> its keys.
_ROPE_TYPES: dict[str, set[str]] = {
  'default': set(),
  'linear': {'factor'},
  'llama3': {'factor', 'low_freq_factor', 'high_freq_factor', _LLAMA3_POSITIONS},
}


def _rope(fields: Fields, spec: Family, of: str = FULL) -> tuple[float, RopeScaling | None]:
  """Reads base and scaling of the layers of a kind.

  transformers 5 keeps both in `rope_parameters`, 4 in two fields. Only in families with a
  `rope_local_base_freq` do layers with a window have their own.

  Raises:
    ValueError: A key is unknown (it may change the function), or a value is invalid.
  """
  for field in fields.values:
    known = field in _ROPE_FIELDS or field in spec.defaults
    if field.startswith('rope_') and not known and fields.get(field, False):
      raise fields.wrong(field, 'absent or false; it is not supported')
  kinds = [FULL, SLIDING] if 'rope_local_base_freq' in spec.defaults else [FULL]
  of = of if of in kinds else FULL
  rope = _of_kind(_rope_section(fields), of, kinds)
  base = 'rope_theta' if of == FULL else 'rope_local_base_freq'
  theta = rope.number('rope_theta', fields.number(base, low=1.0), low=1.0)
  if rope.get('partial_rotary_factor', fields.get('partial_rotary_factor', 1.0)) != 1.0:
    raise ValueError(f'{fields.where}: partial_rotary_factor is not supported but for 1.')
  name = 'type' if rope.values.get('rope_type') is None else 'rope_type'  # old files, new ones
  kind = rope.get(name, 'default')
  if not isinstance(kind, str) or kind not in _ROPE_TYPES:
    names = ', '.join(f'"{known}"' for known in _ROPE_TYPES)
    raise rope.wrong(name, f'one of {names}; take a model without another scaling')
  if rope.get('type', kind) != kind:
    raise rope.wrong('type', f'absent, or {kind!r} as rope_type beside it')
  for key in sorted(rope.values.keys() - _ROPE_KEYS - _ROPE_TYPES[kind]):
    rope.absent(key, f'it is no key of rope_type {kind!r}')
  if kind == 'default':
    return theta, None
  factor = rope.number('factor')
  if kind == 'linear':
    return theta, RopeScaling(factor)
  low, high = rope.number('low_freq_factor'), rope.number('high_freq_factor')
  if low >= high:
    raise rope.wrong('low_freq_factor', f'below high_freq_factor={high}')
  positions = rope.whole(_LLAMA3_POSITIONS)
  if fields.get(_LLAMA3_POSITIONS, positions) != positions:
    raise fields.wrong(_LLAMA3_POSITIONS, f'{positions} as in {rope.prefix[:-1]}')
  return theta, RopeScaling(factor, low, high, positions)


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


def _of_kind(section: Fields, kind: str, kinds: Sequence[str]) -> Fields:
  """Returns the part of a section for layers of a kind; `kinds` are those of the family.

  A section without parts is that of `full_attention`.
  """
  parts = [key for key in section.values if key.endswith('_attention')]
  if not parts and not any(isinstance(value, Mapping) for value in section.values.values()):
    return section if kind == FULL else dataclasses.replace(section, values={})
  section.get(FULL)
  own = section.section(kind)
  for key, value in section.values.items():
    if key not in kinds and value != own.values:
      section.absent(key, f'it differs from {kind} beside it, and no layer is of that kind')
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
    c.spec.width: c.mlp_dim,
    **c.spec.fixed,
    'rope_theta': c.rope_theta,
    'rms_norm_eps': c.norm_eps,
    'tie_word_embeddings': c.tie_embeddings,
    'max_position_embeddings': c.max_positions,
    'torch_dtype': 'float32',
    'pad_token_id': None,  # a family's default may exceed the vocabulary
  }
  if c.rope_scaling is not None:
    scaling = c.rope_scaling
    hf['rope_scaling'] = {'rope_type': 'linear', 'factor': scaling.factor}
    if scaling.original_max_positions:
      hf['rope_scaling'] |= {
        'rope_type': 'llama3',
        'low_freq_factor': scaling.low_freq_factor,
        'high_freq_factor': scaling.high_freq_factor,
        _LLAMA3_POSITIONS: scaling.original_max_positions,
      }
  given = {
    'num_experts': c.num_experts,
    'num_experts_per_tok': c.experts_per_token,
    'norm_topk_prob': c.norm_topk,
    'sliding_window': None,
    'query_pre_attn_scalar': c.query_scalar,
    'attn_logit_softcapping': c.attention_cap,
    'final_logit_softcapping': c.logit_cap,
    'no_rope_layers': [int(rotary) for rotary in c.rope_layers or (True,) * c.num_layers],
  }
  if c.sliding is not None:
    given |= {'sliding_window': c.sliding.width, 'rope_local_base_freq': c.sliding.rope_theta}
  if c.spec.windows == 'some':
    near = c.sliding.layers if c.sliding else (False,) * c.num_layers
    hf['layer_types'] = [SLIDING if sliding else FULL for sliding in near]
    if c.sliding is None:
      del given['sliding_window']  # transformers wants a number, even if no layer reads it
  return hf | {field: value for field, value in given.items() if field in c.spec.defaults}
