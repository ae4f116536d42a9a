"""The scripts for clusters, as far as that shows without one: syntax, flags and sizes."""

from __future__ import annotations

import re
import subprocess

import micro_run
import pytest
import yaml

from agent_gspo.config import default_config

FOLDER = micro_run.ROOT / 'launch' / 'cluster'
CHIPS = {'tpu_slice.sh': 16, 'slurm.sbatch': 32, 'gke.yaml': 16}


@pytest.mark.parametrize('name', CHIPS)
def test_flags_are_those_of_a_run_on_so_many_devices(name):
  text = (FOLDER / name).read_text()
  file = re.search(r'--config=(\S+)', text)
  assert (micro_run.ROOT / file[1]).is_file()
  config = default_config()
  for field, value in re.findall(r'--config\.(\S+?)=(\S+)', text):
    config.update_from_flattened_dict({field: int(value)})
  assert config.mesh.fsdp == -1
  assert config.learner.micro_batch_size == CHIPS[name]


@pytest.mark.parametrize('name', ['tpu_slice.sh', 'slurm.sbatch'])
def test_shells_read_them(name):
  done = subprocess.run(['bash', '-n', FOLDER / name], capture_output=True, check=False)
  assert (done.returncode, done.stderr) == (0, b'')


def test_a_slice_of_gke_is_filled():
  """Each pod has the chips of a machine, and all of them are the slice."""
  (job,) = yaml.safe_load((FOLDER / 'gke.yaml').read_text())['spec']['replicatedJobs']
  spec = job['template']['spec']
  pod = spec['template']['spec']
  topology = pod['nodeSelector']['cloud.google.com/gke-tpu-topology']
  chips = pod['containers'][0]['resources']['limits']['google.com/tpu']
  assert spec['parallelism'] == spec['completions']
  assert spec['parallelism'] * chips == 4 * 4 == CHIPS['gke.yaml']
  assert topology == '4x4'
