"""TPU's compiler takes the kernels, and they move each array once; no TPU is needed."""

import importlib.util
import json
import os
import subprocess
import sys

import micro_run
import pytest

_FOLDER = os.environ.get('AGENT_GSPO_LIBTPU', '')  # that holds the package, beside the environment
_SCRIPT = """
import json
from benchmarks import tpu_attention
plain = tpu_attention.compiled('v5e', 8, 1024, 14, 2, 64)
capped = tpu_attention.compiled('v5e', 8, 1024, 14, 2, 64, window=256, cap=50.0)
print(json.dumps([plain, capped]))
"""


@pytest.mark.skipif(
  not _FOLDER and importlib.util.find_spec('libtpu') is None,
  reason='no libtpu (it holds the compiler) is installed; AGENT_GSPO_LIBTPU may name its folder',
)
def test_the_kernels_compile_and_keep_no_scores():
  done = subprocess.run(
    [sys.executable, '-c', _SCRIPT],
    env={**os.environ, 'PYTHONPATH': _FOLDER, 'XLA_FLAGS': ''},  # it knows none of a CPU's flags
    cwd=micro_run.ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  for traffic, needed, temporaries in json.loads(done.stdout.splitlines()[-1]):
    assert needed <= traffic < 1.1 * needed
    assert temporaries < 64 * 2**20
