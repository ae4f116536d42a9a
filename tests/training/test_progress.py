"""Checks the plain lines that a library's user sees of a run, and how a callback ends one."""

import types

import numpy as np
import pytest

from agent_gspo.training import loop
from agent_gspo.training.progress import PlainLog


def test_a_line_for_the_title_each_step_and_each_note(capsys):
  with PlainLog(total_steps=7, start_step=2, title='relay, 3 agents') as log:
    log.phase('rollout', 1, 2)
    log.step(3, {'task/accuracy': 0.75, 'reward/mean': None, 'time/step_s': 1.23456})
    log.note('checkpoint saved')
    log.ended('run', {'label': 'trained'})
  lines = ['relay, 3 agents', 'step 3 of 7: accuracy 0.75, seconds 1.235', 'checkpoint saved']
  assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
  ('returned', 'ends'),
  [(True, True), (np.True_, True), (False, False), (np.False_, False), (None, False), (1, False)],
)
def test_true_alone_ends_training_whichever_type_it_has(returned, ends):
  run = types.SimpleNamespace(stopped='')
  loop.Run._call(run, 'on_step', lambda step: returned, 1)
  assert run.stopped == 'on_step returned True' * ends
  loop.Run._call(run, 'on_step', None, 1)
