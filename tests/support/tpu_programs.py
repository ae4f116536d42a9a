"""Compiles for TPUs in a process of its own; no TPU is needed, only libtpu."""

import importlib.util
import json
import os
import subprocess
import sys

import micro_run
import pytest

FOLDER = os.environ.get('AGENT_GSPO_LIBTPU', '')  # that holds the package, beside the environment

needs_compiler = pytest.mark.skipif(
  not FOLDER and importlib.util.find_spec('libtpu') is None,
  reason='no libtpu (it holds the compiler) is installed; AGENT_GSPO_LIBTPU may name its folder',
)


def printed(script: str):
  """Runs a script and returns the JSON that it prints last."""
  done = subprocess.run(
    [sys.executable, '-c', script],
    env={**os.environ, 'PYTHONPATH': FOLDER, 'XLA_FLAGS': ''},  # it knows none of a CPU's flags
    cwd=micro_run.ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout.splitlines()[-1])
