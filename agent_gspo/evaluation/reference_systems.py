"""Evaluates baselines in the same harness, some at equal tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.evaluation import pruning, variants
from agent_gspo.evaluation.harness import Harness, digest
from agent_gspo.teams.team import Team

Told = dict[str, Any]
"""Fields of a baseline's record; `temperature` is also its sampling temperature."""
Chosen = tuple[str, variants.Variant, Told]
Baseline = Callable[[Harness, Mapping[str, Any], Mapping[str, Any]], Chosen]
"""`(harness, figures of the team, figures to match) -> (label, team, fields of the record)`."""
_Ranked = Callable[[Harness], pruning.Ranking]
_WRITTEN, _HEARD = 'tokens/written_per_question', 'tokens/heard_per_question'


def baseline(
  harness: Harness, name: str, whole: Mapping[str, Any], matched: Mapping[str, Any] | None = None
) -> dict[str, Any]:
  """Evaluates a baseline and returns its record.

  Args:
    harness: Team and questions.
    name: Baseline, one of `BASELINES`.
    whole: Figures of the team.
    matched: Figures of an evaluation whose tokens baselines at equal tokens match; the team's own
      by default.

  Raises:
    ValueError: The name is unknown, or the team has nothing to prune.
  """
  if name not in BASELINES:
    raise ValueError(f'baseline {name!r} is unknown; use {", ".join(BASELINES)}.')
  if name in _NEED_EDGES and not variants.edges(harness.team):
    raise ValueError(f'baseline {name!r}: the team has no edges to prune.')
  label, variant, told = BASELINES[name](harness, whole, whole if matched is None else matched)
  figures, _ = harness.run(label, variant, temperature=told.get('temperature'))
  return {**figures, **told}


def _single(harness: Harness, whole: Mapping[str, Any], matched: Mapping[str, Any]) -> Chosen:
  del whole, matched
  return 'single agent', variants.self_consistency(harness.team, 1), {}


def _self_consistency(
  harness: Harness, whole: Mapping[str, Any], matched: Mapping[str, Any]
) -> Chosen:
  """Chooses self-consistency with the single agent at the team's written tokens."""
  del whole
  # Greedy samples are identical.
  temperature = harness.temperature or harness.diverse_temperature
  target = matched[_WRITTEN]
  single = variants.self_consistency(harness.team, 1)
  one, _ = harness.run('one sample', single, temperature=temperature)
  tokens = one[_WRITTEN]
  k = variants.samples_at_equal_tokens(target, tokens)
  told = {'temperature': temperature, 'samples': k, 'tokens_of_one': tokens}
  variant = variants.self_consistency(harness.team, k)
  return f'self-consistency (k={k})', variant, {**told, 'target_tokens': target}


def _rewired(shape: str) -> Baseline:
  return lambda harness, whole, matched: (shape, variants.rewired(harness.team, shape), {})


def _random(harness: Harness, whole: Mapping[str, Any], matched: Mapping[str, Any]) -> Chosen:
  team, target = harness.team, matched[_WRITTEN]
  written = {agent['name']: agent['written_per_question'] for agent in whole['agents']}
  kept = pruning.random_edges(team, written, target, harness.seed)
  return (
    'random pruning',
    variants.pruned(team, kept),
    {'target_tokens': target} | _graph(team, kept),
  )


def _by_rule(rule: str, ranking: _Ranked) -> Baseline:
  """Returns a baseline with the edges that a rule keeps."""

  def choose(harness: Harness, whole: Mapping[str, Any], matched: Mapping[str, Any]) -> Chosen:
    del whole, matched
    found = ranking(harness)
    return _pruned(harness, rule, found, found.edges)

  return choose


def _by_rule_at_equal_tokens(rule: str, ranking: _Ranked) -> Baseline:
  """Returns a baseline with a rule's best edges, as many as match the received tokens."""

  def choose(harness: Harness, whole: Mapping[str, Any], matched: Mapping[str, Any]) -> Chosen:
    if _HEARD not in matched:
      raise ValueError(f'the evaluation to match does not count {_HEARD}: make it again.')
    found, team, target = ranking(harness), harness.team, matched[_HEARD]
    tokens = {(edge['author'], edge['reader']): edge['tokens'] for edge in whole['edges']}
    pairs = [(team.names[i], team.names[j]) for i, j in variants.edges(team)]
    kept = found.closest([tokens.get(pair, 0.0) for pair in pairs], target)
    label, variant, told = _pruned(harness, f'{rule} at equal tokens', found, kept)
    return label, variant, {**told, 'target_tokens_heard': target}

  return choose


def _prune_ranking(harness: Harness) -> pruning.Ranking:
  edges = variants.edges(harness.team)
  learn = lambda play: pruning.agent_prune(play, len(edges), seed=harness.seed)
  return _learnt(harness, 'ranking by agent_prune', learn)


def _dropout_ranking(harness: Harness) -> pruning.Ranking:
  team, edges = harness.team, variants.edges(harness.team)
  learn = lambda play: pruning.agent_dropout(play, edges, team.num_agents, seed=harness.seed)
  return _learnt(harness, 'ranking by agent_dropout', learn)


def _learnt(
  harness: Harness, name: str, learn: Callable[[pruning.Play], pruning.Ranking]
) -> pruning.Ranking:
  """Returns a ranking learned on training questions under the same terms, learning it if new."""
  if harness.terms:
    name = f'{name}, told {digest(dataclasses.asdict(harness.terms))}'
  if name not in harness.answers.learnt:
    graph = lambda mask: variants.pruned(harness.team, np.flatnonzero(mask).tolist())
    harness.answers.learn(name, dataclasses.asdict(learn(harness.play(graph))))
  return pruning.Ranking(**harness.answers.learnt[name])


def _pruned(harness: Harness, label: str, ranking: pruning.Ranking, kept: Sequence[int]) -> Chosen:
  team, out = harness.team, [] if ranking.dropped is None else [ranking.dropped]
  told = {**_graph(team, kept), 'dropped': [team.names[agent] for agent in out]}
  return label, variants.pruned(team, kept, out), told


def _graph(team: Team, kept: Sequence[int]) -> Told:
  edges = variants.edges(team)
  return {
    'edges_kept': [[team.names[i], team.names[j]] for i, j in (edges[e] for e in kept)],
    'edges_of_the_team': len(edges),
  }


BASELINES: Mapping[str, Baseline] = {
  'single': _single,
  'self_consistency': _self_consistency,
  **{shape: _rewired(shape) for shape in variants.SHAPES},
  'random_pruning': _random,
  'agent_prune': _by_rule('AgentPrune', _prune_ranking),
  'agent_prune_equal': _by_rule_at_equal_tokens('AgentPrune', _prune_ranking),
  'agent_dropout': _by_rule('AgentDropout', _dropout_ranking),
  'agent_dropout_equal': _by_rule_at_equal_tokens('AgentDropout', _dropout_ranking),
}

_NEED_EDGES = (
  'random_pruning',
  'agent_prune',
  'agent_prune_equal',
  'agent_dropout',
  'agent_dropout_equal',
)
