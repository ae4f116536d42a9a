"""Computes advantages of messages by named estimators.

An estimator is a pure function of arrays `[M]`. Its positional parameters are named after the
fields of `AdvantageInputs` that it reads; its keyword parameters are options with the paper's
defaults. To add one, write the function and a line in `ADVANTAGES`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import chex
import numpy as np

from agent_gspo import plugins
from agent_gspo.algorithms.advantages import (
  group_baselines,
  hierarchical,
  message_worth,
  turn_level,
)
from agent_gspo.algorithms.advantages.groups import centred
from agent_gspo.algorithms.advantages.inputs import Advantage, AdvantageInputs
from agent_gspo.algorithms.options import COSTS, AdvantageOptions

ADVANTAGES: dict[str, Callable[..., np.ndarray | Advantage]] = {
  'per_component': group_baselines.per_component,
  'group_std': group_baselines.group_std,
  'group_mean': group_baselines.group_mean,
  'batch_std': group_baselines.batch_std,
  'rloo': group_baselines.rloo,
  'reinforce_pp': group_baselines.reinforce_pp,
  'reinforce_pp_baseline': group_baselines.reinforce_pp_baseline,
  'seeupo': group_baselines.seeupo,
  'opo': group_baselines.opo,
  'spo_single': group_baselines.spo_single,
  'ngrpo': group_baselines.ngrpo,
  'agent_turn': turn_level.agent_turn,
  'gigpo': turn_level.gigpo,
  'hgpo': turn_level.hgpo,
  'hiper': hierarchical.hiper,
  'mars2': turn_level.mars2,
  'matchtir': turn_level.matchtir,
  'counterfactual': turn_level.counterfactual,
  'advantage_alignment': turn_level.advantage_alignment,
  'rae': group_baselines.rae,
  'worth': message_worth.worth,
  'potential': message_worth.potential,
  'shapley': message_worth.worth,
  'replay': message_worth.replay,
  'spo_segment': message_worth.spo_segment,
  'hill': message_worth.hill,
}

# Estimator -> rule by which the value of messages is divided, see `attribution.coalitions`.
GAINS = {
  'worth': 'leave_one_out',
  'potential': 'potential',
  'shapley': 'shapley',
  'replay': 'leave_one_out',
  'spo_segment': 'segment',
  'hill': 'hint',
}

# Fields that are None for other estimators.
_GAINED = 'gain', 'plain_gain', 'plain_costs', 'silence_costs', 'gold'

# Estimators that compare or sum costs of single messages: episode costs would count twice.
SUMS_OWN_COSTS = ('agent_turn', 'hiper', 'mars2', 'advantage_alignment', *GAINS)


def advantage(
  inputs: AdvantageInputs, name: str, *, costs: str = 'inside', **options: Any
) -> Advantage:
  """Computes the advantages of a rollout's messages with a named estimator.

  Args:
    inputs: Arrays of the rollout.
    name: Key of `ADVANTAGES`.
    costs: 'inside' passes `task - costs` to the estimator. 'apart' passes only the task score and
      subtracts the costs, centered within `inputs.groups`, from the result: lambda then keeps its
      meaning under any estimator (in a group of one there is no price). A message dropped for
      its advantage of 0 is kept again if its price is not 0.
    **options: Options of the estimator, see `options_of`.

  Raises:
    ValueError: `costs` is unknown, or a field of `inputs` that the estimator reads is None.
  """
  _check(inputs)
  if costs not in COSTS:
    raise ValueError(f'costs={costs!r} is unknown; use one of {", ".join(COSTS)}.')
  if costs == 'inside':
    return _estimate(inputs, name, options)
  free = _estimate(dataclasses.replace(inputs, costs=np.zeros_like(inputs.costs)), name, options)
  price = centred(inputs.costs, inputs.groups)
  back = (free.values == 0) & (price != 0)
  kept = np.maximum(free.kept, back)
  return dataclasses.replace(free, values=free.values - price, kept=kept)


def _estimate(inputs: AdvantageInputs, name: str, options: Mapping[str, Any]) -> Advantage:
  fields = {field: getattr(inputs, field) for field in fields_of(name)}
  for field, value in fields.items():
    if value is None:
      raise ValueError(f'advantage {name!r} reads inputs.{field}, which is None.')
  count = len(inputs.task)
  found = plugins.call('advantage.name', name, estimator(name), **fields, **options)
  if not isinstance(found, Advantage):
    found = Advantage(values=found, kept=np.ones(count))
  where, old, new = f'advantage.name={name!r}', fields.get('baselines'), found.baselines
  vector = lambda what, values, count, each: plugins.vector(
    f'{where}{what}', values, count, each
  ).astype(np.float32)
  if new is None:
    new = old
  elif old is None:
    raise plugins.PluginError(
      f'{where} returned baselines, but does not read `baselines`: add that parameter.'
    )
  else:
    new = vector(', as baselines,', new, len(old), 'role')
  return dataclasses.replace(
    found,
    values=vector('', found.values, count, 'message'),
    kept=vector(', as kept,', found.kept, count, 'message'),
    baselines=new,
  )


def estimator(name: str) -> Callable[..., np.ndarray | Advantage]:
  """Returns a named estimator: key of `ADVANTAGES`, or 'module:function' of a user.

  Raises:
    ValueError: No such estimator.
  """
  return plugins.find(ADVANTAGES, name, 'advantage.name')


def check(name: str, options: Mapping[str, Any]) -> None:
  """Checks the parameters of a user's estimator, and the options of any.

  Raises:
    ValueError: A positional parameter is not a field of `AdvantageInputs`, an option of the
      function has no default, or an option that is set is invalid.
  """
  known = [f.name for f in dataclasses.fields(AdvantageInputs)]
  if name not in GAINS:  # gains are not measured for others
    known = [field for field in known if field not in _GAINED]
  known += ['rewards', 'own_rewards', 'episode_rewards']
  plugins.check_parameters(name, 'advantage.name', estimator(name), known, defaults=True)
  plugins.check_options('advantage.options', name, options, options_of(name))


def fields_of(name: str) -> tuple[str, ...]:
  """Returns the fields of `AdvantageInputs` that an estimator reads."""
  return plugins.inputs_of(estimator(name))


def options_of(name: str) -> dict[str, Any]:
  """Returns the options of an estimator with their defaults."""
  return plugins.options_of(estimator(name))


def settings(section: AdvantageOptions) -> dict[str, Any]:
  """Returns the options of a section's estimator; unset ones have their defaults."""
  return {**options_of(section.name), **section.options}


def _check(inputs: AdvantageInputs) -> None:
  others = ('history', 'baselines')
  values = (getattr(inputs, f.name) for f in dataclasses.fields(inputs) if f.name not in others)
  columns = [value for value in values if value is not None]
  chex.assert_rank(columns, 1)
  chex.assert_equal_shape(columns)
  chex.assert_type([inputs.task, inputs.costs], float)
  if inputs.history is not None:
    chex.assert_shape(inputs.history, (None, len(inputs.task)))
