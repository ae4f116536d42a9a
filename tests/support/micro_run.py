"""Defines a run that takes seconds: a two-layer model from scratch, two informants, a solver."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import config_dict

from agent_gspo.config import default_config

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = pathlib.Path(__file__).resolve()
SESSION = 'AGENT_GSPO_TEST_SESSION'
"""Environment variable: folder that all workers of a test session share."""


def get_config() -> config_dict.ConfigDict:
  """Returns the config: two questions per step, two samples each, two-word demonstrations."""
  config = default_config()
  config.steps = 10
  config.model.source = 'random:micro'
  config.task.options = config_dict.ConfigDict(
    {
      'num_informants': 2,
      'num_irrelevant': 1,
      'operation': 'lookup',
      'max_count': 3,
      'irrelevant_notes': 'off_topic',
      'text_style': 'words',
    }
  )
  config.team.agents = ('informant', 'informant', 'solver')
  config.team.topology = 'star'
  config.team.max_message_tokens = 4
  config.team.roles.informant = {'opening': '{question} note : {note}', 'cue': ' say :'}
  config.team.roles.solver = {
    'opening': '{question}',
    'incoming': ' {sender} : {message}',
    'cue': ' answer :',
  }
  config.reward.gate = 'always'
  config.budget.lambda_tok = 0.02  # with answers all wrong, lengths alone teach
  config.rollout.questions = 2
  config.rollout.group_size = 2
  config.sampler.prefill_length = (
    256  # one prefill row and one shape of everything: compiles little
  )
  config.sampler.prefill_rows = 1
  config.learner.pack_length = 64
  config.learner.micro_batch_size = 4
  config.learner.learning_rate = 1e-3
  config.sft.steps = 2
  config.sft.questions = 4
  config.sft.terse_probability = 1.0
  config.evaluation.questions = 4
  config.evaluation.every = 4
  config.evaluation.questions_during = 4
  config.evaluation.transcripts = 2
  config.evaluation.seen_questions = 3
  config.evaluation.temperature = 1.0
  config.logging.transcripts = 2
  return config.lock()


def changed(**values) -> dict[str, Any]:
  """Returns the config as a dict with some fields set; `a__b` is field `a.b`."""
  config = get_config().to_dict()
  for path, value in values.items():
    *sections, field = path.split('__')
    functools.reduce(dict.__getitem__, sections, config)[field] = value
  return config


def command(name: str, *arguments: str) -> list[str]:
  """Returns the command line `python launch/<name>.py ...`."""
  return [sys.executable, str(ROOT / 'launch' / f'{name}.py'), *arguments]


def train_command(workdir: pathlib.Path, *arguments: str) -> list[str]:
  """Returns the command line of the micro run."""
  return command('train', f'--config={CONFIG}', f'--workdir={workdir}', *arguments)


@functools.cache
def folder() -> pathlib.Path:
  """Returns the temporary folder of this worker of the test session."""
  holder = tempfile.TemporaryDirectory()
  atexit.register(holder.cleanup)
  return pathlib.Path(holder.name)


def programs() -> dict[str, Any]:
  """Returns JAX settings: minimal optimization, and a compilation cache for all programs."""
  return {
    'JAX_DISABLE_MOST_OPTIMIZATIONS': True,  # compiling costs tests more than computing
    'JAX_COMPILATION_CACHE_DIR': str(pathlib.Path(os.environ[SESSION]) / 'compiled'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': 0,
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': -1,
  }


def xla_flags(flag: str) -> str:
  """Returns XLA's flags of this process and one more."""
  return f'{os.environ.get("XLA_FLAGS", "")} {flag}'


def environment(devices: int | None = None) -> dict[str, str]:
  """Returns the environment of a command, with so many host devices."""
  settings = {'AGENT_GSPO_CACHE': str(folder()), 'JAX_PLATFORMS': 'cpu'}
  if devices:
    settings['XLA_FLAGS'] = xla_flags(f'--xla_force_host_platform_device_count={devices}')
  return {**os.environ, **settings, **{name: str(value) for name, value in programs().items()}}


def shared(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """Returns a folder that the first caller of all workers fills by `make`; do not write there."""
  folder = pathlib.Path(os.environ[SESSION]) / name
  done = folder.with_suffix('.done')
  with folder.with_suffix('.lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not done.exists():
      make(folder)
      done.touch()
  return folder


def run(command: Sequence[str]) -> subprocess.CompletedProcess:
  """Runs a command to its end, with a working directory outside the repository."""
  return subprocess.run(
    command,
    env=environment(),
    cwd=folder(),
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )


def train_alone(folder: pathlib.Path) -> None:
  """Trains with `config.py` of a folder that has no other file of the repository."""
  done = subprocess.run(
    [sys.executable, '-m', 'agent_gspo.apps.commands.train', '--config=config.py', '--workdir=run'],
    cwd=folder,
    env={**environment(), 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr


def finished() -> pathlib.Path:
  """Returns the workdir of an uninterrupted micro run; do not write there."""
  return shared('finished', _finish)


def _finish(workdir: pathlib.Path) -> None:
  done = run(train_command(workdir))
  assert done.returncode == 0, done.stderr
  (workdir / 'stdout.txt').write_text(done.stdout)
