"""Compiles the attention kernels for a TPU, and counts moves of each array."""

import tpu_programs

_SCRIPT = """
import json
from benchmarks import tpu_attention
plain = tpu_attention.compiled('v5e', 8, 1024, 14, 2, 64)
capped = tpu_attention.compiled('v5e', 8, 1024, 14, 2, 64, window=256, cap=50.0)
print(json.dumps([plain, capped]))
"""


@tpu_programs.needs_compiler
def test_the_kernels_compile_and_keep_no_scores():
  for traffic, needed, temporaries in tpu_programs.printed(_SCRIPT):
    assert needed <= traffic < 1.1 * needed
    assert temporaries < 64 * 2**20
