"""Forces non-silent messages in some episodes, with importance weights (`rollout.must_speak`).

In the first `n` of the `G` episodes of a group one message, drawn from `K` turns, may not be
silent: its first token is sampled from the policy `pi`, conditioned on not being silent. Relative
to `pi`, the density of a group's episodes is then

    q(e) / pi(e) = 1 - n / G + n / G * mean_k s_k(e),

where `s_k` is 0 if message `k` is silent, `1 / pi(message k is not silent)` if it is not, and 1 if
the turn was not taken. `pi / q` weights all advantages of an episode, forced or not, since readers
saw the message too: the balance heuristic (Veach and Guibas 1995), unbiased and at most
`G / (G - n)`. Ratios begin at 1, since log-probs of messages are those without the mask.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from agent_gspo import streams
from agent_gspo.sampling.keys import question_number
from agent_gspo.teams.policies import Turn
from agent_gspo.teams.sharing import Sharing
from agent_gspo.teams.team import Team
from agent_gspo.types import RolloutBatch


def audible_turns(team: Team, sharing: Sharing) -> tuple[tuple[int, int], ...]:
  """Returns the `(agent, round)` of trained agents whose messages another agent reads."""
  return tuple(
    (agent, round_)
    for round_, _, layer in team.turns
    for agent in layer
    if sharing.learns(agent) and team.hearers(agent, round_)
  )


@dataclasses.dataclass(frozen=True)
class Exploration:
  """Draws the messages of a training step that may not be silent.

  Attributes:
    turns: `(agent, round)` of the turns drawn from, `K`.
    count: Episodes of a group with such a message, `n`.
    group_size: Episodes of a group, `G`.
    seed: Seed of the run.
    step: Finished training steps.
  """

  turns: tuple[tuple[int, int], ...]
  count: int
  group_size: int
  seed: int
  step: int

  def must_speak(self, turn: Turn) -> bool:
    """Returns whether the message of a turn may not be silent."""
    if turn.sample >= self.count:
      return False
    number = question_number(turn.question.id)
    rng = streams.generator(self.seed, streams.MUST_SPEAK, self.step, number)
    order = rng.permutation(len(self.turns))  # each turn once before any repeats
    return (turn.agent, turn.round) == self.turns[order[turn.sample % len(self.turns)]]

  def weighted(self, batch: RolloutBatch) -> RolloutBatch:
    """Returns the episodes of a rollout with their importance weights."""
    place = {turn: k for k, turn in enumerate(self.turns)}
    density = np.ones((batch.num_episodes, len(self.turns)))  # s_k(e)
    for m in batch.messages:
      if (m.agent, m.round) in place:
        assert m.log_speak is not None, 'the policy measures it for all messages or none'
        spoken = 0.0 if m.silent else np.exp(min(-m.log_speak, 700.0))
        density[m.episode, place[m.agent, m.round]] = spoken
    share = self.count / self.group_size
    weight = 1.0 / (1.0 - share + share * density.mean(axis=1))  # [E]
    messages = (dataclasses.replace(m, weight=float(weight[m.episode])) for m in batch.messages)
    return dataclasses.replace(batch, messages=tuple(messages))
