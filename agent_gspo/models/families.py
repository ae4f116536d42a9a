"""Describes each model family once: the parameters of a layer, its files and their defaults.

A new family is an entry of `FAMILIES`; `transformer.py` and the readers in `io` follow it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple


class Parameter(NamedTuple):
  """Names one parameter.

  Attributes:
    ours: Path in the parameter tree, joined by '/'.
    hf: Tensor name in Hugging Face checkpoints.
    axes: Size of each axis here: `D` embed_dim, `Q` all query heads, `K` all key heads, `H`
      head_dim, `F` mlp_dim, `V` vocab_size. Kernels are `[in, out]`, elsewhere transposed.
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
_LLAMA = (
  *_ATTENTION,
  Parameter('mlp_norm/scale', 'post_attention_layernorm.weight', 'D'),
  *_MLP,
)

_GEMMA3 = (
  *_ATTENTION,
  *_QK_NORM,
  Parameter('post_attn_norm/scale', 'post_attention_layernorm.weight', 'D'),
  Parameter('mlp_norm/scale', 'pre_feedforward_layernorm.weight', 'D'),
  *_MLP,
  Parameter('post_mlp_norm/scale', 'post_feedforward_layernorm.weight', 'D'),
)


@dataclasses.dataclass(frozen=True)
class Family:
  """Describes the decoders of a family.

  Attributes:
    architecture: Class in transformers.
    layer: Parameters of a layer (names without the layer's prefix). Biases and norms besides
      Llama's are used iff they are listed.
    defaults: Values that transformers assumes for fields missing in config.json.
    fixed: Fields of config.json with the only value that is computed; written on export.
    refused: Further fields of config.json that must be absent or false.
    attention: Kinds of layers: 'full_attention', maybe also 'sliding_attention'.
    activation: Activation of the gated MLP, 'silu' or 'gelu_tanh'.
    norm_offset: Norms multiply by `weight + norm_offset`.
    scaled_embeddings: Whether embeddings are multiplied by the square root of their width.
    gguf_pairs: Whether GGUF files interleave the rotary halves of q and k.
  """

  architecture: str
  layer: tuple[Parameter, ...] = _LLAMA
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  fixed: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'hidden_act': 'silu', 'attention_bias': False}
  )
  refused: tuple[str, ...] = ('mlp_bias', 'quantization_config')
  attention: tuple[str, ...] = ('full_attention',)
  activation: str = 'silu'
  norm_offset: float = 0.0
  scaled_embeddings: bool = False
  gguf_pairs: bool = False

  def has(self, path: str) -> bool:
    """Returns whether a layer has the parameter `path`."""
    return any(parameter.ours == path for parameter in self.layer)


_DEFAULTS = {'rms_norm_eps': 1e-6, 'rope_theta': 10_000.0, 'tie_word_embeddings': False}

# Biases of Qwen2 are implied by its model_type, not by `attention_bias`.
_QWEN_FIXED = {'hidden_act': 'silu', 'attention_bias': False, 'use_sliding_window': False}

FAMILIES = {
  'llama': Family(
    'LlamaForCausalLM',
    defaults={**_DEFAULTS, 'max_position_embeddings': 2048},
    refused=('mlp_bias', 'quantization_config', 'use_sliding_window', 'sliding_window'),
    gguf_pairs=True,
  ),
  'qwen2': Family(
    'Qwen2ForCausalLM',
    layer=_LLAMA + _QKV_BIAS,
    defaults={**_DEFAULTS, 'max_position_embeddings': 32_768},
    fixed=_QWEN_FIXED,
  ),
  'qwen3': Family(
    'Qwen3ForCausalLM',
    layer=_LLAMA + _QK_NORM,
    defaults={**_DEFAULTS, 'max_position_embeddings': 32_768, 'head_dim': 128},
    fixed=_QWEN_FIXED,
  ),
  'gemma3_text': Family(  # GGUF files, named 'gemma3', have a tokenizer that is not read
    'Gemma3ForCausalLM',
    layer=_GEMMA3,
    defaults={
      **_DEFAULTS,
      'max_position_embeddings': 131_072,
      'num_key_value_heads': 4,
      'head_dim': 256,
      'query_pre_attn_scalar': 256,
      'tie_word_embeddings': True,
      'rope_theta': 1_000_000.0,
      'rope_local_base_freq': 10_000.0,
      'sliding_window': 4096,
      'sliding_window_pattern': 6,  # every sixth layer has full attention
    },
    fixed={'hidden_activation': 'gelu_pytorch_tanh', 'attention_bias': False},
    refused=(
      'quantization_config',
      'attn_logit_softcapping',
      'final_logit_softcapping',
      'use_bidirectional_attention',
    ),
    attention=('full_attention', 'sliding_attention'),
    activation='gelu_tanh',
    norm_offset=1.0,
    scaled_embeddings=True,
  ),
}
"""Families by `model_type` of config.json, which is also `general.architecture` of GGUF files."""
