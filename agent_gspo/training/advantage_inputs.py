"""What estimators of advantages read, taken from a rollout."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from agent_gspo.algorithms.advantages.groups import group_ids
from agent_gspo.algorithms.advantages.inputs import Credit
from agent_gspo.rewards.communication import RewardTerms
from agent_gspo.teams.counts import Ledger
from agent_gspo.types import RolloutBatch

# Longest history that is compared (HGPO's K).
HISTORY = 3


def of_rollout(
  batch: RolloutBatch,
  ledger: Ledger,
  terms: RewardTerms,
  *,
  grouping: str,
  roles: Sequence[str],
  probability: np.ndarray,
) -> Credit:
  """One entry a message of the rollout.

  Args:
    batch: the conversations.
    ledger: its counts.
    terms: its rewards.
    grouping: whose rewards are compared, see `groups.group_ids`.
    roles: name of each agent's role: the functional groups.
    probability: float `[B]`, success probability of each question before this rollout.
  """
  agent_role = _ids(roles)
  observation, path, history = _what_was_seen(batch)
  return Credit(
    task=terms.task,
    costs=terms.costs,
    groups=group_ids(grouping, ledger.question, ledger.agent, ledger.turn),
    question=ledger.question,
    episode=ledger.episode,
    agent=ledger.agent,
    turn=ledger.turn,
    lengths=np.asarray([len(m.token_ids) for m in batch.messages]),
    silent=ledger.silent,
    roles=agent_role[ledger.agent],
    observation=observation,
    path=path,
    history=history,
    probability=np.asarray(probability, np.float32)[ledger.question],
  )


def _what_was_seen(batch: RolloutBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Ids of equal prompts, of equal prompts and messages, and of equal histories `[K, M]`.

  A step of an agent's history is a message that it heard or wrote; a silent one is a step too.
  """
  said = {(m.episode, m.agent, m.round): m.token_ids.tobytes() for m in batch.messages}
  steps: dict[tuple[int, int], list[Hashable]] = {}
  histories: list[list[Hashable]] = [[] for _ in range(HISTORY)]
  for m in batch.messages:
    own = steps.setdefault((m.episode, m.agent), [])
    own += [(author, said[m.episode, author, round_]) for author, round_ in m.heard]
    for k in range(HISTORY):
      histories[k].append((m.agent, *own[-(k + 1) :]))
    own.append((m.agent, m.token_ids.tobytes()))
  prompts = [m.prompt_ids.tobytes() for m in batch.messages]
  written = [(p, m.token_ids.tobytes()) for p, m in zip(prompts, batch.messages, strict=True)]
  return _ids(prompts), _ids(written), np.stack([_ids(h) for h in histories])


def _ids(values: Iterable[Hashable]) -> np.ndarray:
  """Int array, equal numbers for equal values, in order of first occurrence."""
  numbers: dict[Hashable, int] = {}
  return np.asarray([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
