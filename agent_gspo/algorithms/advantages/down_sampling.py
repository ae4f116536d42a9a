"""D3S (arXiv 2509.22115): train on the messages and tokens that carry most signal.

`M` messages, `T` tokens. The defaults of shares are stand-ins.
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
  """`group_std`, of which each group keeps the subset with the largest `Var(A)`.

  That subset is always the lowest few and the highest few. Of equal advantages those first by
  episode, turn and agent count as lower; of equal subsets the one with more high ones is kept.

  Args:
    rewards: float32 `[M]`.
    groups, episode, turn, agent: int `[M]`.
    share: of each group that is kept, rounded, at least 2 messages (see `d3s_share`).
    std_floor, eps: of `group_std`.
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
  """How many of the `count` values of largest variance are taken from the low end."""
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
  """Float32 `[T]`, 1 for the tokens in the top `share` of `abs(A) * entropy`, else 0.

  The share is of all tokens given, rounded, at least one; ties with the last are kept. A
  message may lose all its tokens.

  Args:
    advantages: float32 `[M]`.
    entropies: float32 `[T]`, of the policy where the token was sampled, in nats.
    message_ids: int `[T]`, `0 .. M-1`.
    token_mask: float32 `[T]`, 0 for padding.
    share: 0 to 1.
  """
  chex.assert_equal_shape([entropies, message_ids, token_mask])
  score = jnp.abs(advantages)[message_ids] * entropies
  score = jnp.where(token_mask > 0, score, -jnp.inf)
  count = jnp.maximum(jnp.round(share * jnp.sum(token_mask)), 1).astype(int)
  last = -jnp.sort(-score)[count - 1]
  return (score >= last) * token_mask


def d3s_share(progress: float, *, start: float = 0.5, end: float = 1.0) -> float:
  """Share kept at `progress` (0 to 1) of the run: linear from aggressive to relaxed."""
  return start + (end - start) * min(max(progress, 0.0), 1.0)
