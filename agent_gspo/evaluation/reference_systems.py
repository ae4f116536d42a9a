"""Evaluates baselines in the harness of the team, some at equal tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_gspo.environments.base import Environment
from agent_gspo.evaluation import pruning, variants
from agent_gspo.evaluation.harness import Harness, digest
from agent_gspo.models.text.tokenizer import UnknownWordError
from agent_gspo.teams.team import Team

Told = dict[str, Any]
"""Fields of a baseline's record; `temperature` is also its sampling temperature."""
Chosen = tuple[str, variants.Variant, Told]
Baseline = Callable[[Harness, Mapping[str, Any], Mapping[str, Any]], Chosen]
"""`(harness, figures of the team, figures to match) -> (label, team, fields of the record)`."""
_WRITTEN, _HEARD = 'tokens/written_per_question', 'tokens/heard_per_question'


def baseline(
  harness: Harness, name: str, whole: Mapping[str, Any], matched: Mapping[str, Any] | None = None
) -> dict[str, Any]:
  """Evaluates a baseline and returns its record.

  Baselines at equal tokens match those of `matched`, figures of an evaluation; by default those of
  the team, `whole`.

  Raises:
    ValueError: The name is unknown, the team has nothing to prune, the baseline removes agents or
      turns that an environment needs, or `incoming` has words that a vocabulary lacks.
  """
  if name not in BASELINES:
    raise ValueError(f'baseline {name!r} is unknown; use {", ".join(BASELINES)}.')
  if harness.task.converse and name not in variants.SHAPES:
    raise ValueError(
      f'baseline {name!r}: task {harness.task.name!r} has episodes of its own, in which each agent '
      f'has its place. Use {", ".join(variants.SHAPES)}.'
    )
  prunes = name not in ('single', 'self_consistency', *variants.SHAPES)
  if prunes and not variants.edges(harness.team):
    raise ValueError(f'baseline {name!r}: the team has no edges to prune.')
  label, variant, told = BASELINES[name](harness, whole, whole if matched is None else matched)
  task, topology = harness.task, variant.team.topology
  if isinstance(task, Environment) and (lacking := task.needs(topology)):
    raise ValueError(f'baseline {name!r}: task {task.name!r} needs {lacking}.')
  try:
    figures, _ = harness.run(label, variant, temperature=told.get('temperature'))
  except UnknownWordError as error:
    new = _readers(variant.team) - _readers(harness.team)
    fields = ' and '.join(f'team.roles.{role}.incoming' for role in sorted(new))
    remedy = f' Give {fields} known words with spaces around.' if new else ''
    raise ValueError(f'baseline {name!r}: {error}{remedy}') from error
  return {**figures, **told}


def _readers(team: Team) -> set[str]:
  """Returns the roles whose agents read teammates."""
  turns = [(agent, round_) for round_, _, layer in team.turns for agent in layer]
  return {team.roles[agent].name for agent, at in turns if team.topology.reads(agent, at)}


def _self_consistency(
  harness: Harness, whole: Mapping[str, Any], matched: Mapping[str, Any]
) -> Chosen:
  """Chooses self-consistency with the single agent at the team's written tokens."""
  # Greedy samples are identical.
  temperature = harness.options.temperature or harness.diverse_temperature
  target = matched[_WRITTEN]
  single = variants.self_consistency(harness.team, 1)
  one, _ = harness.run('one sample', single, temperature=temperature)
  tokens = one[_WRITTEN]
  k = variants.samples_at_equal_tokens(target, tokens)
  told = {'temperature': temperature, 'samples': k, 'tokens_of_one': tokens}
  variant = variants.self_consistency(harness.team, k)
  return f'self-consistency (k={k})', variant, {**told, 'target_tokens': target}


def _random(harness: Harness, whole: Mapping[str, Any], matched: Mapping[str, Any]) -> Chosen:
  team, target = harness.team, matched[_WRITTEN]
  written = {agent['name']: agent['written_per_question'] for agent in whole['agents']}
  kept = pruning.random_edges(team, written, target, harness.seed)
  told = {'target_tokens': target, **_graph(team, kept)}
  return 'random pruning', variants.pruned(team, kept), told


def _learned(rule: str, name: str, at_equal_tokens: bool = False) -> Baseline:
  """Returns the baseline of a rule, key of `_RULES`, that ranks edges on training questions.

  With `at_equal_tokens` it keeps as many of the best edges as match the received tokens, instead of
  those that the rule keeps.
  """

  def choose(harness: Harness, whole: Mapping[str, Any], matched: Mapping[str, Any]) -> Chosen:
    if at_equal_tokens and _HEARD not in matched:
      raise ValueError(f'the evaluation to match does not count {_HEARD}: make it again.')
    found, team = _ranking(harness, rule), harness.team
    kept, label, target = found.edges, name, {}
    if at_equal_tokens:
      label, target = f'{name} at equal tokens', {'target_tokens_heard': matched[_HEARD]}
      tokens = {(edge['author'], edge['reader']): edge['tokens'] for edge in whole['edges']}
      edges = variants.edges(team)
      stays = [found.dropped not in edge for edge in edges]
      pairs = [(team.names[i], team.names[j]) for i, j in edges]
      heard = [tokens.get(pair, 0.0) * stay for pair, stay in zip(pairs, stays, strict=True)]
      kept = [edge for edge in found.closest(heard, matched[_HEARD]) if stays[edge]]
    out = [] if found.dropped is None else [found.dropped]
    told = {**_graph(team, kept), 'dropped': [team.names[agent] for agent in out]}
    return label, variants.pruned(team, kept, out), {**told, **target}

  return choose


_RULES: Mapping[str, Callable[[pruning.Play, Team, int], pruning.Ranking]] = {
  'agent_prune': lambda play, team, seed: pruning.agent_prune(
    play, len(variants.edges(team)), seed=seed
  ),
  'agent_dropout': lambda play, team, seed: pruning.agent_dropout(
    play, variants.edges(team), team.num_agents, seed=seed
  ),
}


def _ranking(harness: Harness, rule: str) -> pruning.Ranking:
  """Returns a ranking learned on training questions under the same terms, cached in `answers`."""
  name = f'ranking by {rule}'
  if harness.terms:
    name = f'{name}, told {digest(dataclasses.asdict(harness.terms))}'
  if name not in harness.answers.learnt:
    graph = lambda mask: variants.pruned(harness.team, np.flatnonzero(mask).tolist())
    found = _RULES[rule](harness.play(graph), harness.team, harness.seed)
    harness.answers.learn(name, dataclasses.asdict(found))
  return pruning.Ranking(**harness.answers.learnt[name])


def _graph(team: Team, kept: Sequence[int]) -> Told:
  edges = variants.edges(team)
  return {
    'edges_kept': [[team.names[i], team.names[j]] for i, j in (edges[e] for e in kept)],
    'edges_of_the_team': len(edges),
  }


BASELINES: Mapping[str, Baseline] = {
  'single': lambda harness, *_: ('single agent', variants.self_consistency(harness.team, 1), {}),
  'self_consistency': _self_consistency,
  **{
    shape: lambda harness, *_, shape=shape: (shape, variants.rewired(harness.team, shape), {})
    for shape in variants.SHAPES
  },
  'random_pruning': _random,
  'agent_prune': _learned('agent_prune', 'AgentPrune'),
  'agent_prune_equal': _learned('agent_prune', 'AgentPrune', at_equal_tokens=True),
  'agent_dropout': _learned('agent_dropout', 'AgentDropout'),
  'agent_dropout_equal': _learned('agent_dropout', 'AgentDropout', at_equal_tokens=True),
}
