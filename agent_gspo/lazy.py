"""Imports public names of a package on first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def find(package: str, homes: Mapping[str, str], name: str) -> Any:
  """Imports a public name of a package, for its `__getattr__`.

  Raises:
    AttributeError: The name is not public.
  """
  if name not in homes:
    raise AttributeError(f'module {package!r} has no attribute {name!r}')
  home = importlib.import_module(homes[name])
  return home if homes[name] == f'{package}.{name}' else getattr(home, name)
