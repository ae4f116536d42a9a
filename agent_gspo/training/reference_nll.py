"""How unlikely the reference policy finds what a team said: the readability term of Optima."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent_gspo.packing import train_batches
from agent_gspo.training.state import TrainState
from agent_gspo.training.update import Updater
from agent_gspo.types import Message


def of_episodes(
  updater: Updater,
  state: TrainState,
  messages: Sequence[Message],
  num_episodes: int,
  *,
  row_tokens: int,
  rows: int,
  adapters: Sequence[int] | None = None,
) -> np.ndarray:
  """Highest mean loss of an episode's messages under the reference policy (arXiv 2410.08115).

  A silent message says nothing that could be unreadable and is left out.

  Args:
    updater: scores packed messages, at the temperature of the rollout.
    state: of the run, which holds the reference policy.
    messages: `M`, of the rollout.
    num_episodes: `E`.
    row_tokens, rows: shape of a micro-batch.
    adapters: the adapter of each agent, see `train_batches.pack_messages`.

  Returns:
    float64 `[E]`, nats a token; infinite where all were silent.
  """
  said = [m for m in messages if not m.silent]
  batches = train_batches.pack_messages(
    said, np.zeros(len(said)), row_tokens=row_tokens, rows=rows, adapters=adapters
  )
  total = np.zeros(len(said))
  for batch in updater.score(state.replace(trainable=state.reference), batches):
    message = np.take_along_axis(batch.message, batch.loss_message, axis=1)
    np.add.at(total, message, -batch.old_logprobs.astype(np.float64) * batch.loss_mask)
  mean = total / np.asarray([len(m.token_ids) for m in said])
  highest = np.full(num_episodes, -np.inf)
  np.maximum.at(highest, np.asarray([m.episode for m in said], int), mean)
  return np.where(np.isneginf(highest), np.inf, np.maximum(highest, 0.0))
