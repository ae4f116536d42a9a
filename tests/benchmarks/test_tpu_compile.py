"""Compiles the programs of a run for a TPU slice, without a TPU."""

import json
import os
import subprocess
import sys

import micro_run
import pytest
import tpu_programs


@pytest.mark.slow
@tpu_programs.needs_compiler
@pytest.mark.parametrize('program', ['update', 'prefill', 'decode'])
def test_the_program_compiles_and_fits(program, tmp_path):
  command = [
    *(sys.executable, 'benchmarks/tpu_compile.py', f'--program={program}', '--topology=v5e:2x4'),
    *('--mesh=data=8,fsdp=1,tensor=1', '--model=smollm2-135m', '--rows=8', '--row_tokens=256'),
    *('--columns=256', '--new_tokens=32', f'--json={tmp_path / "figures.json"}'),
  ]
  subprocess.run(
    command, env={**os.environ, 'PYTHONPATH': tpu_programs.FOLDER}, cwd=micro_run.ROOT, check=True
  )
  found = json.loads((tmp_path / 'figures.json').read_text())
  weights = 4 * 134.5e6  # float32
  assert weights < found['arguments_bytes'] < 4 * weights
  assert 0 < found['temporaries_bytes'] < 2 * 2**30
