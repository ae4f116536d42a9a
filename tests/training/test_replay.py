"""Tests replayed episodes: choice, ratios, metrics, exact resume."""

from __future__ import annotations

import dataclasses
import types

import hypothesis
import hypothesis.strategies as st
import micro_run
import numpy as np
import pytest
import run_comparison

from agent_gspo.config import check as config_lib
from agent_gspo.teams import batches
from agent_gspo.teams.options import RolloutOptions
from agent_gspo.training import loop, replay, train_step
from agent_gspo.training import setup as setup_lib
from agent_gspo.training.learner import Learner
from agent_gspo.training.progress import Progress
from agent_gspo.types import Message, Question, RolloutBatch


def _options(**values) -> RolloutOptions:
  default = config_lib.resolve(micro_run.changed()).rollout
  return dataclasses.replace(default, **{'replay': 4, **values})


def _rollout(scores: dict[str, list[int]], version: int) -> RolloutBatch:
  """Returns groups by question; the ids of each one-message episode name author and step."""
  episodes = [(q, i, score) for q, group in scores.items() for i, score in enumerate(group)]
  questions, empty = list(scores), np.zeros(0, np.int32)
  rollout = batches.from_messages(
    [
      Message(
        episode=e, agent=0, round=0, layer=0, prompt_ids=empty,
        token_ids=np.asarray([version, questions.index(q), i, score], np.int32),
        logprobs=np.full(4, -1.0 - version, np.float32), ended=True, text='', version=version,
      )
      for e, (q, i, score) in enumerate(episodes)
    ],
    questions=[Question(q, q, '') for q in questions],
    agent_names=('solver',),
    episode_question=[questions.index(q) for q, _, _ in episodes],
    sample=[i for _, i, _ in episodes],
    answers=[''] * len(episodes),
    task_scores=[score for _, _, score in episodes],
  )  # fmt: skip
  return dataclasses.replace(rollout, drawn=np.asarray([ord(q) for q in questions]))


def _groups(batch: RolloutBatch) -> dict[str, list[tuple[int, ...]]]:
  """Returns the messages of each question that has any."""
  found: dict[str, list[tuple[int, ...]]] = {}
  for message, question in zip(batch.messages, batch.question.tolist(), strict=True):
    assert batch.episode_question[message.episode] == question
    assert batch.task_scores[message.episode] == message.token_ids[-1]
    found.setdefault(batch.questions[question].id, []).append(tuple(message.token_ids.tolist()))
  return found


def _config(options, **reward):
  config = config_lib.resolve(micro_run.changed())
  reward = dataclasses.replace(config.reward, **reward)
  return dataclasses.replace(config, rollout=options, reward=reward)


def test_tied_groups_borrow_the_other_outcome_or_learn_from_another_group():
  options = _options(group_size=4)
  first = _rollout({'a': [1, 0, 1, 1], 'b': [0, 0, 0, 0], 'c': [0, 1, 0, 0], 'd': [1, 1, 1, 0]}, 0)
  memory = replay.remembered(options, (), first, 0)
  assert [group.questions[0].id for group in memory] == ['a', 'c', 'd']  # 'b' teaches nothing
  second = _rollout({'b': [0] * 4, 'e': [1] * 4, 'a': [0] * 4, 'd': [1] * 4, 'f': [1, 0, 0, 1]}, 1)
  found = replay.extended(_config(options), memory, second, 1)
  own = _groups(second)
  assert _groups(found) == {
    **own,
    'a': own['a'] + [(0, 0, 0, 1), (0, 0, 2, 1)],  # right ones, half a group
    'd': own['d'] + [(0, 3, 3, 0)],  # all wrong ones that there are
    'c': [(0, 2, i, int(i == 1)) for i in range(4)],  # whole, in place of 'b'; 'e' has none left
  }
  assert found.messages[: len(second.messages)] == second.messages
  np.testing.assert_array_equal(found.drawn[found.question], [ord(q) for q in (
    *'bbbb', *'eeee', *'aaaa', *'dddd', *'ffff', *'aa', *'d', *'cccc',
  )])  # fmt: skip
  memory = replay.remembered(options, memory, second, 1)
  assert [group.questions[0].id for group in memory] == ['f', 'a', 'c', 'd']  # newest first
  assert replay.extended(_config(options), (), second, 1) is second
  assert replay.remembered(_options(replay=0), memory, second, 1) == ()


