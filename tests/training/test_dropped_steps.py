"""Checks that steps with nothing to learn from do not end a run."""

from __future__ import annotations

import micro_run
import numpy as np
import pytest
import run_comparison

from agent_gspo.tasks.relay.task import RelayTask
from agent_gspo.training import loop

STEPS = 6


@pytest.mark.slow
def test_a_run_goes_on_over_steps_without_an_update(tmp_path, monkeypatch, capsys):
  """Stopped behind such a step or not, to the same parameters."""
  # Any answer to two questions of three is right: both of a step's questions now and then are.
  right = lambda task, question, answer: float(sum(map(ord, question.id)) % 3 != 0)
  monkeypatch.setattr(RelayTask, 'score', right)
  config = micro_run.changed(
    steps=STEPS,
    algorithm='ngrpo',
    budget__lambda_tok=0.0,
    sft__steps=0,
    evaluation__every=0,
    checkpoint__keep=STEPS,
    checkpoint__every=1,
  )
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  loop.train(config, whole)
  told = capsys.readouterr().out.replace('\n', ' ')
  assert told.count("advantage.name='ngrpo' dropped every message") == 1
  metrics = run_comparison.records(whole, 'metrics.jsonl')
  updated = [m['advantage/kept'] > 0 for m in metrics]
  assert updated.count(False) >= 2
  assert True in updated
  assert updated == ['policy/objective' in m for m in metrics]
  saved = [run_comparison.saved(whole, step)[1] for step in range(1, STEPS + 1)]
  for before, after, moved in zip(saved[:-1], saved[1:], updated[1:], strict=True):
    params = [name for name in after if name.startswith('params/')]
    assert all(np.array_equal(before[name], after[name]) for name in params) != moved
  loop.train({**config, 'steps': updated.index(False) + 1}, parts)
  loop.train(config, parts)
  assert run_comparison.records(parts, 'metrics.jsonl') == metrics
  for name, array in run_comparison.saved(parts)[1].items():
    np.testing.assert_array_equal(array, saved[-1][name], err_msg=name)
