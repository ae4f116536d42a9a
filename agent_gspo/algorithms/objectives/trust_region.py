"""Computes per-message clip ranges."""

from __future__ import annotations

from collections.abc import Callable

import chex
import numpy as np


def etr_clip_scale(
  advantages: chex.Array,
  solve_rate: chex.Array,
  *,
  by_advantage: float = 0.5,
  cap: float = 2.0,
  by_difficulty: float = 0.5,
) -> np.ndarray:
  """Computes a stand-in for elastic trust regions (arXiv 2601.03723): factor of the clip range.

  `(1 + by_advantage * min(abs(A), cap)) * (1 + by_difficulty * 4 p (1 - p))`, float32 `[M]`, at
  least 1: wider where the advantage is large and where the question is half solved. Multiplies
  `clip_low` and `clip_high` of the objective.

  Args:
    advantages: float32 `[M]`.
    solve_rate: `p` of the message's group, float32 `[M]`, see `groups.solve_rate`.
    by_advantage, cap, by_difficulty: Stand-ins.
  """
  chex.assert_equal_shape([advantages, solve_rate])
  strength = 1.0 + by_advantage * np.minimum(np.abs(advantages), cap)
  return strength * (1.0 + by_difficulty * 4.0 * solve_rate * (1.0 - solve_rate))


def no_clip_scale(advantages: chex.Array, solve_rate: chex.Array) -> np.ndarray:
  """Returns float32 ones `[M]`: one clip range for all."""
  del solve_rate
  return np.ones_like(advantages)


CLIP_SCALES: dict[str, Callable[[chex.Array, chex.Array], np.ndarray]] = {
  'none': no_clip_scale,
  'etr': etr_clip_scale,
}
"""Functions from advantages and solve rates `[M]` to clip-range factors `[M]`, by name."""
