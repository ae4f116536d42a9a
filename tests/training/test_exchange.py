"""Tests episodes of other nodes: encoded and scored as own ones, or refused."""

from __future__ import annotations

import dataclasses
import json
import math

import hypothesis
import hypothesis.strategies as st
import micro_run
import numpy as np
import pytest
import run_comparison
from raw_endpoint import reply, replying

from agent_gspo.config import check as config_lib
from agent_gspo.training import exchange, loop, train_step
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.collect import collect
from agent_gspo.training.learner import Learner
from agent_gspo.training.progress import Progress


def _node(folder, seed, **values):
  """Returns setup, learner, fresh state, and a rollout with every second episode right."""
  values = {'rollout__questions': 3, 'rollout__group_size': 4, 'sft__steps': 0, **values}
  config = micro_run.changed(**values, rollout__share=str(folder), seed=seed)
  setup = setup_lib.build(config_lib.check(config))
  state = setup_lib.init_state(setup, setup.params)
  rollout, _, _ = collect(setup, state, Progress())
  return setup, setup_lib.make_learner(setup), state, _graded(rollout)


def _graded(rollout, *_):
  return dataclasses.replace(rollout, task_scores=rollout.sample % 2)


@pytest.fixture
def graded(monkeypatch):
  """Replaces the scores of a step and of others' groups."""
  replaced = lambda _, batch, canonical: _graded(batch)
  monkeypatch.setattr(exchange, 'scored', replaced)
  monkeypatch.setattr(train_step, 'scored', replaced)


def _ids(messages):
  return [(m.agent, m.prompt_ids.tolist(), m.token_ids.tolist(), m.ended) for m in messages]


@pytest.mark.usefixtures('graded')
def test_others_episodes_are_the_same_messages_under_the_own_weights(tmp_path):
  first = _node(tmp_path, 0)
  setup, learner, state, own = _node(tmp_path, 1, rollout__shared=2)
  both, metrics = exchange.extended(*first[:3], first[3])
  assert both is first[3]
  assert metrics == {'share/found': 0, 'share/refused': 0, 'share/groups': 0}
  both, metrics = exchange.extended(setup, learner, state, own)
  assert metrics == {'share/found': 3, 'share/refused': 0, 'share/groups': 2}
  assert both.messages[: len(own.messages)] == own.messages
  added = both.messages[len(own.messages) :]
  written = {q.id: [] for q in first[3].questions}
  for message, question in zip(first[3].messages, first[3].question.tolist(), strict=True):
    written[first[3].questions[question].id].append(message)
  for number in (3, 4):
    question = both.questions[number]
    group = [m for m, q in zip(both.messages, both.question.tolist(), strict=True) if q == number]
    assert _ids(group) == _ids(written[question.id])
    assert question == setup.questions[int(both.drawn[number])]
  for message, logprobs in zip(added, learner.score(state, added), strict=True):
    np.testing.assert_allclose(message.logprobs, logprobs, atol=1e-6)
    assert message.version == 0


def test_nodes_meet_in_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.chdir(tmp_path)
  exchange.open_folder('~/share')
  exchange.extended(*_node('~/share', 0))
  assert [path.name for path in (tmp_path / 'share').iterdir()] == ['0.jsonl']
  assert not (tmp_path / '~').exists()


@pytest.mark.usefixtures('graded')
def test_a_step_learns_from_them_at_ratio_1(tmp_path, monkeypatch):
  first = _node(tmp_path, 0)
  exchange.extended(*first)
  setup, learner, state, _ = _node(tmp_path, 1, learner__minibatches=1)
  seen = {}

  def update(self, state, minibatches, rollout, progress):
    total, tokens = self._log_ratios(state, minibatches[0], len(rollout.messages))
    seen.update(ratio=np.exp(total / tokens), episodes=rollout.num_episodes)
    return state, []

  monkeypatch.setattr(Learner, 'update', update)
  result = train_step.train_step(setup, learner, state, Progress())
  groups = result.metrics['share/groups']
  assert groups >= 2  # an untrained policy writes tokens that no text has
  assert groups + result.metrics['share/refused'] == 3
  assert seen['episodes'] == result.rollout.num_episodes + 4 * groups
  np.testing.assert_allclose(seen['ratio'], 1, atol=1e-4)
  assert len(result.advantages) == len(result.rewards.total) == len(result.rollout.messages)


@pytest.mark.usefixtures('graded')
def test_a_member_behind_an_endpoint_is_repeated_and_not_asked(tmp_path):
  with replying(lambda prompt: (200, reply('2'))) as (address, prompts):
    model = {'team__roles__solver__model': f'endpoint:{address}#dear'}
    first, (setup, learner, state, own) = (_node(tmp_path, seed, **model) for seed in (0, 1))
    exchange.extended(*first)
    asked = len(prompts)
    both, metrics = exchange.extended(setup, learner, state, own)
  assert metrics['share/groups'] >= 1
  assert len(prompts) == asked
  added = both.messages[len(own.messages) :]
  assert all(m.learns == (m.agent < 2) == (m.version == 0) for m in added)
  assert {m.text.strip() for m in added if m.agent == 2} == {'2'}


