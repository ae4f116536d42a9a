"""Looks at what a run left behind: check_run.py WORKDIR STEPS."""

from __future__ import annotations

import json
import math
import pathlib
import sys


def main(workdir: pathlib.Path, steps: int) -> None:
  metrics = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  found = [record['step'] for record in metrics]
  if found != list(range(1, steps + 1)):
    sys.exit(f'metrics.jsonl has steps {found}, not one line for each of 1 to {steps}')
  for record in metrics:
    bad = [k for k, v in record.items() if not isinstance(v, int | float) or not math.isfinite(v)]
    if bad:
      sys.exit(f'step {record["step"]}: not a finite number: {", ".join(bad)}')
    # Before anything was updated, the policy is the one that sampled.
    off = record['policy/ratio_first_minibatch_error_max']
    if off > 1e-3:
      sys.exit(f'step {record["step"]}: a ratio of the first mini-batch is off 1 by {off:.2g}')
  evaluations = [json.loads(line) for line in (workdir / 'eval.jsonl').read_text().splitlines()]
  labels = [(record['label'], record['step']) for record in evaluations]
  for label in (('untrained', 0), ('trained', 3), ('trained', steps)):
    if labels.count(label) != 1:
      sys.exit(f'eval.jsonl has {labels}; {label} must be there once')
  first, last = evaluations[labels.index(('untrained', 0))], evaluations[-1]
  error = max(record['policy/ratio_first_minibatch_error_max'] for record in metrics)
  print(
    f'{steps} steps, all numbers finite, first ratios within {error:.1g} of 1; accuracy '
    f'{first["task/accuracy"]:.0%} -> {last["task/accuracy"]:.0%} (far too short to learn)'
  )


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
