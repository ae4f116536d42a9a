"""Implements D3S (arXiv 2509.22115): trains on the messages and tokens with most signal.

`M` messages, `T` tokens. The default shares are stand-ins.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np

from agent_gspo.algorithms.advantages.group_baselines import group_std
from agent_gspo.algorithms.advantages.inputs import Advantage


def d3s(
  rewards: chex.Array,
  groups: chex.Array,
  episode: chex.Array,
  turn: chex.Array,
  agent: chex.Array,
  *,
  share: float = 0.5,
  std_floor: float = 0.0,
  eps: float = 1e-6,
) -> Advantage:
  """Computes `group_std` and keeps the subset of each group with the largest `Var(A)`.

  That subset always consists of the lowest and the highest values. Ties rank by episode, turn and
  agent; of equal subsets the one with more high values is kept.

  Args:
    rewards: float32 `[M]`.
    groups, episode, turn, agent: int `[M]`.
    share: Kept share of each group, rounded, at least 2 messages (see `d3s_share`).
    std_floor, eps: Options of `group_std`.
  """
  values = group_std(rewards, groups, std_floor=std_floor, eps=eps)
  exact = np.asarray(values, np.float64)
  order = np.lexsort((agent, turn, episode, exact, groups))
  kept = np.zeros(len(exact), np.float32)
  for members in np.split(order, np.flatnonzero(np.diff(np.asarray(groups)[order])) + 1):
    count = min(max(2, round(share * len(members))), len(members))
    low = _lows_of_widest(exact[members], count)
    kept[members[:low]] = 1.0
    kept[members[len(members) - (count - low) :]] = 1.0
  return Advantage(values=values, kept=kept)


def _lows_of_widest(ascending: np.ndarray, count: int) -> int:
  """Returns how many of the `count` values with the largest variance are from the low end."""
  variances = []
  for low in range(count + 1):
    chosen = np.r_[ascending[:low], ascending[len(ascending) - (count - low) :]]
    variances.append(np.var(chosen))
  return int(np.argmax(np.round(variances, 9)))


def d3s_token_weights(
  advantages: chex.Array,
  entropies: chex.Array,
  message_ids: chex.Array,
  token_mask: chex.Array,
  *,
  share: float = 0.5,
) -> jax.Array:
  """Selects tokens in the top `share` of `abs(A) * entropy`: 1, others 0, float32 `[T]`.

  The share is of all given tokens, rounded, at least one; ties with the last are kept. A message
  may lose all its tokens.

  Args:
    advantages: float32 `[M]`.
    entropies: Policy entropy at each token in nats, float32 `[T]`.
    message_ids: Message of each token, int `[T]`, `0 .. M-1`.
    token_mask: 0 for padding, float32 `[T]`.
    share: Share of tokens, 0 to 1.
  """
  chex.assert_equal_shape([entropies, message_ids, token_mask])
  score = jnp.abs(advantages)[message_ids] * entropies
  score = jnp.where(token_mask > 0, score, -jnp.inf)
  count = jnp.maximum(jnp.round(share * jnp.sum(token_mask)), 1).astype(int)
  last = -jnp.sort(-score)[count - 1]
  return (score >= last) * token_mask


def d3s_share(progress: float, *, start: float = 0.5, end: float = 1.0) -> float:
  """Returns the share kept at `progress` (0 to 1) of the run, linear from `start` to `end`."""
  return start + (end - start) * min(max(progress, 0.0), 1.0)