def test_scores_that_compare_a_group_are_not_mixed_with_those_of_another():
  options = _options(group_size=4)
  memory = replay.remembered(options, (), _rollout({'a': [1, 0, 1, 1]}, 0), 0)
  second = _rollout({'a': [0, 0, 0, 0]}, 1)
  found = replay.extended(_config(options, score='vote'), memory, second, 1)
  assert found.episode_question.tolist() == [0] * 4 + [1] * 4  # the old group is one of its own
  assert replay.extended(_config(options), memory, second, 1).episode_question.tolist() == [0] * 6


def test_mini_batches_are_even_where_borrowed_groups_leave_gaps_between_questions():
  rollout = _rollout({q: [0, 1] for q in 'abcd'}, 0)
  config = config_lib.resolve(micro_run.changed(learner__minibatches=2))
  learner = types.SimpleNamespace(config=config)
  sparse = dataclasses.replace(rollout, question=rollout.question * 3)
  for step in range(8):
    few, many = Learner._indices(learner, sparse, np.ones(8, bool), step)
    assert len(few) == len(many) == 4


def test_messages_of_a_frozen_model_have_no_age():
  frozen = lambda m: dataclasses.replace(m, learns=False, version=-1) if m.token_ids[2] % 2 else m
  first, second = (
    dataclasses.replace(batch, messages=tuple(map(frozen, batch.messages)))
    for batch in (_rollout({'a': [1, 0, 0, 1]}, 6), _rollout({'a': [1, 1, 1, 1]}, 7))
  )
  options = _options(group_size=4, replay_age=1)
  memory = replay.remembered(options, (), first, 6)
  found = replay.extended(_config(options), memory, second, 7)
  metrics = replay.metrics(second, found, 7)
  assert (metrics['replay/episodes'], metrics['replay/age']) == (2, 1)
  assert replay.remembered(options, memory, second, 7) == memory
  assert replay.extended(_config(options), memory, second, 8) is second


@pytest.mark.slow
@hypothesis.settings(deadline=None)
@hypothesis.given(
  st.lists(
    st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=4),
    max_size=10,
  ),
  st.integers(1, 5),
  st.integers(1, 4),
  st.integers(0, 2),
)
def test_nothing_is_older_than_the_bound_or_more_than_was_asked_for(steps, capacity, age, ahead):
  options = _options(replay=capacity, replay_age=age + ahead, ahead=ahead, group_size=3)
  memory: replay.Memory = ()
  for step, groups in enumerate(steps):
    new = _rollout(dict(zip('abcd', groups, strict=False)), max(step - ahead, 0))
    learned = replay.extended(_config(options), memory, new, step)
    assert (step - learned.version <= options.replay_age).all()
    tied = sum(len({*group}) == 1 for group in groups)
    assert learned.num_episodes <= new.num_episodes + tied * options.group_size
    if learned is not new:
      assert tied
      # What was added teaches: no group that got an episode ties.
      for question in np.unique(learned.episode_question[new.num_episodes :]):
        assert len({*learned.task_scores[learned.episode_question == question]}) == 2
    memory = replay.remembered(options, memory, new, step)
    assert len(memory) <= capacity
    assert all(len({*group.task_scores}) == 2 for group in memory)


def _scores(monkeypatch, scores):
  """Replaces the scores of each rollout, float `[E]`, by step."""
  monkeypatch.setattr(
    train_step,
    'scored',
    lambda options, batch, canonical: dataclasses.replace(batch, task_scores=scores(batch)),
  )


