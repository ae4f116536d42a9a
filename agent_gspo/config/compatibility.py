"""Compares the config of a checkpoint with that of the run that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from agent_gspo.config import Config
from agent_gspo.tasks.data import sources
from agent_gspo.teams.team import Team, make_team
from agent_gspo.values import flatten

# Fields that may differ between the run that saved and the one that resumes: they change neither
# parameters nor later samples (mesh, sampler and the parts of a rollout: up to rounding).
_FREE = ('steps', 'mesh', 'sampler', 'evaluation', 'checkpoint', 'logging', 'rollout.parts')
_OF_MACHINE = tuple(f'task.options.{option}' for option in sources.OF_MACHINE)
# Fields that may change mid-run on request: those tuned when a run becomes unstable, the shape of
# micro-batches, which changes results by rounding alone, and the server that samples. Others would
# change samples, rewards, the shape of the state, or (schedule, warm-up) the steps already taken.
CHANGEABLE = (
  'learner.learning_rate',
  'learner.grad_clip',
  'learner.weight_decay',
  'learner.pack_length',
  'learner.micro_batch_size',
  'policy.learning_rates',
  'objective.clip_low',
  'objective.clip_high',
  'rollout.engine',
  'rollout.publish',
)
# Fields that determine the parameters. The vocabulary of a model from scratch consists of the words
# of its task and prompts.
MODEL = ('model.source', 'model.lora_rank', 'model.lora_alpha', 'policy.sharing', 'policy.frozen')
_VOCABULARY = (
  'task.name', 'task.options', 'team.agents', 'team.roles', 'team.decision',
  'team.addressing', 'budget.told_words'
)  # fmt: skip
# Fields that `largest_left` follows from; the vocabulary has each number up to it.
_NUMBERS = ('team', 'budget.mode', 'budget.target_high', 'budget.budget_episode', 'evaluation.told')


def as_json(config: Config) -> dict[str, Any]:
  """Returns a config as read back from disk (tuples become lists)."""
  return json.loads(json.dumps(config.to_dict()))


def check_changeable(fields: Collection[str]) -> None:
  """Raises ValueError if one of the fields may not change mid-run."""
  for field in fields:
    if field not in CHANGEABLE:
      raise ValueError(
        f'allow_changes={field}: in mid-run only {", ".join(CHANGEABLE)} may change. Use '
        'another --workdir.'
      )


def changes(
  saved: Mapping[str, Any], step: int, config: Config, allowed: Collection[str]
) -> list[dict[str, Any]]:
  """Returns the changes since a checkpoint: `step`, `field`, `old` and `new` value of each.

  Raises:
    ValueError: Another field differs, one that matters for resuming.
  """
  free: tuple[str, ...] = _FREE
  if config.learner.schedule != 'constant':  # the rate depends on the number of steps
    free = tuple(field for field in _FREE if field != 'steps')
  differing = _differences(saved, config, lambda field: not _under(field, free))
  _refuse(step, {field: pair for field, pair in differing.items() if field not in allowed})
  _check_numbers(saved, step, config)
  return [
    {'step': step, 'field': field, 'old': old, 'new': new}
    for field, (old, new) in differing.items()
  ]


def check_model(saved: Mapping[str, Any], step: int, config: Config) -> None:
  """Raises ValueError if a config describes another model than a checkpoint's, see `changes`."""
  fields: tuple[str, ...] = MODEL
  if config.model.source.startswith('random:'):
    fields += _VOCABULARY
  roles = {**saved['team']['roles'], **config.team.roles}  # the models of roles that learn
  learn = [
    name
    for name in roles
    if any(of.get(name, {}).get('trains') for of in (saved['team']['roles'], config.team.roles))
  ]
  fields += tuple(f'team.roles.{name}.{field}' for name in learn for field in ('model', 'trains'))
  if config.policy.sharing != 'shared':  # agents determine the order of adapters
    fields += ('team.agents',)
  _refuse(step, _differences(saved, config, lambda field: _under(field, fields)))
  _check_numbers(saved, step, config)


def largest_left(team: Team, budget: Mapping[str, Any], told: Sequence[float]) -> int:
  """Returns the largest number that a cue can contain, see `Team.told_left`; -1 if none has any.

  Args:
    team: Team whose roles have the cues.
    budget: Section `budget` of the config.
    told: Prices or budgets of evaluations.
  """
  if not any(role.shows_left for role in team.roles):
    return -1
  if budget['mode'] != 'target':
    return team.max_tokens
  return round(max(budget['target_high'], budget['budget_episode'], *told))


def _check_numbers(saved: Mapping[str, Any], step: int, config: Config) -> None:
  """Raises ValueError if a vocabulary from scratch has other numbers than a checkpoint's."""
  left = lambda of: largest_left(make_team(of['team']), of['budget'], of['evaluation']['told'])
  if config.model.source.startswith('random:') and left(saved) != left(config.to_dict()):
    _refuse(step, _differences(saved, config, lambda field: _under(field, _NUMBERS)))


def check_team(saved: Mapping[str, Any], step: int, config: Config) -> None:
  """Raises ValueError if a checkpoint's team is another than a config's."""
  _refuse(step, _differences(saved, config, lambda field: _under(field, ('team',))))


def _differences(
  saved: Mapping[str, Any], config: Config, matters: Callable[[str], bool]
) -> dict[str, tuple[Any, Any]]:
  """Returns the fields that differ, not by machine: value in the checkpoint, and value now."""
  theirs, ours = flatten(saved), flatten(as_json(config))
  return {
    field: (theirs.get(field), ours.get(field))
    for field in sorted((theirs.keys() | ours.keys()) - {*_OF_MACHINE})
    if theirs.get(field) != ours.get(field) and matters(field)
  }


def _refuse(step: int, differing: Mapping[str, tuple[Any, Any]]) -> None:
  if not differing:
    return
  told = '; '.join(
    f'{field}: {old!r} in the checkpoint, {new!r} now' for field, (old, new) in differing.items()
  )
  remedy = 'Use its config, or another --workdir.'
  if differing.keys() <= set(CHANGEABLE):
    remedy = f'Use its config, or change it in mid-run: --allow_changes={",".join(differing)}.'
  raise ValueError(f'the checkpoint at step {step} was made with another config ({told}). {remedy}')


def _under(field: str, sections: tuple[str, ...]) -> bool:
  return any(f'{field}.'.startswith(f'{section}.') for section in sections)
