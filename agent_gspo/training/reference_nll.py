"""Computes the per-episode NLL under the reference policy: the readability term of Optima."""

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
  """Returns the highest mean NLL of an episode's messages under the reference policy.

  See arXiv 2410.08115. Silent messages are left out.

  Args:
    setup: Run setup, with the reward and the shape of a micro-batch.
    programs: Programs that score packed messages, at the temperature of the rollout.
    state: Training state, with the reference policy.
    batch: `E` episodes.

  Returns:
    float64 `[E]`, nats per token; infinite where all messages were silent. None if the reward
    does not use it.
  """
  if not setup.config.reward.needs_reference:
    return None
  said = [m for m in batch.messages if not m.silent]
  reference = scoring.PolicyParams(state.reference, state.frozen)
  total = -scoring.message_logprobs(setup, programs, reference, said)
  mean = total / np.asarray([int(m.sampled.sum()) for m in said])
  highest = np.full(len(batch.episodes), -np.inf)
  np.maximum.at(highest, np.asarray([m.episode for m in said], int), mean)
  return np.where(np.isneginf(highest), np.inf, np.maximum(highest, 0.0))
