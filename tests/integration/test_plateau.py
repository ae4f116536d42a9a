"""Tests `evaluation.patience`: training ends on a plateau, resumed or not."""

from __future__ import annotations

import micro_run
import pytest
from run_comparison import records

from agent_gspo.config import check as config_lib
from agent_gspo.training import loop


def _plateau(points: list[tuple[float, float]], patience: int) -> int:
  """Returns the number of evaluations after which a run ends, 0 if it does not."""
  waited = 0
  for i, (accuracy, tokens) in enumerate(points):
    beaten = any(a >= accuracy and t <= tokens for a, t in points[:i])
    waited = waited + 1 if beaten else 0
    if waited == patience:
      return i + 1
  return 0


@pytest.mark.slow
def test_a_run_ends_on_a_plateau_and_a_resumed_one_at_the_same_step(tmp_path, capsys):
  values = micro_run.changed(evaluation__every=1, evaluation__patience=2, steps=16)
  whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
  last = loop.train(values, whole)
  during = lambda run: [r for r in records(run, 'eval.jsonl') if r['label'] == 'during']
  points = [(r['task/accuracy'], r['tokens/written_per_question']) for r in during(whole)]
  assert len(points) == last['step'] == _plateau(points, 2) < 16
  told = f'training ended after step {last["step"]} of 16: 2 evaluations with neither a higher'
  assert told in capsys.readouterr().out
  assert int((whole / 'done').read_text()) == last['step']

  loop.train(values | {'steps': last['step'] - 1}, resumed)
  for _ in range(2):  # resumed where it was stopped, then where it had ended
    assert loop.train(values, resumed)['step'] == last['step']
    assert told in capsys.readouterr().out
  assert during(resumed) == during(whole)
  assert records(resumed, 'metrics.jsonl') == records(whole, 'metrics.jsonl')


def test_patience_without_evaluations_is_refused():
  values = micro_run.changed(evaluation__every=0, evaluation__patience=2)
  with pytest.raises(ValueError, match=r'evaluation.patience=2 with evaluation.every=0.* Set'):
    config_lib.check(values)
