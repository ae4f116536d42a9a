"""Computes rotary position embeddings (Su et al. 2021, arXiv 2104.09864), half-split layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.models.config import ModelConfig, RopeScaling


def frequencies(config: ModelConfig, sliding: bool = False) -> np.ndarray:
  """Returns angular frequencies, float32 `[head_dim / 2]`, in radians per position.

  With `sliding` those of layers with a sliding window.
  """
  theta, scaling = config.rope_theta, config.rope_scaling
  if sliding:
    assert config.sliding is not None
    theta, scaling = config.sliding.rope_theta, config.sliding.rope_scaling
  exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
  freqs = (1.0 / np.float32(theta) ** exponent).astype(np.float32)
  if scaling is None:
    return freqs
  if not scaling.original_max_positions:
    return (freqs / np.float32(scaling.factor)).astype(np.float32)
  return _llama3(freqs, scaling)


def _llama3(freqs: np.ndarray, scaling: RopeScaling) -> np.ndarray:
  """Divides low frequencies `[head_dim / 2]` by `factor`, keeps high ones, blends those between."""
  wavelength = 2 * np.pi / freqs
  old = scaling.original_max_positions
  blend = (old / wavelength - scaling.low_freq_factor) / (
    scaling.high_freq_factor - scaling.low_freq_factor
  )
  blend = np.clip(blend, 0.0, 1.0)
  return ((1 - blend) * freqs / scaling.factor + blend * freqs).astype(np.float32)


def rotation(freqs: np.ndarray, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns cosine and sine, float32 `[B, T, 1, head_dim]`, of int32 positions `[B, T]`."""
  angle = positions[..., None].astype(jnp.float32) * freqs[None, None, :]
  angle = jnp.concatenate([angle, angle], axis=-1)[:, :, None, :]
  return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Rotates heads `x`, float32 `[B, T, heads, head_dim]`, by the results of `rotation`."""
  first, second = jnp.split(x, 2, axis=-1)
  turned = jnp.concatenate([-second, first], axis=-1)
  return x * cos + turned * sin
