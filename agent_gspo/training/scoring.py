"""Scores messages under a policy without sampling any: one packed forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.traverse_util
import numpy as np

from agent_gspo.evaluation import judgement
from agent_gspo.models.transformer import Params
from agent_gspo.packing import train_batches
from agent_gspo.teams.counts import count_messages
from agent_gspo.types import Message, RolloutBatch

if TYPE_CHECKING:
  from agent_gspo.training.programs import Programs
  from agent_gspo.training.setup import Setup
  from agent_gspo.training.state import TrainState


JUDGED = 256
"""Episodes of an evaluation whose authors' judgement is measured, at most."""


class PolicyParams(NamedTuple):
  """Parameters of a policy, flat, as `TrainState` has them."""

  trainable: Any
  frozen: Any

  @classmethod
  def of(cls, params: Params) -> PolicyParams:
    """Returns nested parameters in that form."""
    return cls(flax.traverse_util.flatten_dict(params), {})


def scored_message(episode: int, agent: int, prompt: np.ndarray, tokens: np.ndarray, **fields: Any):
  """Returns a message that nobody wrote, int `[P]` and `[W]`, to be scored."""
  return Message(
    episode=episode,
    agent=agent,
    round=0,
    layer=0,
    prompt_ids=prompt,
    token_ids=np.asarray(tokens, np.int32),
    logprobs=np.zeros(len(tokens), np.float32),
    ended=True,
    text='',
    **fields,
  )


def message_logprobs(
  setup: Setup,
  programs: Programs,
  policy: TrainState | PolicyParams,
  messages: Sequence[Message],
) -> np.ndarray:
  """Returns the log-probability of each message, float64 `[M]`, nats; see `token_logprobs`."""
  found = token_logprobs(setup, programs, policy, messages)
  return np.array([tokens.sum() for tokens in found])


def token_logprobs(
  setup: Setup,
  programs: Programs,
  policy: TrainState | PolicyParams,
  messages: Sequence[Message],
) -> list[np.ndarray]:
  """Returns log-probabilities of each message's sampled tokens, `M` float64 arrays, nats.

  Args:
    setup: Gives the shape of a micro-batch and the adapter of each agent.
    programs: Score packed messages, at a temperature of their own.
    policy: What is scored.
    messages: Prompts that they share are computed once.
  """
  micro_batches = train_batches.pack_messages(
    messages,
    pack_length=setup.config.learner.pack_length,
    micro_batch_size=setup.config.learner.micro_batch_size,
    adapters=setup.sharing.adapters,
  )
  scored = [x.astype(np.float64) for x in programs.logprobs(policy, micro_batches)]
  return train_batches.message_tokens(micro_batches, scored, len(messages))


def log_silence(
  setup: Setup, programs: Programs, policy: TrainState | PolicyParams, messages: Sequence[Message]
) -> np.ndarray:
  """Returns the log-probability that each author says nothing, float64 `[M]`, nats.

  Args:
    setup: The run.
    programs: As of `message_logprobs`.
    policy: The authors.
    messages: Whose prompts are read; equal prompts of an agent are computed once.
  """
  writers = setup.team.prompt_writers(setup.tokenizer)
  place: dict[tuple[int, bytes], int] = {}
  ends: list[Message] = []
  index = np.zeros(len(messages), int)
  for m, message in enumerate(messages):
    key = (message.agent, message.prompt_ids.tobytes())
    if key not in place:
      place[key] = len(place)
      writer = writers[message.agent]
      ends += [
        scored_message(place[key], message.agent, message.prompt_ids, np.asarray([stop]))
        for stop in writer.stop_ids
        if not writer.tail(stop)
      ]
    index[m] = place[key]
  totals = np.full(len(place), -np.inf)
  logprobs = message_logprobs(setup, programs, policy, ends)
  np.logaddexp.at(totals, [end.episode for end in ends], logprobs)
  return totals[index]


def judgement_figures(
  setup: Setup, programs: Programs, policy: TrainState | PolicyParams, batch: RolloutBatch
) -> dict[str, float]:
  """Returns how well authors tell relevant notes from irrelevant ones, see `judgement.figures`.

  The first message of each author counts, in the first `JUDGED` episodes. Empty for tasks without
  known relevance.
  """
  relevant = count_messages(batch).relevant
  counted = lambda m: not m.round and m.episode < JUDGED
  first = [m for m, x in enumerate(batch.messages) if counted(x) and relevant[m] >= 0]
  if not first or not {0, 1} <= {*relevant[first].tolist()}:
    return {}
  found = log_silence(setup, programs, policy, [batch.messages[m] for m in first])
  return judgement.figures(found, relevant[first] == 1)
