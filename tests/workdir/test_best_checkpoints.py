"""Checks that the best checkpoints are kept beside the newest, and can be chosen."""

from __future__ import annotations

import json
import pathlib

import micro_run
import pytest
import small_checkpoints

from agent_gspo.training import loop, run_evaluations
from agent_gspo.workdir import checkpoints, records, step_folders


def _record(step: int, accuracy: float | None, written: float | None = 9.0, label='during') -> str:
  return json.dumps(
    {
      'step': step,
      'label': label,
      'task/accuracy': accuracy,
      'tokens/written_per_question': written,
    }
  )


def _evaluated(workdir: pathlib.Path, *lines: str) -> None:
  with (workdir / records.EVALUATIONS).open('a') as file:
    file.writelines(f'{line}\n' for line in lines)


def _saved(workdir: pathlib.Path, steps, scores: dict[int, float], **keep) -> pathlib.Path:
  """Returns checkpoints of a run that saves each step and evaluates those with a score."""
  folder = workdir / 'checkpoints'
  saver = small_checkpoints.open_(folder, **keep)
  for step in steps:
    saver.save(small_checkpoints.state(step + 0.5, step))
    saver.wait()
    if step in scores:
      _evaluated(workdir, _record(step, scores[step]))
  return folder


def test_accuracy_then_tokens_then_the_later(tmp_path):
  assert records.best_first(tmp_path) == []
  _evaluated(
    tmp_path,
    _record(0, 1.0, label='untrained'),
    _record(1, 0.5, 8.0),
    _record(2, 0.5, 7.0),
    _record(3, 0.25, 1.0),
    _record(4, 0.5, 8.0),
    _record(5, 0.1),
    _record(9, 1.0, label='trained'),
    _record(6, None),
    _record(7, 0.5, None),
    'what is no record',
    '{"label": "during", "step": [8], "task/accuracy": 1.0}',
    _record(5, 0.75),  # once more: this one counts
    '{"label": "during", "step": 10, "task/acc',  # as it is being written
  )
  assert records.best_first(tmp_path) == [5, 2, 4, 1, 7, 3, 6]


@pytest.mark.parametrize(
  ('points', 'since'),
  [
    ([], 0),
    ([(0.5, 8.0)], 0),
    ([(0.5, 8.0), (0.5, 8.0)], 1),
    ([(0.5, 8.0), (0.4, 9.0), (0.3, 7.0)], 0),  # the fewest tokens
    ([(0.5, 8.0), (0.4, 9.0), (0.6, 9.0)], 0),  # the highest accuracy
    ([(0.5, 8.0), (0.3, 7.0), (0.4, 7.5), (0.4, 8.5), (0.2, 7.0)], 2),  # between two, then worse
  ],
)
def test_evaluations_that_add_nothing_to_the_frontier(tmp_path, points, since):
  _evaluated(tmp_path, _record(0, 1.0, 0.0, label='untrained'))
  _evaluated(tmp_path, *(_record(n, *point) for n, point in enumerate(points)))
  assert records.evaluations_off_frontier(tmp_path) == since


def test_other_questions_are_not_compared_with(tmp_path):
  record = lambda step, accuracy, **asked: json.dumps(json.loads(_record(step, accuracy)) | asked)
  old = {'split': 'test', 'questions': 50, 'temperature': 1.0}
  new = {**old, 'questions': 200, 'spread': False}
  _evaluated(
    tmp_path,
    record(1, 0.6, **old),
    record(2, 0.9, **old),  # of few questions
    record(3, 1.0, **{**new, 'temperature': 0.0}),
    record(4, 0.7, **{**new, 'split': 'validation'}),
    record(5, 0.5, **new),
    record(6, 0.8, **{**new, 'spread': True}),
    record(7, 0.4, **new),
  )
  assert records.best_first(tmp_path) == [5, 7, 3, 2, 6, 4, 1]
  folder = _saved(tmp_path, range(1, 9), {}, keep=1, keep_best=2)
  assert step_folders.steps(folder) == [5, 7, 8]


def test_the_best_stay_beside_the_newest(tmp_path):
  scores = {1: 0.2, 2: 0.9, 3: 0.4, 4: 0.6, 6: 0.5}
  folder = _saved(tmp_path, range(1, 8), scores, keep=2, keep_best=2)
  assert step_folders.steps(folder) == [2, 4, 6, 7]
  # The best may be among the newest, and a run that keeps fewer removes what is then too much.
  folder = _saved(tmp_path, range(8, 10), {8: 0.95}, keep=2, keep_best=1)
  assert step_folders.steps(folder) == [8, 9]


def test_none_is_kept_unless_it_is_asked_for(tmp_path):
  assert step_folders.steps(_saved(tmp_path, range(1, 5), {1: 1.0}, keep=2)) == [3, 4]


def test_a_checkpoint_is_chosen_by_step_or_best(tmp_path, capsys):
  folder = _saved(tmp_path, range(1, 4), {1: 0.2, 2: 0.9}, keep=3)
  chosen = lambda which: checkpoints.chosen(folder, which).step
  assert (chosen(None), chosen('best'), chosen('1')) == (3, 2, 1)
  for which in ('4', '-1', '01', 'newest', ''):
    with pytest.raises(
      ValueError, match=rf'--step={which}: .*no such checkpoint. There are steps 1, 2, 3; or give'
    ):
      chosen(which)
  small_checkpoints.DAMAGES['state flipped'](folder / '2')
  with pytest.raises(ValueError, match=r'--step=2: .*/2 is damaged \(.*There are steps 1, 2, 3\.'):
    chosen('2')
  with pytest.warns(UserWarning, match='2 is damaged'):
    assert chosen('best') == 1
  (tmp_path / records.EVALUATIONS).unlink()
  with pytest.raises(ValueError, match=r'--step=best: no intact .*evaluated.*There are steps 1, 2'):
    chosen('best')
  with pytest.raises(FileNotFoundError, match='holds no checkpoint; give the --workdir'):
    checkpoints.chosen(tmp_path / 'none', 'best')


@pytest.mark.slow
def test_a_run_saves_what_it_evaluates(tmp_path, monkeypatch):
  scores, evaluate = {1: 0.2, 2: 0.6, 3: 0.4}, run_evaluations.evaluate

  def scored(*arguments, **options):
    record, batch = evaluate(*arguments, **options)
    return {**record, 'task/accuracy': scores.get(record['step'], 1.0)}, batch

  monkeypatch.setattr(run_evaluations, 'evaluate', scored)
  config = micro_run.changed(
    steps=4,
    sft__steps=0,
    learner__minibatches=1,
    evaluation__untrained='last',
    evaluation__seen_questions=0,
    evaluation__every=1,
    evaluation__questions=2,
    evaluation__questions_during=2,
    checkpoint__every=100,
    checkpoint__keep=1,
    checkpoint__keep_best=1,
  )
  loop.train(config, tmp_path)
  assert step_folders.steps(tmp_path / 'checkpoints') == [2, 4]
  assert checkpoints.chosen(tmp_path / 'checkpoints', 'best').step == 2
