"""Orders mini-batches, with multipliers from earlier ones for later ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Order:
  """Split of a rollout's messages into mini-batches, besides that between questions.

  Attributes:
    by_turn: Gives each turn its own mini-batches, the last turn first.
    multipliers: Function of `ratio`, `episode` and `turn` `[M]` that returns factors `[M]` of the
      advantages after the mini-batches of a turn; None for none. See `seeupo_multipliers`.
  """

  by_turn: bool = False
  multipliers: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None

  def updates(self, minibatches: int, turns: int) -> int:
    """Returns the number of optimizer steps for a rollout of so many turns."""
    return minibatches * (turns if self.by_turn else 1)


def seeupo_multipliers(
  ratio: np.ndarray,
  episode: np.ndarray,
  turn: np.ndarray,
  *,
  low: float = 0.8,
  high: float = 1.2,
) -> np.ndarray:
  """Computes SeeUPO's multipliers (arXiv 2602.06554), float32 `[M]`.

  `M_t = clip(prod_{u > t} clip(s_u, low, high), low, high)`. Turns are updated in reverse order;
  the advantage of a message in turn t is multiplied by the likelihood ratio of the later turns of
  its episode. Messages of one turn do not multiply each other; in the last turn `M` is 1.

  Args:
    ratio: New / old sequence ratio of each message after the update of its turn, float `[M]`.
      Ratios of turns not yet updated do not affect later turns.
    episode, turn: int `[M]`.
    low, high: Bounds of each factor and of the product.
  """
  episodes, row = np.unique(episode, return_inverse=True)
  turns, column = np.unique(turn, return_inverse=True)
  log_ratio = np.zeros((len(episodes), len(turns)))  # [E, turns]
  np.add.at(log_ratio, (row, column), np.log(np.clip(ratio, low, high)))
  from_here_on = np.cumsum(log_ratio[:, ::-1], axis=1)[:, ::-1]
  later = (from_here_on - log_ratio)[row, column]
  return np.clip(np.exp(later), low, high).astype(np.float32)


ORDERS = {
  'shuffled': Order(),
  'reverse_turns': Order(by_turn=True, multipliers=seeupo_multipliers),
}
