"""The shape of a decoder and the options of its modules."""

from __future__ import annotations

import dataclasses

MAX_LAYERS = 1000
"""More than any model has: a count beyond it comes from a damaged file."""

REMAT_KEEPS = ('nothing', 'attention')
"""Values of `model.remat_keeps`."""


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Llama 3's frequency-dependent RoPE scaling ("rope_type": "llama3")."""

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_positions: int


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Architecture of a Llama, Qwen2 or Qwen3 decoder.

  Attributes:
    family: 'llama', 'qwen2' or 'qwen3'; names the layout for import and export. What
      the families differ in is spelled out by `qkv_bias` and `qk_norm`.
    vocab_size: rows of the embedding (`V`).
    num_layers: decoder blocks.
    embed_dim: width of the residual stream (`D`).
    num_heads: query heads.
    num_kv_heads: key/value heads; divides `num_heads`.
    head_dim: width of one head, even.
    mlp_dim: width of the gated MLP.
    rope_theta: base of the rotary frequencies.
    rope_scaling: Llama 3's scaling of them, or None.
    norm_eps: epsilon of every RMSNorm.
    tie_embeddings: the LM head is the transposed embedding.
    qkv_bias: bias on the q, k and v projections (Qwen2).
    qk_norm: RMSNorm over each head of q and k (Qwen3).
    max_positions: longest context the model was made for, in tokens.
    dtype: of the operands of matrix products, and of keys and values; sums, the residual stream,
      norms, softmax and logits are float32.
    lora_rank: rank of the adapters on every projection, 0 for none.
    lora_alpha: adapters are scaled by `lora_alpha / lora_rank`.
    num_adapters: sets of adapters (`N`). With 1 all tokens go through it; with more, each
      token says by an id which one is its own.
    remat: recompute each block in the backward pass instead of storing it.
    remat_keeps: of `REMAT_KEEPS`, what of a block is stored nevertheless.
    attention: of `ops.attention.IMPLEMENTATIONS`.
    unsaid: ranges `(first, end)` of ids that no text shows (see `Tokenizer.unsaid`): their logits
      are minus infinity.
  """

  family: str
  vocab_size: int
  num_layers: int
  embed_dim: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_dim: int
  rope_theta: float = 10_000.0
  rope_scaling: RopeScaling | None = None
  norm_eps: float = 1e-5
  tie_embeddings: bool = True
  qkv_bias: bool = False
  qk_norm: bool = False
  max_positions: int = 2048
  dtype: str = 'float32'
  lora_rank: int = 0
  lora_alpha: float = 32.0
  num_adapters: int = 1
  remat: bool = False
  remat_keeps: str = 'nothing'
  attention: str = 'auto'
  unsaid: tuple[tuple[int, int], ...] = ()

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}.'
      )
    if self.head_dim % 2:
      raise ValueError(f'head_dim={self.head_dim} is odd; rotary embeddings need an even one.')
    if self.num_adapters != 1 and (self.num_adapters < 1 or not self.lora_rank):
      raise ValueError(
        f'num_adapters={self.num_adapters} with lora_rank={self.lora_rank}: there is at least one, '
        'and several need a rank above 0.'
      )

  def without_adapters(self) -> ModelConfig:
    return self.replace(lora_rank=0, num_adapters=1)

  def replace(self, **changes) -> ModelConfig:
    return dataclasses.replace(self, **changes)
