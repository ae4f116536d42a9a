"""Fields and sections that once had another name, so that who uses the old one is told the new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {
  'rollout.samples': 'rollout.group_size',
  'sampler.row_tokens': 'sampler.prefill_length',
  'learner.row_tokens': 'learner.pack_length',
  'learner.rows': 'learner.micro_batch_size',
  'reward.lambda_turn': 'budget.lambda_turn',
  'reward.lambda_rep': 'budget.lambda_rep',
  'reward.shape': 'reward.length_reward',
  'reward.shape_options': 'reward.length_reward_options',
  'warm_start': 'sft',
}
"""Old field or section -> new one."""


def told(field: str) -> str:
  """A sentence with the new name of a field such as 'rollout.samples'; '' if it has none."""
  for old, new in RENAMED.items():
    if f'{field}.'.startswith(f'{old}.'):
      return f'config.{field} is now config.{new}{field[len(old) :]}'
  return ''


def told_of_word(word: str) -> str:
  """The same of all fields or sections with this last name: 'samples', 'warm_start'."""
  return '; '.join(told(field) for field in RENAMED if field.rpartition('.')[2] == word)


def refuse(config: Mapping[str, Any], whose: str = '', remedy: str = '') -> None:
  """Refuses a config with fields of an earlier version.

  Args:
    config: nested, as a user or an earlier version wrote it.
    whose: what begins the message.
    remedy: what ends it.

  Raises:
    ValueError: names all these fields, old and new.
  """
  old = [told(field) for field in RENAMED if _holds(config, field.split('.'))]
  if old:
    raise ValueError(f'{whose}{"; ".join(old)}.{remedy}')


def _holds(config: Any, path: list[str]) -> bool:
  for key in path:
    if not isinstance(config, Mapping) or key not in config:
      return False
    config = config[key]
  return True
