"""Defines the shape of a decoder and the options of its modules."""

from __future__ import annotations

import dataclasses

from agent_gspo.models.families import FAMILIES, Family

MAX_LAYERS = 1000
"""Upper bound on the layer count; a larger count comes from a damaged file."""

REMAT_KEEPS = ('nothing', 'attention')
"""Values of `model.remat_keeps`."""


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Divides rotary frequencies by `factor`: low ones (Llama 3), or all without further fields."""

  factor: float
  low_freq_factor: float = 0.0
  high_freq_factor: float = 0.0
  original_max_positions: int = 0


@dataclasses.dataclass(frozen=True)
class SlidingWindow:
  """Describes the layers in which a token attends to the last tokens of its sequence only.

  Attributes:
    width: Tokens that are attended to, the token itself included.
    layers: True for each layer with the window, `num_layers` bools.
    rope_theta: Base of the rotary frequencies in these layers.
    rope_scaling: Scaling of these frequencies, or None.
  """

  width: int
  layers: tuple[bool, ...]
  rope_theta: float
  rope_scaling: RopeScaling | None = None


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Architecture of a decoder.

  Attributes:
    family: Key of `FAMILIES`; determines the parameters of a layer.
    vocab_size: Rows of the embedding (`V`).
    num_layers: Decoder blocks.
    embed_dim: Width of the residual stream (`D`).
    num_heads: Query heads.
    num_kv_heads: Key/value heads; divides `num_heads`.
    head_dim: Width of one head, even.
    mlp_dim: Width of the gated MLP; in a mixture, that of one expert.
    num_experts: Experts of each MLP; 0 for a dense one.
    experts_per_token: Experts that a token is routed to.
    norm_topk: Whether the weights of these experts are normalized to sum to 1.
    rope_theta: Base of the rotary frequencies.
    rope_scaling: Scaling of these frequencies, or None.
    rope_layers: True for each layer with rotary positions, `num_layers` bools; None for all.
    sliding: Layers with a sliding window, or None.
    query_scalar: Queries are scaled by its inverse square root; None for `head_dim`.
    attention_cap: Attention scores are `cap * tanh(scores / cap)`; None for no cap.
    logit_cap: Likewise for logits.
    norm_eps: Epsilon of every RMSNorm.
    tie_embeddings: Whether the LM head is the transposed embedding.
    max_positions: Longest supported context, in tokens.
    dtype: Dtype of matrix product operands, keys and values; sums, the residual stream, norms,
      softmax and logits are float32.
    lora_rank: Rank of the adapters on every projection, 0 for none. Routers and experts have none.
    lora_alpha: Adapters are scaled by `lora_alpha / lora_rank`.
    num_adapters: Sets of adapters (`N`). With 1 all tokens use it; with more, each token has an
      adapter id.
    remat: Whether the backward pass recomputes each block instead of storing it.
    remat_keeps: Activations of a block stored despite `remat`, one of `REMAT_KEEPS`.
    attention: One of `ops.attention.IMPLEMENTATIONS`.
    unsaid: Ranges `(first, end)` of ids that decode to no text (see `Tokenizer.unsaid`); their
      logits are minus infinity.
  """

  family: str
  vocab_size: int
  num_layers: int
  embed_dim: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_dim: int
  num_experts: int = 0
  experts_per_token: int = 0
  norm_topk: bool = False
  rope_theta: float = 10_000.0
  rope_scaling: RopeScaling | None = None
  rope_layers: tuple[bool, ...] | None = None
  sliding: SlidingWindow | None = None
  query_scalar: int | None = None
  attention_cap: float | None = None
  logit_cap: float | None = None
  norm_eps: float = 1e-5
  tie_embeddings: bool = True
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
    if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
      raise ValueError(
        f'experts_per_token={self.experts_per_token} must be from 1 to '
        f'num_experts={self.num_experts}.'
      )
    if self.num_adapters != 1 and (self.num_adapters < 1 or not self.lora_rank):
      raise ValueError(
        f'num_adapters={self.num_adapters} with lora_rank={self.lora_rank}: must be at least 1, '
        'and 1 without a rank above 0.'
      )

  @property
  def spec(self) -> Family:
    return FAMILIES[self.family]

  def without_adapters(self) -> ModelConfig:
    return self.replace(lora_rank=0, num_adapters=1)

  def replace(self, **changes) -> ModelConfig:
    return dataclasses.replace(self, **changes)
