"""Describes each model family once: the parameters of a layer, its files and their defaults.

A new family is an entry of `FAMILIES`; `transformer.py` and the readers in `io` follow it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Parameter(NamedTuple):
  """Name and axes of one parameter.

  Attributes:
    ours: Path in the parameter tree, joined by '/'.
    hf: Tensor name in Hugging Face checkpoints.
      Parameters of a layer with the same name are stored as one tensor, in this order.
      Each expert's part of a stack is stored as a tensor of its own, with its number for `{}`.
    axes: Size of each axis here: `D` embed_dim, `Q` all query heads, `K` all key heads, `H`
      head_dim, `F` mlp_dim, `V` vocab_size, `E` num_experts. Kernels are `[in, out]`, elsewhere
      transposed.
  """

  ours: str
  hf: str
  axes: str


EMBEDDING = Parameter('embed/embedding', 'model.embed_tokens.weight', 'VD')
FINAL_NORM = Parameter('final_norm/scale', 'model.norm.weight', 'D')
LM_HEAD = Parameter('lm_head/kernel', 'lm_head.weight', 'DV')

_ATTENTION = (
  Parameter('attn_norm/scale', 'input_layernorm.weight', 'D'),
  Parameter('attn/q/kernel', 'self_attn.q_proj.weight', 'DQ'),
  Parameter('attn/k/kernel', 'self_attn.k_proj.weight', 'DK'),
  Parameter('attn/v/kernel', 'self_attn.v_proj.weight', 'DK'),
  Parameter('attn/o/kernel', 'self_attn.o_proj.weight', 'QD'),
)
_QKV_BIAS = (
  Parameter('attn/q/bias', 'self_attn.q_proj.bias', 'Q'),
  Parameter('attn/k/bias', 'self_attn.k_proj.bias', 'K'),
  Parameter('attn/v/bias', 'self_attn.v_proj.bias', 'K'),
)
_QK_NORM = (
  Parameter('attn/q_norm/scale', 'self_attn.q_norm.weight', 'H'),
  Parameter('attn/k_norm/scale', 'self_attn.k_norm.weight', 'H'),
)
_MLP = (
  Parameter('mlp/gate/kernel', 'mlp.gate_proj.weight', 'DF'),
  Parameter('mlp/up/kernel', 'mlp.up_proj.weight', 'DF'),
  Parameter('mlp/down/kernel', 'mlp.down_proj.weight', 'FD'),
)
_MLP_NORM = Parameter('mlp_norm/scale', 'post_attention_layernorm.weight', 'D')
_LLAMA = (*_ATTENTION, _MLP_NORM, *_MLP)

_GEMMA = (
  *_ATTENTION,
  Parameter('post_attn_norm/scale', 'post_attention_layernorm.weight', 'D'),
  Parameter('mlp_norm/scale', 'pre_feedforward_layernorm.weight', 'D'),
  *_MLP,
  Parameter('post_mlp_norm/scale', 'post_feedforward_layernorm.weight', 'D'),
)

_QK_NORM_OF_ALL_HEADS = (
  Parameter('attn/q_norm/scale', 'self_attn.q_norm.weight', 'Q'),
  Parameter('attn/k_norm/scale', 'self_attn.k_norm.weight', 'K'),
)
_OLMO2 = (  # normalizes outputs only, and queries and keys before they are split into heads
  *_ATTENTION[1:],
  *_QK_NORM_OF_ALL_HEADS,
  Parameter('post_attn_norm/scale', 'post_attention_layernorm.weight', 'D'),
  *_MLP,
  Parameter('post_mlp_norm/scale', 'post_feedforward_layernorm.weight', 'D'),
)
_MIXTURE = (
  *_ATTENTION,
  _MLP_NORM,
  Parameter('mlp/router/kernel', 'mlp.gate.weight', 'DE'),
  Parameter('mlp/gate/kernel', 'mlp.experts.{}.gate_proj.weight', 'EDF'),
  Parameter('mlp/up/kernel', 'mlp.experts.{}.up_proj.weight', 'EDF'),
  Parameter('mlp/down/kernel', 'mlp.experts.{}.down_proj.weight', 'EFD'),
)
_JOINT = {'q_proj': 'qkv_proj', 'k_proj': 'qkv_proj', 'v_proj': 'qkv_proj'}
_JOINT |= {'gate_proj': 'gate_up_proj', 'up_proj': 'gate_up_proj'}
_PHI3 = tuple(
  parameter._replace(hf=re.sub('[a-z]+_proj', lambda m: _JOINT.get(m[0], m[0]), parameter.hf))
  for parameter in _LLAMA
)

FULL, SLIDING = 'full_attention', 'sliding_attention'
"""Kinds of layers, as in `layer_types` of config.json."""


@dataclasses.dataclass(frozen=True)
class Family:
  """Describes the decoders of a family.

  Attributes:
    architecture: Class in transformers.
    layer: Parameters of a layer (names without the layer's prefix). Biases and norms besides
      Llama's are used iff they are listed.
    defaults: Values that transformers assumes for fields missing in config.json. Of `OPTIONAL`
      fields those listed are read, the others refused.
    fixed: Fields of config.json with the only supported value; written on export.
    refused: Further fields of config.json that must be absent or false.
    windows: Layers with a sliding window: 'none', 'all' (if the file has a width), or 'some'.
    width: Field of config.json with the width of the MLP; in a mixture, that of one expert.
    activation: Activation of the gated MLP, 'silu' or 'gelu_tanh'.
    norm_offset: Norms multiply by `weight + norm_offset`.
    scaled_embeddings: Whether embeddings are multiplied by the square root of their width.
    gguf: `general.architecture` of GGUF files, '' if they are not read.
    gguf_pairs: Whether GGUF files interleave the rotary halves of q and k.
  """

  architecture: str
  layer: tuple[Parameter, ...] = _LLAMA
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  fixed: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'hidden_act': 'silu', 'attention_bias': False}
  )
  refused: tuple[str, ...] = ()
  windows: str = 'none'
  width: str = 'intermediate_size'
  activation: str = 'silu'
  norm_offset: float = 0.0
  scaled_embeddings: bool = False
  gguf: str = ''
  gguf_pairs: bool = False

  def axes(self, path: str) -> str:
    """Returns the axes of a layer's parameter `path`, '' if there is none."""
    return next((parameter.axes for parameter in self.layer if parameter.ours == path), '')

  def has(self, path: str) -> bool:
    """Returns whether a layer has the parameter `path`."""
    return bool(self.axes(path))

  @property
  def is_mixture(self) -> bool:
    """Returns whether each MLP is a mixture of experts."""
    return self.has('mlp/router/kernel')


OPTIONAL = ('sliding_window', 'attn_logit_softcapping', 'final_logit_softcapping', 'no_rope_layers')
"""Fields of config.json in which null, unlike an absent field, switches the default off."""

_DEFAULTS = {'rms_norm_eps': 1e-6, 'rope_theta': 10_000.0, 'tie_word_embeddings': False}
_QWEN = {**_DEFAULTS, 'max_position_embeddings': 32_768}
_GEMMA_DEFAULTS = {
  **_DEFAULTS,
  'num_key_value_heads': 4,
  'head_dim': 256,
  'query_pre_attn_scalar': 256,
  'tie_word_embeddings': True,
  'sliding_window': 4096,
}

_TOP_8 = {'num_experts_per_tok': 8, 'norm_topk_prob': False}

# Biases of Qwen2 are implied by its model_type, not by `attention_bias`.
_QWEN_FIXED = {'hidden_act': 'silu', 'attention_bias': False, 'use_sliding_window': False}
_gemma = functools.partial(
  Family,
  fixed={'hidden_activation': 'gelu_pytorch_tanh', 'attention_bias': False},
  refused=('use_bidirectional_attention',),
  windows='some',
  activation='gelu_tanh',
  norm_offset=1.0,
  scaled_embeddings=True,
)

FAMILIES = {
  'llama': Family(
    'LlamaForCausalLM',
    defaults={**_DEFAULTS, 'max_position_embeddings': 2048},
    refused=('use_sliding_window',),
    gguf='llama',
    gguf_pairs=True,
  ),
  'mistral': Family(
    'MistralForCausalLM',
    defaults={
      **_DEFAULTS,
      'max_position_embeddings': 131_072,
      'num_key_value_heads': 8,
      'sliding_window': 4096,
    },
    windows='all',
  ),
  'qwen2': Family(
    'Qwen2ForCausalLM',
    layer=_LLAMA + _QKV_BIAS,
    defaults={**_QWEN, 'sliding_window': 0},  # stored, and unused
    fixed=_QWEN_FIXED,
    gguf='qwen2',
  ),
  'qwen3': Family(
    'Qwen3ForCausalLM',
    layer=_LLAMA + _QK_NORM,
    defaults={**_QWEN, 'sliding_window': 0, 'head_dim': 128},
    fixed=_QWEN_FIXED,
    gguf='qwen3',
  ),
  'qwen3_moe': Family(
    'Qwen3MoeForCausalLM',
    layer=_MIXTURE + _QK_NORM,
    defaults={
      **_QWEN,
      **_TOP_8,
      'num_key_value_heads': 4,
      'sliding_window': 0,
      'num_experts': 128,
      'moe_intermediate_size': 768,
    },
    fixed={**_QWEN_FIXED, 'decoder_sparse_step': 1},  # every layer is a mixture
    refused=('mlp_only_layers',),
    width='moe_intermediate_size',
  ),
  'olmoe': Family(
    'OlmoeForCausalLM',
    layer=_MIXTURE + _QK_NORM_OF_ALL_HEADS,
    defaults={
      **_DEFAULTS,
      **_TOP_8,
      'rms_norm_eps': 1e-5,
      'max_position_embeddings': 4096,
      'num_experts': 64,
    },
    refused=('clip_qkv',),
  ),
  'gemma2': _gemma(
    'Gemma2ForCausalLM',
    layer=_GEMMA,
    defaults={
      **_GEMMA_DEFAULTS,
      'max_position_embeddings': 8192,
      'sliding_window_pattern': 2,  # every second layer has full attention
      'attn_logit_softcapping': 50.0,
      'final_logit_softcapping': 30.0,
    },
  ),
  'gemma3_text': _gemma(
    'Gemma3ForCausalLM',
    layer=_GEMMA + _QK_NORM,
    defaults={
      **_GEMMA_DEFAULTS,
      'max_position_embeddings': 131_072,
      'rope_theta': 1_000_000.0,
      'rope_local_base_freq': 10_000.0,  # of layers with a window, which ignore `rope_theta`
      'sliding_window_pattern': 6,
      'final_logit_softcapping': None,
    },
    gguf='gemma3',
  ),
  'smollm3': Family(
    'SmolLM3ForCausalLM',
    defaults={
      **_DEFAULTS,
      'max_position_embeddings': 32_768,
      'num_key_value_heads': 4,
      'rope_theta': 2_000_000.0,
      'tie_word_embeddings': True,
      'sliding_window': 0,
      'no_rope_layers': None,
      'no_rope_layer_interval': 4,
    },
    fixed=_QWEN_FIXED,
  ),
  'olmo2': Family(
    'Olmo2ForCausalLM',
    layer=_OLMO2,
    defaults={**_DEFAULTS, 'rms_norm_eps': 1e-5, 'max_position_embeddings': 2048},
    refused=('clip_qkv',),
  ),
  'phi3': Family(
    'Phi3ForCausalLM',
    layer=_PHI3,
    defaults={
      **_DEFAULTS,
      'rms_norm_eps': 1e-5,
      'max_position_embeddings': 4096,
      'sliding_window': None,
    },
    windows='all',
  ),
}
"""Families by `model_type` of config.json."""
