"""Computes what each message of an environment's episode earned its author."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

from agent_gspo.types import Message


def returns_to_go(messages: Sequence[Message], discount: float) -> np.ndarray | None:
  """Computes `R_m = r_m + discount * R_m'`, with `m'` the author's next message, float64 `[M]`.

  Returns None if no message has a reward, as without an environment.

  Args:
    messages: Messages in the order in which they were written, `[M]`.
    discount: Factor for each further turn of the author.
  """
  if all(message.reward is None for message in messages):
    return None
  later: dict[tuple[int, int], float] = collections.defaultdict(float)
  returns = np.zeros(len(messages))
  for m, message in reversed(list(enumerate(messages))):
    author = message.episode, message.agent
    later[author] = returns[m] = (message.reward or 0.0) + discount * later[author]
  return returns
