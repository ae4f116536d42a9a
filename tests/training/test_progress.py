"""Checks the plain lines that a library's user sees of a run."""

from agent_gspo.training.progress import PlainLog


def test_a_line_for_the_title_each_step_and_each_note(capsys):
  with PlainLog(total_steps=7, start_step=2, title='relay, 3 agents') as log:
    log.phase('rollout', 1, 2)
    log.step(3, {'task/accuracy': 0.75, 'reward/mean': None, 'time/step_s': 1.23456})
    log.note('checkpoint saved')
    log.ended('run', {'label': 'trained'})
  lines = ['relay, 3 agents', 'step 3 of 7: accuracy 0.75, seconds 1.235', 'checkpoint saved']
  assert capsys.readouterr().out.splitlines() == lines
