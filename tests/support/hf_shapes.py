"""Defines fields of small config.json files."""

from __future__ import annotations

SHAPE = {
  'vocab_size': 97,
  'hidden_size': 48,
  'intermediate_size': 80,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'max_position_embeddings': 256,
}
LLAMA3 = {
  'rope_type': 'llama3',
  'rope_theta': 10_000.0,
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 32,
}
IDS = {'pad_token_id': 0, 'eos_token_id': 1}  # the defaults exceed the vocabulary
