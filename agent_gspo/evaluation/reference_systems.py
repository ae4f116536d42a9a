"""Simpler systems in the same harness: what a team must beat, at how many tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.evaluation import pruning, variants
from agent_gspo.evaluation.harness import Harness
from agent_gspo.teams.team import Team

Told = dict[str, Any]
"""What a record says of a baseline; `temperature` is also that of its sampling."""
Chosen = tuple[str, variants.Variant, Told]


def baseline(
  harness: Harness, name: str, whole: Mapping[str, Any], target: float | None = None
) -> dict[str, Any]:
  """The record of a baseline.

  Args:
    harness: the team and its questions.
    name: of `BASELINES`.
    whole: figures of the team.
    target: tokens written a question that baselines at equal tokens should come close to;
      those of the team by default.

  Raises:
    ValueError: the name is unknown, or the team has nothing to prune.
  """
  if name not in BASELINES:
    raise ValueError(f'baseline {name!r} is unknown; use {", ".join(BASELINES)}.')
  if name in _NEED_EDGES and not variants.edges(harness.team):
    raise ValueError(f'baseline {name!r}: the team has no edges to prune.')
  target = whole['tokens/written_per_question'] if target is None else target
  label, variant, told = BASELINES[name](harness, whole, target)
  figures, _ = harness.run(label, variant, temperature=told.get('temperature'))
  return {**figures, **told}


def _single(harness: Harness, whole: Mapping[str, Any], target: float) -> Chosen:
  del whole, target
  return 'single agent', variants.self_consistency(harness.team, 1), {}


def _self_consistency(harness: Harness, whole: Mapping[str, Any], target: float) -> Chosen:
  """As many samples of the single agent as write what the team writes."""
  del whole
  # Greedy samples are all the same one.
  temperature = harness.temperature or harness.diverse_temperature
  single = variants.self_consistency(harness.team, 1)
  one, _ = harness.run('one sample', single, temperature=temperature)
  tokens = one['tokens/written_per_question']
  k = variants.samples_at_equal_tokens(target, tokens)
  told = {'temperature': temperature, 'samples': k, 'tokens_of_one': tokens}
  variant = variants.self_consistency(harness.team, k)
  return f'self-consistency (k={k})', variant, {**told, 'target_tokens': target}


def _rewired(shape: str) -> Callable[[Harness, Mapping[str, Any], float], Chosen]:
  return lambda harness, whole, target: (shape, variants.rewired(harness.team, shape), {})


def _random(harness: Harness, whole: Mapping[str, Any], target: float) -> Chosen:
  team = harness.team
  written = {agent['name']: agent['written_per_question'] for agent in whole['agents']}
  kept = pruning.random_edges(team, written, target, harness.seed)
  return (
    'random pruning',
    variants.pruned(team, kept),
    {'target_tokens': target} | _graph(team, kept),
  )


def _agent_prune(harness: Harness, whole: Mapping[str, Any], target: float) -> Chosen:
  del whole, target
  team = harness.team
  learn = lambda play: pruning.agent_prune(play, len(variants.edges(team)), seed=harness.seed)
  kept = _learnt(harness, 'agent_prune', learn)
  return 'AgentPrune', variants.pruned(team, kept), _graph(team, kept)


def _agent_dropout(harness: Harness, whole: Mapping[str, Any], target: float) -> Chosen:
  del whole, target
  team, edges = harness.team, variants.edges(harness.team)
  learn = lambda play: pruning.agent_dropout(play, edges, team.num_agents, seed=harness.seed)
  kept, dropped = _learnt(harness, 'agent_dropout', learn)
  out = [] if dropped is None else [dropped]
  told = {**_graph(team, kept), 'dropped': [team.names[agent] for agent in out]}
  return 'AgentDropout', variants.pruned(team, kept, out), told


def _learnt(harness: Harness, name: str, learn: Callable[[pruning.Play], Any]) -> Any:
  """What was learnt before, or is learnt now, on training questions."""
  if name not in harness.answers.learnt:
    graph = lambda mask: variants.pruned(harness.team, np.flatnonzero(mask).tolist())
    harness.answers.learn(name, learn(harness.play(graph)))
  return harness.answers.learnt[name]


def _graph(team: Team, kept: Sequence[int]) -> Told:
  edges = variants.edges(team)
  return {
    'edges': [[team.names[i], team.names[j]] for i, j in (edges[e] for e in kept)],
    'edges_of_the_team': len(edges),
  }


BASELINES: Mapping[str, Callable[[Harness, Mapping[str, Any], float], Chosen]] = {
  'single': _single,
  'self_consistency': _self_consistency,
  **{shape: _rewired(shape) for shape in variants.SHAPES},
  'random_pruning': _random,
  'agent_prune': _agent_prune,
  'agent_dropout': _agent_dropout,
}
"""Name -> `(harness, figures of the team, tokens to match) -> (label, team, what to tell)`."""

_NEED_EDGES = ('random_pruning', 'agent_prune', 'agent_dropout')
