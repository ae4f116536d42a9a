"""Turn products of SeeUPO: what updating later turns first does to an earlier turn."""

from __future__ import annotations

import numpy as np


def seeupo_multipliers(
  ratio: np.ndarray,
  episode: np.ndarray,
  turn: np.ndarray,
  *,
  low: float = 0.8,
  high: float = 1.2,
) -> np.ndarray:
  """`M_t = clip(prod_{u > t} clip(s_u, low, high), low, high)` (arXiv 2602.06554), float32 `[M]`.

  Turns are updated in reverse order; the advantage of a message in turn t is multiplied by how
  much more likely the policy has become to play the later turns of the same episode as they were
  played. Messages of one turn do not multiply each other; in the last turn `M` is 1.

  Args:
    ratio: float `[M]`, new / old sequence ratio of each message after the update of its turn.
      Those of turns that are still to be updated do not matter to the turns after them.
    episode, turn: int `[M]`.
    low, high: bounds of each factor and of the product.
  """
  episodes, row = np.unique(episode, return_inverse=True)
  turns, column = np.unique(turn, return_inverse=True)
  log_ratio = np.zeros((len(episodes), len(turns)))
  np.add.at(log_ratio, (row, column), np.log(np.clip(ratio, low, high)))
  from_here_on = np.cumsum(log_ratio[:, ::-1], axis=1)[:, ::-1]
  later = (from_here_on - log_ratio)[row, column]
  return np.clip(np.exp(later), low, high).astype(np.float32)
