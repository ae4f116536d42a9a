"""Evaluates the untrained team of configs/smollm2_benchmarks.py on all seven benchmarks.

    python benchmarks/untrained_benchmarks.py --workdir=runs/untrained_benchmarks

The team and its baselines are asked the same questions, taken evenly from the test split. Answers
that are stored are not sampled again, so the same command resumes a stopped evaluation; --show
prints the table of the stored ones. Fields of the config can be set:
--config.evaluation.questions=10. Prints a markdown table and writes
benchmarks/results/untrained_benchmarks.json.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from agent_gspo.apps.commands import evaluation_folder
from agent_gspo.evaluation import statistics
from agent_gspo.tasks.base import most_common_share
from agent_gspo.tasks.registry import make_task
from benchmarks import common

_CONFIG = common.ROOT / 'configs' / 'smollm2_benchmarks.py'
_BENCHMARKS = ('mmlu', 'gsm8k', 'multiarith', 'svamp', 'aqua', 'human_eval', 'math500')
_BASELINES = ('single', 'self_consistency', 'chain', 'complete', 'debate')
_PASSES = (1, 3, 5)  # baselines asked by then, of every benchmark; the team itself is the star
_KEPT = ('comm/calls_per_question', 'comm/truncated_rate', 'comm/silence_rate', 'samples')
_TOKENS = ('written', 'read', 'text_written', 'text_read', 'critical_path')


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--workdir', type=pathlib.Path, required=True, help='folder of the answers')
  parser.add_argument('--benchmarks', default=','.join(_BENCHMARKS), help='comma between them')
  parser.add_argument('--show', action='store_true', help='ask nothing')
  options, rest = parser.parse_known_args()
  overrides = common.check_overrides(rest)
  names = options.benchmarks.split(',')
  for count in () if options.show else _PASSES:
    for name in names:
      _evaluate(name, options.workdir / name, _BASELINES[:count], overrides)

  found = {
    name: _figures(name, options.workdir / name)
    for name in names
    if (options.workdir / name / evaluation_folder.RESULT).is_file()
  }
  print(_report(found))
  told = {'config': _CONFIG.name, 'overrides': overrides, 'machine': common.machine()}
  file = common.save('untrained_benchmarks', {**told, 'benchmarks': found})
  print(f'\nwrote {file.relative_to(common.ROOT)}')


def _evaluate(
  name: str, folder: pathlib.Path, baselines: Sequence[str], overrides: Iterable[str]
) -> None:
  print(f'== {name}: {", ".join(baselines)}', flush=True)
  command = [sys.executable, str(common.ROOT / 'launch' / 'evaluate.py')]
  command += [f'--config={_CONFIG}:{name}', f'--out={folder}', f'--baseline={",".join(baselines)}']
  done = subprocess.run([*command, *overrides], check=False)
  if done.returncode:
    raise SystemExit(done.returncode)


def _figures(name: str, folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the figures of each system, by the strict and the legacy grader."""
  result = evaluation_folder.read_result(folder)
  task = make_task(name, grader='legacy')
  split = result['evaluation']['split']
  questions = {q.id: q for q in task.questions(split)}
  rows = []
  for found in result['evaluations']:
    row = {key: found[key] for key in ('label', 'questions', 'task/accuracy')}
    if 'variant' in found:
      _, records = evaluation_folder.read(folder, found['label'])
      asked = [questions[record['question_id']] for record in records]
      legacy = task.score_all(asked, [record['answer'] for record in records])
      row |= _share('legacy/accuracy', legacy)
      row |= _share('task/accuracy', [record['task_score'] for record in records])
      row |= {f'tokens/{k}_per_question': found[f'tokens/{k}_per_question'] for k in _TOKENS}
      row |= {key: found[key] for key in _KEPT if key in found}
      row['seconds'] = sum(record['seconds'] for record in records)
    else:  # a few questions would flatter their own most common answer
      row['task/accuracy'] = most_common_share(list(questions.values()))
    rows.append(row)
  return rows


def _share(name: str, scores: Sequence[float]) -> dict[str, float]:
  low, high = statistics.wilson_interval(sum(scores), len(scores))
  return {name: sum(scores) / len(scores), f'{name}_low': low, f'{name}_high': high}


def _report(benchmarks: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
  """Returns a table with a row per system and a column per benchmark."""
  cells = {name: {_system(row): _cell(row) for row in rows} for name, rows in benchmarks.items()}
  systems = dict.fromkeys(system for column in cells.values() for system in column)
  rows = [[system, *(column.get(system, '') for column in cells.values())] for system in systems]
  return common.table(['', *cells], rows)


def _system(row: Mapping[str, Any]) -> str:
  """Returns a system's name in the table: the team is the star, samples are left out."""
  return {'untrained': 'star'}.get(row['label'], row['label'].partition(' (k=')[0])


def _cell(row: Mapping[str, Any]) -> str:
  accuracy = f'**{100 * row["task/accuracy"]:.0f}**'
  if 'legacy/accuracy' not in row:
    return accuracy
  low, high = (100 * row[f'task/accuracy_{end}'] for end in ('low', 'high'))
  tokens = (row[f'tokens/{kind}_per_question'] for kind in ('written', 'read'))
  samples = f' (k={row["samples"]})' if 'samples' in row else ''
  return (
    f'{accuracy} [{low:.0f}, {high:.0f}], {100 * row["legacy/accuracy"]:.0f}'
    f'<br>{" + ".join(f"{n:.0f}" for n in tokens)}{samples}'
  )


if __name__ == '__main__':
  main()
