"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def find(package: str, homes: Mapping[str, str], name: str) -> Any:
  """Finds a public name of a package for its `__getattr__`; a module is its own home.

  Raises:
    AttributeError: it is none of the public names.
  """
  if name not in homes:
    raise AttributeError(f'module {package!r} has no attribute {name!r}')
  home = importlib.import_module(homes[name])
  return home if homes[name] == f'{package}.{name}' else getattr(home, name)
