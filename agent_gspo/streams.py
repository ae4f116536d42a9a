"""Names the random streams that the host draws from; jitted code has `sampling.keys`.

The generator of a draw is seeded by the run's seed (SFT: its own), the stream's number and the
identity of the draw, such as the step. So no draw depends on what was drawn before it.
"""

from __future__ import annotations

import numpy as np

SELECTION_ORDER = 0  # one order of the training questions
SFT_ORDER = 1  # order of demonstrations, by epoch
MINIBATCH_ORDER = 2  # order of a step's questions, by step
SFT_TERMS = 2  # prices and budgets in demonstrations, by SFT step; 2 keeps seeded runs unchanged
SELECTION = 6  # choices of a selection rule, by questions drawn
MUST_SPEAK = 8  # authors that may not be silent, by step and question
TERMS = 7  # prices and budgets in rollouts, by step and questions asked in it
SHARED_EPISODES = 9  # groups of other nodes, by step
MEMBER_WEIGHTS = 10  # seed of the weights of members from scratch
OPPONENTS = 8  # side that learns and opponent of each question, by step and questions asked in it


def generator(seed: int, stream: int, *draw: int) -> np.random.Generator:
  """Returns the generator of one draw from a stream.

  Args:
    seed: Seed of the run, or of SFT.
    stream: Number of the stream, one of this module's.
    *draw: Identity of the draw.
  """
  return np.random.default_rng((seed, stream, *draw))
