"""Faulty parts of a user's own: one line that names field and part, never another cause."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import fuzz_plugins
import micro_run
import numpy as np
import pytest
from scripted_teams import Echo, IdsPolicy, numbers_tokenizer, questions, team

from agent_gspo import plugins
from agent_gspo.evaluation import evaluate
from agent_gspo.teams.rollout import rollout

_SILENT = lambda turn: ([turn.stop_ids[0]], True)


def _graded(task) -> list[float]:
  """Scores in training: of two conversations about each of two questions."""
  policy, asked = IdsPolicy(_SILENT), questions(2)
  batch = rollout(team('star'), task, numbers_tokenizer(9), asked, 2, policy)
  return [episode.task_score for episode in batch.episodes]


def _evaluated(task) -> list[float]:
  """Scores in an evaluation."""
  policy, head = IdsPolicy(_SILENT), {'step': 0, 'split': 'test', 'label': ''}
  found, _ = evaluate.converse(
    team('star'), task, numbers_tokenizer(9), questions(2), policy, **head
  )
  return [record['task_score'] for record in found]


@pytest.mark.parametrize('grade', [_graded, _evaluated])
@pytest.mark.parametrize('value', [2.0, -0.5, float('nan'), float('inf'), '1', None, [1.0], 1j])
def test_a_score_out_of_range_names_task_question_and_value(value, grade):
  class Own(Echo):
    def score(self, question, answer_text):
      return value if question.id == 'q1' else 1.0

  with pytest.raises(plugins.PluginError) as error:
    grade(Own())
  told = str(error.value)
  assert told.startswith(f"task 'echo': score of question 'q1' is {value!r}; must be ")
  assert 'learning' not in told


@pytest.mark.parametrize(
  ('value', 'score'),
  [(True, 1.0), (False, 0.0), (np.float32(0.5), 0.5), (np.array(1), 1.0), (1 + 1e-9, 1.0)],
)
def test_a_score_is_stored_as_a_number(value, score):
  class Own(Echo):
    def score(self, question, answer_text):
      return value

  for grade in (_graded, _evaluated):
    found = grade(Own())
    assert json.dumps(found) == json.dumps([score] * len(found))


@pytest.mark.parametrize('wrong', [[], [1.0], [1.0] * 9, np.ones((4, 1)), {0.0, 1.0}, 'aaaa', None])
def test_a_batch_of_scores_of_another_length_is_refused(wrong):
  class Own(Echo):
    def score_all(self, questions, answer_texts):
      return wrong

  with pytest.raises(plugins.PluginError, match=r"task 'echo'.*score"):
    _graded(Own())


def test_a_verifier_that_raises_is_named_with_its_question_and_line():
  class Own(Echo):
    def score(self, question, answer_text):
      return {}['nothing']

  with pytest.raises(plugins.PluginError) as error:
    _graded(Own())
  assert isinstance(error.value.__cause__, KeyError)  # with the traceback that its author needs
  told = str(error.value)
  assert told.startswith("task 'echo', score of question 'q0': KeyError: 'nothing' at test_plugins")
  assert told.endswith(f'test_plugins.py:{Own.score.__code__.co_firstlineno + 1}.')


@pytest.mark.parametrize('raised', [SystemExit(0), SystemExit('done'), GeneratorExit(), OSError()])
def test_whatever_ends_a_part_is_its_error(raised):
  with pytest.raises(plugins.PluginError, match=f'x=.*: {type(raised).__name__}'):
    with plugins.guard("x='mine:f'", 'mine'):
      raise raised


def test_ctrl_c_stays_ctrl_c():
  with pytest.raises(KeyboardInterrupt), plugins.guard("x='mine:f'", 'mine'):
    raise KeyboardInterrupt


def _commands(folder: pathlib.Path, **codes: str) -> dict[str, tuple[int, str]]:
  """Exit status and stderr of whole runs, each with the docs' parts but for some code."""
  lines = []
  for name, code in codes.items():
    (folder / name).mkdir()
    lines.append(fuzz_plugins.write(folder / name, f'mine_{name}', code))
  done = subprocess.run(
    [sys.executable, str(micro_run.CONFIG.parent / 'forked_commands.py')],
    input=json.dumps(lines),
    env=micro_run.environment(),
    cwd=folder,
    capture_output=True,
    text=True,
    check=True,
  )
  ended = json.loads(done.stdout)
  return {name: (status, err) for name, (status, _, err) in zip(codes, ended, strict=True)}


@pytest.mark.slow
def test_whole_runs_end_with_one_line_that_names_the_part(tmp_path):
  good = 'good = policy_gradient\npolicy_gradient = lambda x, *, scale=1.0: good(x)'
  found = _commands(
    tmp_path,
    counts=f'{good}.replace(count=0.0)',
    nan=f'{good}.replace(total=jnp.nan * good(x).total)',
    exits='def f(self, question, answer_text): sys.exit(0)\nimport sys\nSums.score = f',
  )
  for name, told in {
    'counts': "error: objective.name='mine_counts:policy_gradient' returned count=0.0 for total=",
    'nan': "Mend objective.name='mine_nan:policy_gradient', if it is that, or lower learner.",
    'exits': "error: task.name='mine_exits:Sums', score of question '0+3': SystemExit: 0 at ",
  }.items():
    status, err = found[name]
    assert status == 2
    last = err.splitlines()[-1]
    assert told in last
    assert last.startswith('error: ')
    assert 'Traceback' not in err
  assert 'learning' not in found['counts'][1]
