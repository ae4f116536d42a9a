"""Compares two runs: arrays bit for bit, and all records."""

from __future__ import annotations

import pathlib

import jax
import numpy as np
import orbax.checkpoint as ocp

from agent_gspo.workdir import json_lines, step_folders


def saved(workdir: pathlib.Path, step: int | None = None) -> tuple[int, dict[str, np.ndarray]]:
  """Returns step and all arrays of a checkpoint on disk, by default the newest.

  They are read without the devices that they were saved from.
  """
  folder = (workdir / 'checkpoints').absolute()
  step = step_folders.steps(folder)[-1] if step is None else step
  arrays = {}
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
    for name in ('params', 'state'):
      tree = orbax.metadata(folder / str(step) / name).item_metadata.tree
      plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
      found = orbax.restore(
        folder / str(step) / name, args=ocp.args.PyTreeRestore(restore_args=plain)
      )
      arrays.update({f'{name}/{key}': np.asarray(value) for key, value in found.items()})
  return step, arrays


def records(workdir: pathlib.Path, name: str) -> list[dict]:
  """Returns the records of a file without fields that depend on clock or machine."""
  clock = ('time/', 'memory/', 'seconds')
  return [
    {key: value for key, value in record.items() if not key.startswith(clock)}
    for record in json_lines.iterate(workdir / name)
  ]


def assert_same_run(workdir: pathlib.Path, reference: pathlib.Path, steps: int) -> None:
  """Asserts that a finished run of `steps` steps equals an uninterrupted one."""
  step, arrays = saved(workdir)
  expected_step, expected = saved(reference)
  assert step == expected_step == steps, (step, expected_step, steps)
  assert arrays.keys() == expected.keys()
  for name, array in arrays.items():
    np.testing.assert_array_equal(array, expected[name], err_msg=name)
  for name in ('metrics.jsonl', 'eval.jsonl', 'transcripts.jsonl'):
    assert records(workdir, name) == records(reference, name), name
  assert [r['step'] for r in records(workdir, 'metrics.jsonl')] == list(range(1, steps + 1))
