"""Compares digests of eight micro runs, to show that a refactoring changes no result.

    python benchmarks/goldens.py --write=/tmp/goldens.json     # at the commit before
    python benchmarks/goldens.py --against=/tmp/goldens.json   # after the change

Each run takes `_STEPS` steps of a reduced `configs/tiny*.py`. The digests are of the parameters
after SFT, of parameters and optimizer state after RL, and of metrics, evaluations and transcripts
without times. They are comparable on one machine with one version of JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import config_dict

from agent_gspo import cache
from agent_gspo.apps.commands import command
from agent_gspo.training.loop import train
from agent_gspo.workdir import json_lines
from configs import tiny, tiny_addressing, tiny_budgets, tiny_prices

_STEPS = 3
_CLOCK = ('time/', 'memory/', 'seconds')  # fields that depend on the machine
_REDUCED = {
  'steps': _STEPS,
  'sft.epochs': 0.0,
  'sft.steps': 40,
  'sft.questions': 8,
  'rollout.questions': 4,
  'rollout.group_size': 4,
  'reward.gate_accuracy': 0.01,
  'evaluation.questions': 8,
  'evaluation.seen_questions': 8,
  'logging.transcripts': 8,
}
# Name: (config, overrides). Together they go through every branch of a step.
_RUNS = {
  'tiny': (tiny.get_config, {}),
  'calculator_addressing': (
    lambda: tiny_addressing.get_config('addressed'),
    {'team.roles.solver.tools': ('calculator',), 'team.roles.solver.system': '1 + 2 = 3'},
  ),
  'told_price': (tiny_prices.get_config, {}),
  'told_budget': (tiny_budgets.get_config, {}),
  'adapters': (
    tiny.get_config,
    {'model.lora_rank': 4, 'policy.sharing': 'adapters', 'objective.kl_coef': 0.01},
  ),
  'spans_worth': (tiny.get_config, {'algorithm': 'worth', 'objective.ratio_span': 'agent'}),
  'seeupo': (tiny.get_config, {'algorithm': 'seeupo'}),
  'trainer_logprobs': (
    tiny.get_config,
    {'learner.old_logprobs': 'trainer', 'learner.minibatches': 2, 'objective.tis_level': 'token'},
  ),
}
_RESUMED = 'tiny'  # this run is also stopped after its first step and resumed


def main() -> None:
  """Writes the digests, or compares them with written ones and exits with 1 if any differs."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  action = parser.add_mutually_exclusive_group(required=True)
  action.add_argument('--write', type=pathlib.Path, help='file to write digests to')
  action.add_argument('--against', type=pathlib.Path, help='file with the digests to compare with')
  options = parser.parse_args()
  found = digests()
  if options.write:
    options.write.write_text(json.dumps(found, indent=2) + '\n')
    return
  expected = json.loads(options.against.read_text())
  differing = [
    name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)
  ]
  for name in sorted(found):
    print(f'{"DIFFERS" if name in differing else "equal":8} {name} {found[name][:16]}')
  if differing:
    sys.exit(f'{len(differing)} of {len(found)} digests differ from {options.against}')


def digests() -> dict[str, str]:
  """Runs all of `_RUNS`; returns SHA-256 digests by 'run/part'."""
  found: dict[str, str] = {}
  command.use_compilation_cache()
  with tempfile.TemporaryDirectory() as temp:
    os.environ[cache.VARIABLE] = temp  # SFT runs anew
    for name, (make, overrides) in _RUNS.items():
      folder = pathlib.Path(temp, name)
      _run(_config(make(), overrides), folder)
      found |= {f'{name}/{part}': digest for part, digest in _parts(folder).items()}
      if name == _RESUMED:
        folder = pathlib.Path(temp, 'resumed')
        for steps in (1, _STEPS):
          _run(_config(make(), {**overrides, 'steps': steps}), folder)
        found['resumed/arrays'] = _parts(folder)['arrays']
  return found


def _run(config: dict[str, Any], folder: pathlib.Path) -> None:
  print(f'{folder.name}: {config["steps"]} steps', flush=True)
  with contextlib.redirect_stdout(io.StringIO()):
    train(config, folder)


def _config(config: config_dict.ConfigDict, overrides: Mapping[str, Any]) -> dict[str, Any]:
  found = config.to_dict()
  for path, value in {**_REDUCED, **overrides}.items():
    *sections, field = path.split('.')
    functools.reduce(dict.__getitem__, sections, found)[field] = value
  return found


def _parts(workdir: pathlib.Path) -> dict[str, str]:
  """Returns the digests of a finished run: its last checkpoint and its records."""
  step = max((workdir / 'checkpoints').absolute().glob('[0-9]*'), key=lambda p: int(p.name))
  arrays = hashlib.sha256()
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
    for name in ('params', 'state'):
      tree = orbax.metadata(step / name).item_metadata.tree
      plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
      found = orbax.restore(step / name, args=ocp.args.PyTreeRestore(restore_args=plain))
      for key, value in sorted(found.items()):
        arrays.update(f'{name}/{key}'.encode() + np.ascontiguousarray(value).tobytes())
  told = {'arrays': arrays.hexdigest()}
  for name in ('sft', 'metrics', 'eval', 'transcripts'):
    records = [
      {key: value for key, value in record.items() if not key.startswith(_CLOCK)}
      for record in json_lines.iterate(workdir / f'{name}.jsonl')
    ]
    told[name] = hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
  return told


if __name__ == '__main__':
  main()
