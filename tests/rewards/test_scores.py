"""Tests scores without labels: definitions, symmetry, refused configs."""

from __future__ import annotations

import collections
import dataclasses

import micro_run
import numpy as np
import pytest
import scripted_teams as st
from hypothesis import given, settings
from hypothesis import strategies as hs

from agent_gspo.config import check as config_lib
from agent_gspo.rewards import scores
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.teams.rollout import rollout

# Answers of a group, its tokens, labels and the log-prob of each token.
EPISODES = hs.lists(
  hs.tuples(
    hs.sampled_from(['1', '2', '3', '', 'no number']),
    hs.integers(0, 3),
    hs.sampled_from([0.0, 0.5, 1.0]),
    hs.sampled_from([-3.0, -1.0, -0.1]),
  ),
  min_size=2,
  max_size=9,
)


def _canonical(text):
  return text if text.isdigit() else None


def _batch(groups):
  """Returns a rollout of one message per episode, padded with unparsed answers."""
  size = max(map(len, groups))
  rows = [row for group in groups for row in [*group, *[('', 1, 0.0, -1.0)] * (size - len(group))]]
  tokenizer = st.numbers_tokenizer(50)
  word = tokenizer.backend.token_to_id('0')
  policy = st.IdsPolicy(lambda turn: ([*[word] * 3, tokenizer.eos_id], True))
  found = rollout(st.team('single'), st.Echo(), tokenizer, st.questions(len(groups)), size, policy)
  answers, written, labels, logprob = zip(*rows, strict=True)
  messages = [
    dataclasses.replace(m, logprobs=np.full(len(m.token_ids), logprob[m.episode], np.float32))
    for m in found.messages
  ]
  return dataclasses.replace(
    found,
    answers=answers,
    task_scores=np.asarray(labels),
    messages=tuple(messages),
    written=np.asarray(written)[found.episode],
  )


def _definition(name, gate_open, answers, written, labels, logprobs):
  """Returns the score of each episode of a group, from counts and ranks."""
  given = [_canonical(answer) for answer in answers]
  if name == 'tournament':
    keys = [
      (label, -cost if open_ else 0)
      for label, cost, open_ in zip(labels, written, gate_open, strict=True)
    ]
    others = [[key for j, key in enumerate(keys) if j != i] for i in range(len(keys))]
    return [
      np.mean([(key > other) + 0.5 * (key == other) for other in rest])
      for key, rest in zip(keys, others, strict=True)
    ]
  tally = collections.Counter()
  for answer, logprob in zip(given, logprobs, strict=True):
    if answer is not None:
      tally[answer] += np.exp(np.float64(logprob)) if name == 'weighted_vote' else 1
  if name == 'consistency':
    return [tally[answer] / len(given) for answer in given]
  first, second = [*tally.most_common(2), (None, 0), (None, 0)][:2]
  majority = first[0] if first[1] > second[1] + 1e-9 else None
  return [float(answer is not None and answer == majority) for answer in given]


@pytest.mark.parametrize('gate', ['always', 'correct', 'group_accuracy'])
@pytest.mark.parametrize('name', ['vote', 'weighted_vote', 'consistency', 'tournament'])
@settings(max_examples=40, deadline=None)
@given(groups=hs.lists(EPISODES, min_size=1, max_size=3))
def test_scores_equal_their_definition_and_ignore_the_order(name, gate, groups):
  options = RewardOptions(score=name, gate=gate)
  batch = _batch(groups)
  found = scores.scored(options, batch, _canonical).task_scores
  assert ((found >= 0) & (found <= 1)).all()
  for question in range(len(groups)):
    own = np.flatnonzero(batch.episode_question == question)
    labels, written = batch.task_scores[own], batch.written[own]
    gate_open = {
      'always': np.ones(len(own), bool),
      'correct': labels == 1,
      'group_accuracy': np.full(len(own), labels.mean() >= 0.5),
    }[gate]
    logprobs = [batch.messages[e].logprobs[0] for e in own]
    answers = [batch.answers[e] for e in own]
    expected = _definition(name, gate_open, answers, written, labels, logprobs)
    np.testing.assert_allclose(found[own], expected, atol=1e-7)
    if name == 'tournament':
      assert found[own].mean() == pytest.approx(0.5)
  backwards = scores.scored(options, _batch([group[::-1] for group in groups]), _canonical)
  for group, there, back in zip(
    groups,
    np.split(found, len(groups)),
    np.split(backwards.task_scores, len(groups)),
    strict=True,
  ):
    np.testing.assert_allclose(there[: len(group)], back[: len(group)][::-1], atol=1e-7)


def test_an_answer_that_does_not_parse_never_wins():
  nothing = [None] * 5
  assert not scores.vote([*nothing, '7']).tolist()[:5].count(1.0)
  assert scores.vote([*nothing, '7']).tolist()[5] == 1
  assert not scores.vote(nothing).any()
  assert not scores.consistency(nothing).any()
  assert scores.vote(['1', '1', '2', '2', None]).tolist() == [0] * 5  # undecided


def test_confidence_outweighs_numbers():
  weights = np.asarray([0.1, 0.1, 0.9])
  assert scores.vote(['1', '1', '2'], weights).tolist() == [0, 0, 1]


