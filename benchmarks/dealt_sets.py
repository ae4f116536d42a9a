"""Evaluates runs of dealt word problems on several test sets, with the judgment of note holders.

    python benchmarks/dealt_sets.py runs/a runs/b --out=sets.json

A set of `--sets` is a benchmark, its split and the largest number of questions. Decoding is greedy.
Prints a markdown table; `--out` also keeps the score and tokens of each question, to compare two
runs by question. Runs that `--out` already holds are not evaluated again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.apps.commands import command
from agent_gspo.config import check as config_lib
from agent_gspo.teams import counts
from agent_gspo.training import run_evaluations
from agent_gspo.training import setup as setup_lib
from agent_gspo.types import RolloutBatch
from agent_gspo.workdir import checkpoints
from benchmarks import common

_SETS = 'svamp:test:1000,svamp:validation:300,multiarith:test:175'
_COLUMNS = {
  'accuracy, %': 'task/accuracy',
  'tokens': 'tokens/written_per_question',
  'silence, relevant, %': 'comm/silence_rate_relevant',
  'irrelevant, %': 'comm/silence_rate_irrelevant',
  'AUC': 'judgement/auc',
  'irrelevant at 3 %, %': 'judgement/silence_at_3%',
}


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('workdirs', nargs='+', type=pathlib.Path)
  parser.add_argument('--step', help='step of the checkpoint; the newest by default')
  parser.add_argument('--sets', default=_SETS, help='BENCHMARK:SPLIT:QUESTIONS, comma-separated')
  parser.add_argument('--out', type=pathlib.Path, help='JSON file')
  options = parser.parse_args()
  command.use_compilation_cache()
  held = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
  for workdir in options.workdirs:
    saved = checkpoints.chosen(workdir / 'checkpoints', options.step)
    name = f'{workdir.name}@{saved.step}'
    if name in held:
      continue
    held[name] = _evaluations(saved, [one.split(':') for one in options.sets.split(',')])
    if options.out:
      options.out.write_text(json.dumps({**held, 'machine': common.machine()}, indent=1))
    print(_table({name: held[name]}), flush=True)
  held.pop('machine', None)
  print(_table(held))


def _evaluations(saved: checkpoints.Saved, sets: Sequence[Sequence[str]]) -> dict[str, Any]:
  """Returns the figures of a checkpoint on each set."""
  config = command.config_here(saved)
  setup = setup_lib.build(config_lib.check(config, training=False))
  params = saved.restore_params(setup.config, setup.params)
  scorer = setup_lib.make_scorer(setup)
  found = {}
  for benchmark, split, count in sets:
    options = {**config['task']['options'], 'benchmark': benchmark, 'also_from': ()}
    options |= {'apart_from': (), 'redrawn_copies': 0, 'misleading_share': 0.0}
    parts = config_lib.check(
      {
        **config,
        'task': {**config['task'], 'options': options},
        'evaluation': {**config['evaluation'], 'split': split, 'temperature': 0.0},
      },
      training=False,
    )
    figures, batch = run_evaluations.evaluate(
      dataclasses.replace(setup, **vars(parts)),
      scorer,
      params,
      label=f'{benchmark}, {split}',
      step=saved.step,
      count=min(int(count), len(parts.task.questions(split))),
    )
    found[f'{benchmark}, {split}'] = {**figures, **_by_question(batch)}
  return found


def _by_question(batch: RolloutBatch) -> dict[str, list[float]]:
  """Returns the score and the tokens written of each question."""
  written = counts.by_episode(batch, batch.written)
  return {'scores': batch.task_scores.tolist(), 'written': written.tolist()}


def _table(runs: dict[str, dict[str, Any]]) -> str:
  rows = [
    [f'{name}: {which}', *(_shown(figures, key) for key in _COLUMNS.values())]
    for name, sets in runs.items()
    for which, figures in sets.items()
  ]
  return common.table(['', *_COLUMNS], rows)


def _shown(figures: dict[str, Any], key: str) -> str:
  if key not in figures:
    return ''
  value = figures[key]
  if key.startswith('tokens'):
    return f'{value:.1f}'
  return f'{value:.3f}' if key == 'judgement/auc' else f'{100 * value:.1f}'


if __name__ == '__main__':
  main()
