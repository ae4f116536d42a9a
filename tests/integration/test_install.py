"""Checks that a run needs no extra, and that a missing extra is named."""

import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]

_OF_EXTRAS = (
  'tensorflow_datasets', 'array_record', 'math_verify', 'transformers', 'torch', 'peft', 'wandb',
  'pytest', 'hypothesis', 'mkdocs', 'tinker',
)  # fmt: skip
_NEEDING_THEM = (
  'agent_gspo.tasks.benchmarks',
  'agent_gspo.tasks.dealt.task',
  'agent_gspo.tasks.data.prepared',
  'agent_gspo.tasks.grading.math_worker',
  'agent_gspo.apps.serving.tinker_api',
)
_WITHOUT_EXTRAS = f"""
import importlib, pathlib, sys
import absl.flags
for name in {_OF_EXTRAS}:
  sys.modules[name] = None  # an import of it raises ModuleNotFoundError
for file in sorted(pathlib.Path('agent_gspo').rglob('*.py')):
  module = '.'.join(file.with_suffix('').parts).removesuffix('.__init__')
  if module.startswith('agent_gspo.apps.commands.'):  # one a process: each defines flags of its own
    for flag in list(absl.flags.FLAGS):
      delattr(absl.flags.FLAGS, flag)
  if not module.startswith({_NEEDING_THEM}):
    importlib.import_module(module)
from agent_gspo.tasks import registry
registry.make_task('relay')
try:
  registry.make_task('gsm8k')
except ModuleNotFoundError as error:
  print(error)
"""


def test_a_run_needs_no_extra_and_a_benchmark_names_its_own():
  done = subprocess.run(
    [sys.executable, '-c', _WITHOUT_EXTRAS], cwd=ROOT, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  assert "task 'gsm8k' needs tensorflow_datasets" in done.stdout
  assert "pip install '.[data]'" in done.stdout


def test_hooks_have_the_version_of_the_linter_that_ci_has():
  hooks = (ROOT / '.pre-commit-config.yaml').read_text()
  (version,) = re.findall(r'ruff-pre-commit\n +rev: v(\S+)', hooks)
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  assert f'ruff=={version}' in project['optional-dependencies']['test']