def test_ratios_are_to_the_weights_that_wrote_it_and_metrics_are_of_the_new(monkeypatch):
  values = {'rollout__group_size': 4, 'learner__minibatches': 1, 'learner__learning_rate': 0.03}
  config = micro_run.changed(**values, rollout__replay=4, sft__steps=0)
  setup = setup_lib.build(config_lib.check(config))
  learner = setup_lib.make_learner(setup)
  state = setup_lib.init_state(setup, setup.params)
  _scores(monkeypatch, lambda batch: batch.sample % 2)
  first = train_step.train_step(setup, learner, state, Progress())
  assert [len(group.messages) for group in first.memory] == [12, 12]
  assert first.metrics['replay/share'] == 0
  _scores(monkeypatch, lambda batch: np.ones(batch.num_episodes))
  ratios = {}

  def update(self, state, minibatches, rollout, progress):
    new = self.score(state, rollout.messages)
    total, tokens = self._log_ratios(state, minibatches[0], len(rollout.messages))
    ratios['packed'] = np.exp(total / tokens)
    ratios['stored'] = np.exp(
      [(x - m.logprobs).mean() for x, m in zip(new, rollout.messages, strict=True)]
    )
    return state, []

  monkeypatch.setattr(Learner, 'update', update)
  without, with_memory = (
    train_step.train_step(setup, learner, first.state, Progress(), memory=memory)
    for memory in ((), first.memory)
  )
  count = len(with_memory.rollout.messages)
  assert len(ratios['packed']) == 2 * count == 48
  np.testing.assert_allclose(ratios['packed'], ratios['stored'], atol=1e-5)
  np.testing.assert_allclose(ratios['packed'][:count], 1, atol=1e-4)
  assert (np.abs(ratios['packed'][count:] - 1) > 1e-2).mean() > 0.5
  # The policy's own figures are those of a step without memory.
  kinds = ('task/', 'tokens/', 'comm/', 'reward/', 'selection/', 'budget/', 'advantage/tied')
  own = lambda result: {k: v for k, v in result.metrics.items() if k.startswith(kinds)}
  assert own(with_memory) == own(without)
  assert own(with_memory)['advantage/tied_groups'] == 1
  found = {k: v for k, v in with_memory.metrics.items() if k.startswith('replay/')}
  assert found == {
    'replay/tied_groups': 1, 'replay/episodes': 8, 'replay/share': 0.5, 'replay/age': 1
  }  # fmt: skip
  assert len(with_memory.advantages) == len(with_memory.rewards.total) == count
  for name in ('task_scores', 'drawn'):
    np.testing.assert_array_equal(
      getattr(with_memory.rollout, name), getattr(without.rollout, name)
    )


@pytest.mark.slow
@pytest.mark.parametrize('ahead', [0, 1])
def test_a_killed_run_ends_bit_for_bit(tmp_path, ahead):
  config = micro_run.changed(
    steps=6,
    rollout__replay=3,
    rollout__replay_age=4,
    rollout__ahead=ahead,
    rollout__questions=3,
    reward__score='consistency',
    evaluation__every=0,
    checkpoint__every=2,
  )
  loop.train(config, tmp_path / 'whole')
  metrics = run_comparison.records(tmp_path / 'whole', 'metrics.jsonl')
  assert any(line['replay/episodes'] for line in metrics[4:])
  assert max(line.get('replay/age', 0) for line in metrics[4:]) > 1  # of before the kill

  def killed(step, _):
    if step == 5:
      raise SystemExit('killed')

  with pytest.raises(SystemExit):
    loop.train(config, tmp_path / 'cut', on_step=killed)
  assert run_comparison.saved(tmp_path / 'cut')[0] == 4
  loop.train(config, tmp_path / 'cut')
  run_comparison.assert_same_run(tmp_path / 'cut', tmp_path / 'whole', 6)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (
      {'rollout__branches': 2},
      r'rollout.replay=3 with rollout.branches=2: .* Set rollout.replay=0',
    ),
    ({'rollout__opponents': 'pool'}, r"rollout.replay=3 with rollout.opponents='pool'"),
    ({'rollout__ahead': 4}, r'replay_age=1 must be above rollout.ahead=4: .*replay_age=5 or more'),
    (
      {'advantage__name': 'replay', 'advantage__costs': 'inside'},
      r"rollout.replay=3 with advantage.name='replay', .* advantage.name='per_component'",
    ),
    ({'advantage__name': 'rae'}, r"rollout.replay=3 with advantage.name='rae'"),
  ],
)
def test_unsupported_replay_is_refused_before_a_model_is_loaded(values, message, monkeypatch):
  monkeypatch.setattr(setup_lib, 'open_model', lambda *_, **__: pytest.fail('loaded a model'))
  with pytest.raises(ValueError, match=message):
    setup_lib.build(config_lib.check(micro_run.changed(rollout__replay=3, **values)))
