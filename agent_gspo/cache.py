"""Locates the cache of downloads, SFT checkpoints and compiled programs."""

from __future__ import annotations

import os
import pathlib

VARIABLE = 'AGENT_GSPO_CACHE'


def folder(given: str | os.PathLike | None = None) -> pathlib.Path:
  """Returns `given`, else $AGENT_GSPO_CACHE, else `~/.cache/agent_gspo`; may not exist yet.

  Raises:
    ValueError: The home folder is unknown.
  """
  named = os.fspath(given or os.environ.get(VARIABLE) or '~/.cache/agent_gspo')
  found = os.path.expanduser(named)
  if found.startswith('~'):
    raise ValueError(
      f'{named} has no home folder on this machine; must be a folder; set ${VARIABLE} to one.'
    )
  return pathlib.Path(found)
