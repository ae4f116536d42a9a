"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def find(package: str, homes: Mapping[str, str], name: str) -> Any:
  """What a package's `__getattr__` returns.

  Args:
    package: its name.
    homes: public name -> module that it lives in; a module of the package is its own home.
    name: that is looked up.

  Raises:
    AttributeError: it is none of the public names.
  """
  if name not in homes:
    raise AttributeError(f'module {package!r} has no attribute {name!r}')
  home = importlib.import_module(homes[name])
  return home if homes[name] == f'{package}.{name}' else getattr(home, name)
