"""The benchmarks' official files, where this machine has them."""

from __future__ import annotations

import os
import pathlib

import pytest

from agent_gspo.tasks.data import sources

_SHARED = pathlib.Path(__file__).parents[3] / 'shared' / 'data'
DATA = pathlib.Path(os.environ.get(sources.DATA_DIR_VARIABLE) or _SHARED)
needs_data = pytest.mark.skipif(
  not (DATA / 'MANIFEST.json').is_file(),
  reason=f'set ${sources.DATA_DIR_VARIABLE} to a folder with the official files',
)
