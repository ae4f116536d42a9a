"""Where downloads, warm starts and compiled programs are kept between runs."""

from __future__ import annotations

import os
import pathlib

VARIABLE = 'AGENT_GSPO_CACHE'


def folder(given: str | os.PathLike | None = None) -> pathlib.Path:
  """`given`, else $AGENT_GSPO_CACHE, else `~/.cache/agent_gspo`; may not exist yet."""
  return pathlib.Path(given or os.environ.get(VARIABLE) or '~/.cache/agent_gspo').expanduser()
