"""Counts the floating-point operations of a decoder's matrix products."""

from __future__ import annotations

from agent_gspo.models.config import ModelConfig


def body_weights(config: ModelConfig) -> int:
  """Counts the weights in matrix products of a token (no embedding, no LM head).

  In a mixture these are the router and the experts of the token, not all stored experts.
  """
  heads = config.num_heads * config.head_dim
  attention = config.embed_dim * (2 * heads + 2 * config.num_kv_heads * config.head_dim)
  mlp = 3 * config.embed_dim * config.mlp_dim
  if config.num_experts:
    mlp = config.experts_per_token * mlp + config.embed_dim * config.num_experts
  return config.num_layers * (attention + mlp)


def forward(config: ModelConfig, positions: int, seen: float, predicted: int) -> float:
  """Returns the FLOPs of a forward pass.

  Each of `positions` attends to `seen` keys on average; `predicted` of them get logits.
  """
  near = sum(config.sliding.layers) if config.sliding else 0  # layers with a sliding window
  keys = seen * (config.num_layers - near)
  keys += min(seen, config.sliding.width) * near if config.sliding else 0
  scores = 4.0 * config.num_heads * config.head_dim * keys
  head = 2.0 * config.embed_dim * config.vocab_size
  return positions * (2.0 * body_weights(config) + scores) + predicted * head


def update(config: ModelConfig, positions: int, seen: float, predicted: int) -> float:
  """Returns the FLOPs of a forward and backward pass; recomputation is not counted.

  Under LoRA the base weights have no gradients. Takes the arguments of `forward`.
  """
  weights = forward(config, positions, 0, predicted)
  scores = forward(config, positions, seen, predicted) - weights
  return (2 if config.lora_rank else 3) * weights + 3 * scores
