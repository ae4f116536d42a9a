"""Chooses which edges of a team to keep: at random, or learned on training questions.

The policy is fixed; only edges (and agents) are chosen. `K` edges, `N` agents, `B` questions per
batch. The learners see the scores of sampled graphs and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from agent_gspo.evaluation import variants
from agent_gspo.teams.team import Team
from agent_gspo.teams.topology import Edge

Play = Callable[[int, np.ndarray], np.ndarray]
"""`(first training question, bool masks [B, K]) -> task scores [B]`: one episode per mask."""

_LEARNING_RATE = 0.1
_PRUNE_EVERY = 5  # batches of `agent_prune`
# `agent_dropout`: questions per batch in the node and the edge stage, batches of the edge stage.
_NODE_BATCH, _EDGE_BATCH, _EDGE_BATCHES = 20, 10, 4


@dataclasses.dataclass(frozen=True)
class Ranking:
  """A learned ranking of a team's edges.

  Attributes:
    order: Indices of all edges, most important first; the edge that was pruned first is last.
    kept: Number of edges that the rule keeps.
    dropped: Agent that is dropped whatever the edges, or None.
  """

  order: list[int]
  kept: int
  dropped: int | None = None

  @property
  def edges(self) -> list[int]:
    """Returns the indices of the edges that the rule keeps."""
    return sorted(self.order[: self.kept])

  def closest(self, heard: Sequence[float], target: float) -> list[int]:
    """Returns the prefix of `order` whose received tokens come closest to a target.

    Args:
      heard: Tokens per question over each edge in the whole team, `[K]`.
      target: Tokens per question.
    """
    totals = np.cumsum([0.0, *(heard[edge] for edge in self.order)])
    return sorted(self.order[: int(np.abs(totals - target).argmin())])


def random_edges(team: Team, written: Mapping[str, float], target: float, seed: int) -> list[int]:
  """Returns random edges whose written tokens come closest to a target.

  Edges are removed in random order, with the agents that no longer reach the answer. Tokens are
  estimated as those that the remaining agents write in the whole team, `written` per question.

  Returns:
    Indices into `variants.edges(team)`; among ties the choice with most edges.

  Raises:
    ValueError: All agents vote, so none can be left out.
  """
  if team.decision == 'majority':
    raise ValueError(
      "team.decision='majority': every agent votes, so cutting edges saves no written tokens."
    )
  order = np.random.default_rng(seed).permutation(len(variants.edges(team))).tolist()
  best, gap = order, np.inf
  for cut in range(len(order) + 1):
    names = variants.pruned(team, order[cut:]).team.names
    distance = abs(sum(written[name] for name in names) - target)
    if distance < gap:
      best, gap = order[cut:], distance
  return sorted(best)


def agent_prune(
  play: Play,
  num_edges: int,
  *,
  seed: int,
  batches: int = 10,
  batch: int = 4,
  rate: float = 0.25,
) -> Ranking:
  """Ranks edges by AgentPrune (Zhang et al. 2024, arXiv 2410.02506): REINFORCE on edge logits.

  An edge is present with probability `sigmoid(logit)`; ascent on `mean_q score_q log P(graph_q)`
  with Adam and no baseline; every five batches the `round(alive * rate)` lowest logits
  (at least one) are pruned for good. The remaining graph is fixed, where the original keeps
  sampling. Probabilities start at 0.5, as in the original's mesh; its low-rank term is left out.
  A batch has `batch` training questions.
  """
  learner = _Logits(num_edges, _LEARNING_RATE, seed)
  for done in range(batches):
    learner.learn(play, done * batch, batch)
    if (done + 1) % _PRUNE_EVERY == 0:
      learner.prune(rate)
  return learner.ranking()


def agent_dropout(
  play: Play,
  edges: Sequence[Edge],
  num_agents: int,
  *,
  seed: int,
  node_batches: int = 2,
  rate: float = 0.25,
  learning_rate: float = _LEARNING_RATE,
  nuclear: float = 0.1,
  hinge: float = 0.1,
) -> Ranking:
  """Drops an agent, then ranks edges, by AgentDropout (Wang et al. 2025, arXiv 2503.18891).

  Node stage: `agent_prune`'s ascent; then the agent whose edges have the lowest sum of
  probabilities is dropped (never the last one, which decides). Edge stage: fresh logits,
  the ascent minus `nuclear * |P|_*` (low rank) and `hinge * max(0, |P - A|_F - 1)`, where `P`
  and `A` `[N, N]` are edge probabilities and the whole graph; the share `rate` of the lowest logits
  is pruned halfway and at the end. The node stage has `node_batches` batches of 20 training
  questions, the edge stage 4 of 10.
  Our own choices: both weights, the slack of 1, and one agent for all rounds instead of one per
  round, as the rounds of a topology are alike here.

  Returns:
    The ranking, with the agent to drop (None in a team of one or two).
  """
  learner, dropped = _Logits(len(edges), learning_rate, seed), None
  if num_agents > 2:
    for done in range(node_batches):
      learner.learn(play, done * _NODE_BATCH, _NODE_BATCH)
    degree = np.zeros(num_agents - 1)
    for (i, j), probability in zip(edges, learner.probabilities(), strict=True):
      for agent in (i, j):
        if agent < num_agents - 1:
          degree[agent] += probability
    dropped = int(degree.argmin())
  whole = jnp.zeros((num_agents, num_agents)).at[tuple(np.asarray(edges).T)].set(1.0)

  def penalty(logits: chex.Array) -> chex.Array:
    matrix = jnp.zeros_like(whole).at[tuple(np.asarray(edges).T)].set(jax.nn.sigmoid(logits))
    distance = jnp.sqrt(jnp.sum((matrix - whole) ** 2) + 1e-12)
    return nuclear * jnp.linalg.norm(matrix, 'nuc') + hinge * jax.nn.relu(distance - 1.0)

  learner = _Logits(len(edges), learning_rate, seed + 1, jax.grad(penalty))
  learner.leave([i for i, edge in enumerate(edges) if dropped in edge])
  for done in range(_EDGE_BATCHES):
    learner.learn(play, node_batches * _NODE_BATCH + done * _EDGE_BATCH, _EDGE_BATCH)
    if (done + 1) % (_EDGE_BATCHES // 2) == 0:
      learner.prune(rate)
  return dataclasses.replace(learner.ranking(), dropped=dropped)


class _Logits:
  """Edge logits `[K]` with their optimizer; starts at probability 0.5."""

  def __init__(self, num_edges: int, learning_rate: float, seed: int, penalty=None):
    self.logits = np.zeros(num_edges, np.float32)
    self.alive = np.ones(num_edges, bool)
    self._left: list[int] = []
    self._optimizer = optax.adam(learning_rate)
    self._state = self._optimizer.init(self.logits)
    self._rng = np.random.default_rng(seed)
    self._penalty = penalty or np.zeros_like

  def probabilities(self) -> np.ndarray:
    """Returns edge probabilities, float `[K]`, 0 for pruned edges."""
    return self.alive / (1 + np.exp(-self.logits))

  def learn(self, play: Play, first: int, count: int) -> None:
    """Takes one step on the graphs of `count` questions: `d log P(z) / d logit = z - p`."""
    p = self.probabilities()
    masks = self._rng.random((count, len(p))) < p
    scores = np.asarray(play(first, masks), float)
    gain = (scores[:, None] * (masks - p)).mean(axis=0) - self._penalty(self.logits)
    updates, self._state = self._optimizer.update(
      np.asarray(-gain * self.alive, np.float32), self._state
    )
    self.logits = np.asarray(optax.apply_updates(self.logits, updates))

  def prune(self, rate: float) -> None:
    """Removes the lowest of the remaining logits: a share, at least one; keeps at least one."""
    alive = np.flatnonzero(self.alive)
    leave = min(max(1, round(len(alive) * rate)), len(alive) - 1)
    self.leave(alive[np.argsort(self.logits[alive], kind='stable')[: max(leave, 0)]].tolist())

  def leave(self, edges: Sequence[int]) -> None:
    """Removes edges for good, in this order."""
    self.alive[list(edges)] = False
    self._left += edges

  def ranking(self) -> Ranking:
    """Ranks all edges: those alive by falling logit, then pruned ones, the last pruned first."""
    alive = np.flatnonzero(self.alive)
    first = alive[np.argsort(-self.logits[alive], kind='stable')].tolist()
    return Ranking(order=[*first, *reversed(self._left)], kept=len(first))
