"""Finds the official files of benchmarks on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Iterable

import pytest

from agent_gspo.tasks.data import sources
from agent_gspo.types import Question

_SHARED = pathlib.Path(__file__).parents[3] / 'shared' / 'data'
DATA = pathlib.Path(os.environ.get(sources.DATA_DIR_VARIABLE) or _SHARED)
needs_data = pytest.mark.skipif(
  not (DATA / 'MANIFEST.json').is_file(),
  reason=f'set ${sources.DATA_DIR_VARIABLE} to a folder with the official files',
)


def digest(questions: Iterable[Question]) -> str:
  """Returns a short hash of the fields of questions, in order."""
  seen = [(q.id, q.text, q.answer, q.notes, q.relevant, q.derivation) for q in questions]
  return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:12]