def test_confidence_is_the_mean_of_the_log_probs_that_were_sampled():
  """A long confident answer outweighs a short doubtful one. Tools' tokens count as certain."""
  batch = _batch([[('1', 1, 0.0, -1.0), ('2', 1, 0.0, -1.5)]])
  long, short = batch.messages
  assert len(long.token_ids) > 1
  short = dataclasses.replace(short, token_ids=short.token_ids[:1], logprobs=short.logprobs[:1])
  options = RewardOptions(score='weighted_vote')
  found = scores.scored(options, dataclasses.replace(batch, messages=(long, short)), _canonical)
  assert found.task_scores.tolist() == [1, 0]
  by_tool = dataclasses.replace(short, inserted=np.ones(1, bool))
  found = scores.scored(options, dataclasses.replace(batch, messages=(long, by_tool)), _canonical)
  assert found.task_scores.tolist() == [0, 1]


def test_the_confidence_in_an_answer_is_that_of_its_author_whoever_speaks_last():
  batch = _batch([[('1', 1, 0.0, -1.0), ('2', 1, 0.0, -1.5)]])
  readers = [dataclasses.replace(m, agent=0, logprobs=-1 - m.logprobs) for m in batch.messages]
  answers = [dataclasses.replace(m, agent=1) for m in batch.messages]
  batch = dataclasses.replace(
    batch, agent_names=('reader', 'solver'), messages=(*answers, *readers)
  )
  found = scores.scored(RewardOptions(score='weighted_vote'), batch, _canonical)
  assert found.task_scores.tolist() == [1, 0]


def test_labels_and_scores_agree_where_both_call_it_right_or_wrong():
  labels, seen = np.float64([1, 1, 0, 0.5, 0]), np.float64([1, 0, 0.2, 0.7, 0.4])
  found = scores.label_agreement(RewardOptions(score='vote'), labels, seen)
  assert found == {'reward/label_agreement': 0.8}
  assert scores.label_agreement(RewardOptions(score='tournament'), labels, seen) == {}


def test_the_vote_of_all_authors_weighs_who_agrees_with_himself():
  answers = ['1', '1', '1', '2', '2', '3', '2', None, '4']
  authors = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
  # Self-consistency 1, 2/3 and 1/3: three votes for 1, 2 * 2/3 + 1/3 for 2.
  assert scores.collective_vote(answers, authors).tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0]
  assert not scores.vote(answers).any()  # undecided without the weights
  order = np.random.default_rng(0).permutation(9)
  again = scores.collective_vote([answers[i] for i in order], authors[order])
  assert again.tolist() == np.array([1, 1, 1, 0, 0, 0, 0, 0, 0])[order].tolist()
  assert not scores.collective_vote([None, None], np.array([0, 1])).any()
  # The share of the most common answer: 3 * 3/4 against 2.
  found = scores.collective_vote(['1', '1', '1', '5', '2', '2'], np.array([0, 0, 0, 0, 1, 1]))
  assert found.tolist() == [1, 1, 1, 0, 0, 0]


def test_each_agent_is_rewarded_for_its_own_answer():
  tokenizer = st.numbers_tokenizer(50)
  first = tokenizer.backend.token_to_id('0')
  # Agents 1 and 2 say 7 (about the other question 8), agent 3 says 9 and, in one sample, 7 (8).
  number = lambda turn: 9 if turn.agent == 2 and not turn.sample else 7 + (turn.question.id == 'q1')
  policy = st.IdsPolicy(lambda turn: ([first + number(turn), tokenizer.eos_id], True))
  team = st.team('debate', decision='majority')
  batch = rollout(team, st.Echo(), tokenizer, st.questions(2), 2, policy)
  found = scores.scored(RewardOptions(score='collective_vote'), batch, _canonical)
  expected = [float(m.agent < 2 or batch.sample[m.episode] > 0) for m in batch.messages]
  assert [m.reward for m in found.messages] == expected
  assert found.task_scores.tolist() == [1.0] * 4  # the team's answer is the majority's


def test_right_comes_first_then_cheaper():
  found = scores.tournament(np.asarray([1.0, 1, 0, 0]), np.asarray([9.0, 2, 0, 0]))
  assert found.tolist() == pytest.approx([2 / 3, 1, 1 / 6, 1 / 6])


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'task__name': 'half_maze', 'task__options': {}}, "task 'half_maze' brings its own episode"),
    ({'advantage__name': 'worth'}, "advantage.name='worth', which reads gold answers"),
    ({'rollout__group_size': 1, 'advantage__name': 'reinforce_pp'}, 'group_size=1 must be 2'),
    ({'reward__score': 'tournament'}, 'budget.lambda_tok=0.02 and'),
    ({'reward__score': 'collective_vote'}, 'compares independent answers of agents'),
    ({'reward__score': 'majority'}, "reward.score='majority'"),
  ],
)
def test_configs_that_would_still_read_labels_are_refused(values, message):
  values = {'reward__score': 'vote', 'advantage__costs': 'inside'} | values
  with pytest.raises(ValueError, match=message) as error:
    config_lib.check(micro_run.changed(**values))
  assert 'reward.score' in str(error.value)
  config_lib.check(micro_run.changed(reward__score='vote'))
  config_lib.check(micro_run.changed(reward__score='tournament', budget__lambda_tok=0.0))
