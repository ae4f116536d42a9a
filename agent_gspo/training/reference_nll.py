"""How unlikely the reference policy finds what a team said: the readability term of Optima."""

from __future__ import annotations

import numpy as np

from agent_gspo.training import scoring
from agent_gspo.training.programs import Programs
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState
from agent_gspo.types import RolloutBatch


def of_episodes(
  setup: Setup, programs: Programs, state: TrainState, batch: RolloutBatch
) -> np.ndarray | None:
  """Highest mean loss of an episode's messages under the reference policy (arXiv 2410.08115).

  A silent message says nothing that could be unreadable and is left out.

  Args:
    setup: says whether the reward asks for it, and the shape of a micro-batch.
    programs: score packed messages, at the temperature of the rollout.
    state: of the run, which holds the reference policy.
    batch: `E` conversations.

  Returns:
    float64 `[E]`, nats a token; infinite where all were silent. None where the reward does not
    ask for it.
  """
  if not setup.reward.needs_reference:
    return None
  said = [m for m in batch.messages if not m.silent]
  reference = scoring.PolicyParams(state.reference, state.frozen)
  total = -scoring.message_logprobs(setup, programs, reference, said)
  mean = total / np.asarray([int(m.sampled.sum()) for m in said])
  highest = np.full(len(batch.episodes), -np.inf)
  np.maximum.at(highest, np.asarray([m.episode for m in said], int), mean)
  return np.where(np.isneginf(highest), np.inf, np.maximum(highest, 0.0))