def test_groups_that_tie_or_that_this_team_cannot_have_written_are_left(tmp_path, monkeypatch):
  setup, learner, state, own = _node(tmp_path, 0)
  exchange.extended(setup, learner, state, own)
  lines = (tmp_path / '0.jsonl').read_text().splitlines()
  good = json.loads(lines[0])

  def metrics(changed):
    (tmp_path / '9.jsonl').write_text(json.dumps(changed) + '\n')
    both, found = exchange.extended(setup, learner, state, own)
    assert (both is own) == (not found['share/groups'])
    return found['share/refused'], found['share/groups']

  monkeypatch.setattr(exchange, 'scored', lambda _, batch, canonical: _graded(batch))
  assert metrics(good) == (0, 1)
  episode = good['episodes'][0]
  without_last, another_turn = episode[:-1], [*episode, [0, 99, '', 'eos']]
  unknown_word = [[a, r, 'xyzzy', e] for a, r, _, e in episode]
  for wrong in (
    {'digest': 'x'},
    {'question': 10**9},
    {'question': -1},
    {'question': math.inf},
    {'episodes': []},
    *({'episodes': [x, *good['episodes'][1:]]} for x in (without_last, another_turn, unknown_word)),
  ):
    assert metrics({**good, **wrong}) == (1, 0), wrong
  monkeypatch.setattr(exchange, 'scored', lambda _, batch, canonical: batch)
  tied = [good['episodes'][0]] * 4
  assert metrics({**good, 'episodes': tied}) == (0, 0)


_JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
  lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=5), x, max_size=3),
  max_leaves=8,
)


@pytest.fixture(scope='module')
def node(tmp_path_factory):
  return _node(tmp_path_factory.mktemp('share'), 0)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.fixed_dictionaries({}, optional={
  'question': _JSON | st.just(0), 'digest': _JSON | st.just(...), 'episodes': _JSON,
}))  # fmt: skip
def test_no_record_is_an_error(node, record):
  setup = node[0]
  if record.get('digest') is ...:
    record['digest'] = exchange._digest(setup.questions[0])
  assert exchange._encoded(setup, record) is None


@pytest.mark.slow
def test_two_runs_exchange_and_leave_their_own_figures(tmp_path):
  values = {'steps': 2, 'evaluation__every': 0, 'rollout__share': str(tmp_path / 'shared')}
  for seed in (0, 1):
    loop.train(micro_run.changed(**values, seed=seed), tmp_path / str(seed))
  alone, found = (
    run_comparison.records(tmp_path / str(seed), 'metrics.jsonl')[-1] for seed in (0, 1)
  )
  assert alone['share/found'] == 0
  assert found['share/found'] == 2
  assert (tmp_path / 'shared' / '1.jsonl').exists()


def test_a_folder_is_made_by_the_run_or_named(tmp_path):
  (tmp_path / 'file').touch()
  told = rf"rollout.share='{tmp_path}/file' must be a folder .*exists.* Set another one, or ''"
  with pytest.raises(ValueError, match=told):
    loop.train(micro_run.changed(rollout__share=f'{tmp_path}/file'), tmp_path / 'run')
  with pytest.raises(ValueError, match=r'rollout\.share=gs://bucket: must be a folder of this'):
    loop.train(micro_run.changed(rollout__share='gs://bucket'), tmp_path / 'run')
  setup_lib.plan(config_lib.check(micro_run.changed(rollout__share=f'{tmp_path}/planned')))
  assert not (tmp_path / 'planned').exists()


_TOLD = {
  'budget__mode': 'conditioned',
  'budget__lambda_max': 0.05,
  'budget__told_words': ('free', 'dear'),
  'team__roles__informant__opening': '{price} : {question} note : {note}',
}


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'rollout__branches': 2}, r"rollout.share='x' with rollout.branches=2: .* rollout.branches=1"),
    ({'rollout__must_speak': 1}, r'with rollout.must_speak=1'),
    ({'rollout__replay': 2}, r"rollout.share='x' with rollout.replay=2: .* Set rollout.share=''"),
    ({'advantage__name': 'rae'}, r"rollout.share='x' with advantage.name='rae'"),
    (
      {'reward__score': 'weighted_vote'},
      r"rollout.share='x' with reward.score='weighted_vote', whose weights .* Set rollout.share=''",
    ),
    (_TOLD, r'prices or budgets in prompts: .* rollout.share='),
  ],
)
def test_unsupported_exchange_is_refused_before_a_model_is_loaded(
  values, message, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(setup_lib, 'open_model', lambda *_, **__: pytest.fail('loaded a model'))
  with pytest.raises(ValueError, match=message):
    setup_lib.build(config_lib.check(micro_run.changed(rollout__share='x', **values)))
