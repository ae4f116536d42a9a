"""Tests the inputs of estimators: which messages share a history."""

from __future__ import annotations

import dataclasses

import numpy as np
import scripted_teams

from agent_gspo.rewards import communication
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.rewards.returns import returns_to_go
from agent_gspo.teams import batches
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.training.advantages import estimator_inputs
from agent_gspo.types import Message

TOKENIZER = scripted_teams.byte_tokenizer()


def _inputs(said):
  """Returns inputs of a star in which agents write `said[sample]`.

  Also returns which messages the third agent wrote, one per episode.
  """
  team = scripted_teams.team('star', addressing=True, max_message_tokens=40)
  speak = lambda turn: said[turn.sample][turn.agent]
  policy = ScriptedPolicy(speak, TOKENIZER)
  questions = scripted_teams.questions(1)
  batch = rollout(team, scripted_teams.Echo(), TOKENIZER, questions, len(said), policy)
  rewards = communication.reward_terms(RewardOptions(), batch, 0.0)
  found = estimator_inputs(
    batch,
    rewards,
    grouping='question',
    probability=np.full(1, 0.5),
  )
  return found, np.flatnonzero(batch.agent == 2)


def test_what_is_for_others_is_no_part_of_an_agents_history():
  found, last = _inputs(
    [
      ('@agent2 alpha', 'gamma', '3'),
      ('@agent2 beta', 'gamma', '3'),
      ('', 'gamma', '3'),  # for the third agent equal to a message that is not for it
      ('@agent3 alpha', 'gamma', '3'),
      ('@agent3 beta', 'gamma', '3'),
      ('@agent3 alpha', 'gamma', '4'),  # its own messages come after those that it read
    ]
  )
  assert len(set(found.observation[last][:3])) == 1
  for ids, steps in zip(found.history[:, last], (1, 2, 3), strict=True):
    expected = [0, 0, 0, 0, 0, 0] if steps == 1 else [0, 0, 0, 1, 2, 1]  # the last one is 'gamma'
    assert np.unique(ids, return_inverse=True)[1].tolist() == expected


def _talk(rewards, scores, told=((), (), (), ())):
  """Returns two episodes of one question, in each of which an agent writes twice."""
  talk = [
    Message(
      episode=episode,
      agent=0,
      round=round_,
      layer=0,
      prompt_ids=np.asarray([3 + round_], np.int32),
      token_ids=np.asarray([5, 1], np.int32),
      logprobs=np.zeros(2, np.float32),
      ended=True,
      text='x',
      reward=rewards[2 * round_ + episode],
      told=told[2 * round_ + episode],
    )
    for round_ in range(2)
    for episode in range(2)
  ]
  return batches.from_messages(
    talk,
    questions=scripted_teams.questions(1),
    agent_names=('agent',),
    episode_question=[0, 0],
    sample=[0, 1],
    answers=['', ''],
    task_scores=scores,
  )


def _of_talk(batch):
  returns = returns_to_go(batch, 1.0)
  terms = communication.reward_terms(RewardOptions(), batch, 0.0, returns=returns)
  return estimator_inputs(batch, terms, grouping='question', probability=np.ones(1))


def test_a_message_that_earned_nothing_earned_0():
  """A task with its own episodes may reward some messages only."""
  found = [_of_talk(_talk((1.0, -1.0, nothing, nothing), [0.0, 0.0])) for nothing in (None, 0.0)]
  for some, every in zip(*map(dataclasses.astuple, found), strict=True):
    np.testing.assert_array_equal(some, every)
  np.testing.assert_array_equal(found[0].own_rewards, [1, -1, 0, 0])


def test_an_episode_without_rewards_has_earned_its_score_at_its_end():
  x = _of_talk(_talk((1.0, None, 2.0, None), [0.25, 0.5]))
  np.testing.assert_array_equal(x.rewards, [3, 0.5, 2, 0.5])
  np.testing.assert_array_equal(x.own_rewards, [1, 0, 2, 0.5])
  np.testing.assert_array_equal(x.episode_rewards, [3, 0.5, 3, 0.5])


def test_what_was_observed_is_part_of_a_history_also_without_rewards():
  told = ((), (), ('a storm comes',), ('calm sea',))
  same, other = (_of_talk(_talk((None,) * 4, [1.0, 0.0], t)).history for t in (told[:2] * 2, told))
  assert (same[:, 2] == same[:, 3]).all()
  assert (other[:, 2] != other[:, 3]).all()
  assert (other[:, 0] == other[:, 1]).all()
