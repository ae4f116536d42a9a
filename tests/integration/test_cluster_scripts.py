"""Checks the cluster scripts, the Dockerfile and CITATION.cff without running them."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib

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
  """Checks that pods have a machine's chips each, and the slice's chips together."""
  (job,) = yaml.safe_load((FOLDER / 'gke.yaml').read_text())['spec']['replicatedJobs']
  spec = job['template']['spec']
  pod = spec['template']['spec']
  topology = pod['nodeSelector']['cloud.google.com/gke-tpu-topology']
  chips = pod['containers'][0]['resources']['limits']['google.com/tpu']
  assert spec['parallelism'] == spec['completions']
  assert spec['parallelism'] * chips == 4 * 4 == CHIPS['gke.yaml']
  assert topology == '4x4'


def test_the_image_is_made_of_what_is_there():
  """Instructions are known, files that are copied exist, and so do the extras of each build."""
  text = (micro_run.ROOT / 'Dockerfile').read_text()
  code = re.sub(r'\\\n', ' ', re.sub(r'^#.*\n', '', text, flags=re.MULTILINE))
  lines = [line.split(None, 1) for line in code.splitlines() if line.strip()]
  names = [name for name, _ in lines]
  assert names[0] == 'FROM'
  assert set(names) <= {'FROM', 'ARG', 'WORKDIR', 'COPY', 'RUN', 'ENV', 'CMD'}
  copied = [file for name, rest in lines if name == 'COPY' for file in rest.split()[:-1]]
  assert {'pyproject.toml', 'agent_gspo', 'configs', 'launch'} <= set(copied)
  assert all((micro_run.ROOT / file).exists() for file in copied)
  (command,) = (json.loads(rest) for name, rest in lines if name == 'CMD')
  assert command[1] in {f'{folder}/train.py' for folder in copied}
  project = tomllib.loads((micro_run.ROOT / 'pyproject.toml').read_text())['project']
  extras = ','.join(re.findall(r'EXTRAS=(\S+)', text)).split(',')
  assert {'data', 'cuda', 'tpu'} == set(extras) <= set(project['optional-dependencies'])
  python = re.fullmatch(r'python:(3\.\d+)-slim', lines[0][1])[1]
  assert f'Programming Language :: Python :: {python}' in project['classifiers']


def test_the_citation_is_of_this_package():
  found = yaml.safe_load((micro_run.ROOT / 'CITATION.cff').read_text())
  project = tomllib.loads((micro_run.ROOT / 'pyproject.toml').read_text())['project']
  assert {'cff-version', 'message', 'title', 'authors'} <= set(found)
  assert found['title'].startswith(project['name'])
  assert found['license'] == project['license']
  assert found['title'] in (micro_run.ROOT / 'README.md').read_text()
