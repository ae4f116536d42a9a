"""In which order mini-batches are trained, and what earlier ones do to later ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Order:
  """How the messages of a rollout are cut into mini-batches, besides between questions.

  Attributes:
    by_turn: whether each turn of the conversations has mini-batches of its own, the last first.
    multipliers: from `ratio`, `episode` and `turn` `[M]`, factors `[M]` of the advantages, taken
      when the mini-batches of a turn are over; None for no factors. See `seeupo_multipliers`.
  """

  by_turn: bool = False
  multipliers: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None

  def updates(self, minibatches: int, turns: int) -> int:
    """Optimiser steps that a rollout of so many turns leads to."""
    return minibatches * (turns if self.by_turn else 1)


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


ORDERS = {
  'shuffled': Order(),
  'reverse_turns': Order(by_turn=True, multipliers=seeupo_multipliers),
}
