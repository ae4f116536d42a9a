"""Lists the supported model families and builds their `ModelConfig`."""

from __future__ import annotations

from typing import Any

from agent_gspo.models.config import ModelConfig

# Name in config.json and GGUF -> class in transformers.
FAMILIES = {
  'llama': 'LlamaForCausalLM',
  'qwen2': 'Qwen2ForCausalLM',
  'qwen3': 'Qwen3ForCausalLM',
}


def make_config(family: str, where: str, **shape: Any) -> ModelConfig:
  """Returns the architecture of a family's model; `where` names its file in messages.

  Raises:
    ValueError: Fields are inconsistent.
  """
  try:
    return ModelConfig(
      family=family, qkv_bias=family == 'qwen2', qk_norm=family == 'qwen3', **shape
    )
  except ValueError as error:
    raise ValueError(f'{where}: {error}') from error
