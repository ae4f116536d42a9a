"""Checks that faulty plug-ins end in one line that names field and part."""

from __future__ import annotations

import json
import sys

import fuzz_plugins
import micro_run
import numpy as np
import pytest
from scripted_teams import Echo, IdsPolicy, numbers_tokenizer, questions, team

from agent_gspo import plugins
from agent_gspo.config import check as config_lib
from agent_gspo.evaluation import evaluate
from agent_gspo.tasks import checked
from agent_gspo.teams.rollout import rollout
from agent_gspo.types import Question

_SILENT = lambda turn: ([turn.stop_ids[0]], True)


def _graded(task) -> list[float]:
  """Returns training scores of two episodes of each of two questions."""
  policy, asked = IdsPolicy(_SILENT), questions(2)
  batch = rollout(team('star'), task, numbers_tokenizer(9), asked, 2, policy)
  return batch.task_scores.tolist()


def _evaluated(task) -> list[float]:
  """Returns scores of an evaluation."""
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
  assert isinstance(error.value.__cause__, KeyError)  # with the plug-in's traceback
  told = str(error.value)
  assert told.startswith("task 'echo', score of question 'q0': KeyError: 'nothing' at test_plugins")
  assert told.endswith(f'test_plugins.py:{Own.score.__code__.co_firstlineno + 1}.')


@pytest.mark.parametrize(
  ('field', 'value'),
  [('answer', 1), ('notes', 'ab'), ('documents', 'ab'), ('documents', (1,)), ('relevant', 'ab')],
)
def test_a_question_with_a_field_of_another_type_is_refused(field, value):
  class Own(Echo):
    def _split(self, split):
      fields = {'text': 'How many?', 'answer': '1', 'notes': ('a', 'b'), field: value}
      return [Question('q', **fields)]

  with pytest.raises(plugins.PluginError) as error:
    Own().questions('train')
  assert f'question 0: {field} is {value!r}; must be a t' in str(error.value)


@pytest.mark.parametrize(
  ('method', 'value', 'told'),
  [
    ('gold_messages', ['42'], r"returned a list, \['42'\]; must return a list of pairs of texts"),
    ('gold_messages', '4242', r'returned a str, .*; must return a list of pairs'),
    ('gold_messages', [('', '4', '2')], r'returned a list, .*; must return a list of pairs'),
    ('gold_messages', [('', 42)], r'returned a list, .*; must return a list of pairs'),
    ('gold_messages', None, 'None'),
    ('plain_message', None, r'returned None; must return a text'),
    ('story', 3, r'returned .*; must return a text'),
    ('kind', None, r'returned None; must return a text'),
    ('needs', True, r'returned a bool, True; must return a text'),
    ('further_demonstrations', [{'id': 'a'}], r'returned a list.*list of agent_gspo.Question'),
    ('further_demonstrations', None, r'returned None; must return a list of agent_gspo.Question'),
    ('policy_figures', {'game/x': 'abc'}, r'returned a dict.*; must return a dict of numbers'),
    ('policy_figures', {'game/x': float('nan')}, 'must return a dict of numbers'),
    ('policy_figures', [0.5], 'must return a dict of numbers'),
  ],
)
def test_what_methods_of_a_task_return_is_checked(method, value, told):
  own = type('Own', (Echo,), {method: lambda self, *arguments: value})()
  checked.adopt(own, 'mine:Own')
  with pytest.raises(plugins.PluginError, match=f"task.name='mine:Own'.*{method}.*{told}"):
    getattr(own, method)(*questions(1))


@pytest.mark.parametrize(
  'method', ['kind', 'needs', 'further_demonstrations', 'policy_figures', 'story']
)
def test_methods_of_a_task_that_raise_are_named(method):
  own = type('Own', (Echo,), {method: lambda self, *arguments: {}['x']})()
  checked.adopt(own, 'mine:Own')
  with pytest.raises(plugins.PluginError, match=f"task.name='mine:Own', {method}: KeyError: 'x'"):
    getattr(own, method)(*questions(1))


def test_gold_answers_may_be_any_sequence_of_pairs():
  own = type(
    'Own', (Echo,), {'gold_messages': lambda self, question: iter([['', '4'], ('a', '2')])}
  )()
  checked.adopt(own, 'mine:Own')
  assert list(own.gold_messages(*questions(1))) == [['', '4'], ('a', '2')]


@pytest.mark.parametrize('raised', [SystemExit(0), SystemExit('done'), GeneratorExit(), OSError()])
def test_whatever_ends_a_part_is_its_error(raised):
  with pytest.raises(plugins.PluginError, match=f'x=.*: {type(raised).__name__}'):
    with plugins.guard("x='mine:f'", 'mine'):
      raise raised


def test_ctrl_c_stays_ctrl_c():
  with pytest.raises(KeyboardInterrupt), plugins.guard("x='mine:f'", 'mine'):
    raise KeyboardInterrupt


@pytest.mark.parametrize('code', ['sys.exit(0)', 'def get_config(): sys.exit()'])
def test_a_config_file_that_ends_the_program_is_refused(code, tmp_path):
  (tmp_path / 'config.py').write_text(f'import sys\n{code}\n')
  line = micro_run.command('train', f'--config={tmp_path}/config.py', '--dry_run')
  done = micro_run.run(line)
  assert done.returncode == 2
  assert done.stderr.splitlines() == [
    'error: --config: the file calls sys.exit; must return a config instead.'
  ]


def test_an_objective_may_read_what_the_config_gives_it(tmp_path, monkeypatch):
  code = (
    'import agent_gspo.algorithms as a\n'
    'def masked(x): return a.gspo(x.replace(advantages=x.advantages * x.span_share))\n'
    'def weighted(x): return a.gspo(x.replace(logprobs=x.logprobs * x.importance))\n'
  )
  (tmp_path / 'reads.py').write_text(code)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, 'reads', raising=False)
  check = lambda **fields: config_lib.check(micro_run.changed(**fields))
  check(objective__name='reads:masked', objective__ratio_span='episode')
  check(objective__name='reads:weighted', objective__tis_cap=2.0, learner__old_logprobs='trainer')
  with pytest.raises(
    plugins.PluginError, match=r"objective.name='reads:weighted': .* at reads.py:3"
  ):
    check(objective__name='reads:weighted')


_OBJECTIVE = 'good = policy_gradient\npolicy_gradient = lambda x, *, scale=1.0: good(x).replace('


@pytest.mark.slow
@pytest.mark.parametrize(
  ('code', 'told'),
  [
    (f'{_OBJECTIVE}count=0.0)', "objective.name='own:policy_gradient' returned count=0.0 for tot"),
    (f'{_OBJECTIVE}total=jnp.nan * good(x).total)', "Fix objective.name='own:policy_gradient', "),
    ('Sums.score = lambda self, *of: exit(0)', "='own:Sums', score of question '0+0': SystemExit"),
  ],
)
def test_a_whole_run_ends_with_one_line_that_names_the_part(code, told, tmp_path):
  at_once = ('--config.sft.steps=0', '--config.evaluation.untrained=last')
  line = micro_run.command(*fuzz_plugins.write(tmp_path, 'own', code), *at_once)
  done = micro_run.run(line)
  assert done.returncode == 2
  last = done.stderr.splitlines()[-1]
  assert last.startswith('error: ')
  assert told in last
  assert 'Traceback' not in done.stderr
  assert ('learning' in last) == ('Mend' in told)
