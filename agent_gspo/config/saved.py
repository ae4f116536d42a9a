"""Empties the fields of a saved config that were filled in, so that they can be filled anew."""

from __future__ import annotations

import dataclasses

from agent_gspo.config.check import resolve
from agent_gspo.config.defaults import SECTIONS, Config

_EMPTY = {  # fields that `resolve` may fill in, by section, with their empty value
  name: {
    field.name: field.default
    for field in dataclasses.fields(SECTIONS[name])
    if field.default in ('', None)
  }
  for name in ('advantage', 'selection', 'objective', 'learner')
}


def emptied(config: Config) -> Config:
  """Returns the config with as few fields set as resolve to a run's `config`.

  So a flag that sets another algorithm or dtype changes all that follows from it.
  """
  own: dict[str, set[str]] = {name: set() for name in _EMPTY}  # fields that are kept
  while True:
    sections = {}
    for name, fields in _EMPTY.items():
      bare = {field: empty for field, empty in fields.items() if field not in own[name]}
      sections[name] = dataclasses.replace(getattr(config, name), **bare)
    found = dataclasses.replace(config, **sections)
    filled, before = resolve(found.to_dict()), sum(map(len, own.values()))
    for name, fields in _EMPTY.items():
      of = lambda resolved, field, name=name: getattr(getattr(resolved, name), field)
      own[name] |= {field for field in fields if of(filled, field) != of(config, field)}
    if sum(map(len, own.values())) == before:
      return found
