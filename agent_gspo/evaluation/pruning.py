"""Which edges of a team to keep: at random, or learnt on training questions.

The policy stays as it is; only edges (and agents) are chosen. `K` edges, `N` agents,
`B` questions of a batch. The learners see the scores of sampled graphs and nothing else.
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
"""`(first training question, bool masks [B, K]) -> task scores [B]`: one conversation each."""


@dataclasses.dataclass(frozen=True)
class Ranking:
  """What a learner says of a team's edges.

  Attributes:
    order: indices of all edges, those that matter most first, those that left first last.
    kept: how many of them the rule keeps.
    dropped: the agent that leaves whatever the edges, None for none.
  """

  order: list[int]
  kept: int
  dropped: int | None = None

  @property
  def edges(self) -> list[int]:
    """Indices of those that the rule keeps."""
    return sorted(self.order[: self.kept])

  def closest(self, heard: Sequence[float], target: float) -> list[int]:
    """As many edges, the first ones, as bring the tokens heard closest to a target.

    Args:
      heard: tokens a question of each edge `[K]`, in the whole team.
      target: tokens a question.
    """
    totals = np.cumsum([0.0, *(heard[edge] for edge in self.order)])
    return sorted(self.order[: int(np.abs(totals - target).argmin())])


def random_edges(team: Team, written: Mapping[str, float], target: float, seed: int) -> list[int]:
  """Random edges, as many as bring the tokens written closest to a target.

  Edges leave in a random order, and with them the agents that no longer reach the answer.
  Tokens are estimated as those that the remaining agents write in the whole team.

  Args:
    team: all agents and edges.
    written: mean tokens a question of each agent, by name.
    target: tokens a question to come close to.
    seed: of the order.

  Returns:
    Indices into `variants.edges(team)`; of equally good choices the one with most edges.

  Raises:
    ValueError: all agents vote, so none can be left out.
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
  prune_every: int = 5,
  rate: float = 0.25,
  learning_rate: float = 0.1,
) -> Ranking:
  """AgentPrune's rule (Zhang et al. 2024, arXiv 2410.02506): REINFORCE on edge logits.

  An edge is there with probability `sigmoid(logit)`; ascent on `mean_q score_q log P(graph_q)`
  with Adam and no baseline; every `prune_every` batches the `round(alive * rate)` lowest logits
  (at least one) leave for good. What remains is kept as it is, where the original would go on
  sampling. The original's mesh starts at probability 0.5, its low-rank term is left out.

  Args:
    play: gives scores of graphs on training questions.
    num_edges: `K`.
    seed: of the sampled graphs.
    batches: of questions.
    batch: questions of one.
    prune_every: batches between prunings.
    rate: share of the alive edges that leave.
    learning_rate: of Adam.
  """
  learner = _Logits(num_edges, learning_rate, seed)
  for done in range(batches):
    learner.learn(play, done * batch, batch)
    if (done + 1) % prune_every == 0:
      learner.prune(rate)
  return learner.ranking()


def agent_dropout(
  play: Play,
  edges: Sequence[Edge],
  num_agents: int,
  *,
  seed: int,
  node_batches: int = 2,
  node_batch: int = 20,
  edge_batches: int = 4,
  edge_batch: int = 10,
  rate: float = 0.25,
  learning_rate: float = 0.1,
  nuclear: float = 0.1,
  hinge: float = 0.1,
) -> Ranking:
  """AgentDropout's rule (Wang et al. 2025, arXiv 2503.18891): first an agent, then edges.

  Node stage: `agent_prune`'s ascent; then the agent whose edges have the lowest sum of
  probabilities is dropped (never the last one, which decides). Edge stage: fresh logits,
  the ascent less `nuclear * |P|_*` (low rank) and `hinge * max(0, |P - A|_F - 1)`, where `P`
  and `A` `[N, N]` are edge probabilities and the whole graph; the lowest logits leave twice.
  Stand-ins: both weights, the slack of 1, and one agent for all rounds rather than one a round,
  as the rounds of a topology are alike here.

  Args:
    play: gives scores of graphs on training questions.
    edges: `[K]`, see `variants.edges`.
    num_agents: `N`.
    seed: of the sampled graphs.
    node_batches: of the node stage.
    node_batch: questions of one.
    edge_batches: of the edge stage.
    edge_batch: questions of one.
    rate: share of the alive edges that leave at each pruning.
    learning_rate: of Adam.
    nuclear: weight of the nuclear norm.
    hinge: weight of the distance.

  Returns:
    With the agent to drop, None in a team of one or two.
  """
  learner, dropped = _Logits(len(edges), learning_rate, seed), None
  if num_agents > 2:
    for done in range(node_batches):
      learner.learn(play, done * node_batch, node_batch)
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
  for done in range(edge_batches):
    learner.learn(play, node_batches * node_batch + done * edge_batch, edge_batch)
    if (done + 1) % max(1, edge_batches // 2) == 0:
      learner.prune(rate)
  return dataclasses.replace(learner.ranking(), dropped=dropped)


class _Logits:
  """Edge logits `[K]` with their optimiser; starts at probability 0.5."""

  def __init__(self, num_edges: int, learning_rate: float, seed: int, penalty=None):
    self.logits = np.zeros(num_edges, np.float32)
    self.alive = np.ones(num_edges, bool)
    self._left: list[int] = []
    self._optimizer = optax.adam(learning_rate)
    self._state = self._optimizer.init(self.logits)
    self._rng = np.random.default_rng(seed)
    self._penalty = penalty or np.zeros_like

  def probabilities(self) -> np.ndarray:
    """Float `[K]`, 0 for edges that have left."""
    return self.alive / (1 + np.exp(-self.logits))

  def learn(self, play: Play, first: int, count: int) -> None:
    """One step on the graphs of `count` questions: `d log P(z) / d logit = z - p`."""
    p = self.probabilities()
    masks = self._rng.random((count, len(p))) < p
    scores = np.asarray(play(first, masks), float)
    gain = (scores[:, None] * (masks - p)).mean(axis=0) - self._penalty(self.logits)
    updates, self._state = self._optimizer.update(
      np.asarray(-gain * self.alive, np.float32), self._state
    )
    self.logits = np.asarray(optax.apply_updates(self.logits, updates))

  def prune(self, rate: float) -> None:
    """The lowest logits of those alive leave: a share of them, at least one, never the last."""
    alive = np.flatnonzero(self.alive)
    leave = min(max(1, round(len(alive) * rate)), len(alive) - 1)
    self.leave(alive[np.argsort(self.logits[alive], kind='stable')[: max(leave, 0)]].tolist())

  def leave(self, edges: Sequence[int]) -> None:
    """Some edges leave for good, one after another."""
    self.alive[list(edges)] = False
    self._left += edges

  def ranking(self) -> Ranking:
    """Of all edges: those alive by falling logit, then those that left, the last one first."""
    alive = np.flatnonzero(self.alive)
    first = alive[np.argsort(-self.logits[alive], kind='stable')].tolist()
    return Ranking(order=[*first, *reversed(self._left)], kept=len(first))
