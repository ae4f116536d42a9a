"""Tests episodes in an environment: steps, ends, observations, rewards."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import math
import threading

import numpy as np
import pytest

from agent_gspo.config import check
from agent_gspo.environments.base import Environment
from agent_gspo.evaluation import results
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.packing import train_batches
from agent_gspo.rewards import communication
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.rewards.returns import returns_to_go
from agent_gspo.teams.policies import Reply, ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from agent_gspo.training.advantages import estimator_inputs
from agent_gspo.types import Question

TOKENIZER = word_level(['from', 'environment', 'a1', 'a2', ':', 'say', 'up', 'so', *'0123456789'])


class Climb(Environment):
  """Climbs a step of reward 1 at each `up`, to the top of 3; the last author sits out."""

  name = 'climb'

  def _split(self, split):
    return [Question('q', '0', '3')]

  def begin(self, question, sample):
    return (0, -1)

  def observe(self, state, agent):
    height, last = state
    return None if agent == last else str(height)

  def act(self, state, texts):
    height, _ = state
    earned = {agent: 1.0 for agent, text in texts.items() if text == 'up'}
    height += len(earned)
    # The teammate gets half.
    earned |= {1 - agent: 0.5 for agent in earned}
    return (height, max(texts)), earned, height >= 3

  def outcome(self, state):
    return str(state[0])


def team(**options):
  role = {'opening': '', 'incoming': 'from {sender} : {message} ', 'cue': 'say :'}
  given = {'agents': ('a', 'a'), 'topology': 'complete', 'rounds': 2, 'max_message_tokens': 3}
  return make_team({**given, 'roles': {'a': role}, **options})


def play(script, env=None, samples=1, branches=1, **options):
  env, policy = env or Climb(), ScriptedPolicy(script, TOKENIZER)
  questions = env.questions('test')
  return rollout(team(**options), env, TOKENIZER, questions, samples, policy, branches=branches)


def told(batch, episode=0):
  return [
    (m.agent, m.round, m.told, m.text, m.reward) for m in batch.messages if m.episode == episode
  ]


def test_an_episode_observes_acts_and_ends_when_it_is_done():
  batch = play(lambda turn: 'up')
  assert told(batch) == [
    (0, 0, ('0',), 'up', 1.5),
    (1, 0, ('1',), 'up', 1.5),
    (0, 1, ('2',), 'up', 1.0),
  ]
  assert (batch.answers[0], batch.task_scores[0]) == ('3', 1.0)
  texts = [TOKENIZER.decode(m.prompt_ids.tolist()) for m in batch.messages]
  assert texts[1] == 'from a1 : up from environment : 1 say :'
  assert texts[2].startswith('from environment : 0 say : up <eos>')


_SHORT = lambda turn: 'so' if turn.limit > 1 else ''


@pytest.mark.parametrize(
  ('script', 'options', 'turns', 'answer'),
  [
    (lambda turn: '', {}, [(0, 0), (1, 0)], '0'),  # all are silent
    (lambda turn: 'up' if turn.round == turn.agent == 0 else '', {}, [(0, 0), (1, 0), (1, 1)], '1'),
    (lambda turn: 'up', {'rounds': 1}, [(0, 0), (1, 0)], '2'),  # no step is left
    (_SHORT, {'max_episode_tokens': 3}, [(0, 0), (1, 0)], '0'),  # no token is left
  ],
)
def test_an_episode_ends_without_turns_that_fill_it_up(script, options, turns, answer):
  batch = play(script, **options)
  assert [(m.agent, m.round) for m in batch.messages] == turns
  assert (batch.answers[0], batch.task_scores[0]) == (answer, 0.0)


def test_agents_of_a_layer_act_at_once_and_may_share_reward():
  batch = play(lambda turn: 'up' if turn.agent else 'so', topology='debate')
  assert told(batch) == [
    (0, 0, ('0',), 'so', 0.5),
    (1, 0, ('0',), 'up', 1.0),
    (0, 1, ('1',), 'so', 0.0),  # the second wrote last
  ]


def test_observations_are_read_and_carry_no_loss():
  batch = play(lambda turn: 'up', samples=2)
  pack = train_batches.pack_messages(batch.messages, pack_length=64, micro_batch_size=1)
  learned = np.concatenate([b.loss_target[b.loss_mask > 0] for b in pack])
  written = np.concatenate([m.token_ids for m in batch.messages])
  assert sorted(learned.tolist()) == sorted(written.tolist())
  assert not {*TOKENIZER.encode('0 1 2')} & {*learned.tolist()}
  # Their reader pays for them.
  money = RewardOptions(cost='money', p_write=0.0, p_read=1e6)
  costs = communication.message_costs(money, batch)
  np.testing.assert_array_equal(costs, [len(m.prompt_ids) for m in batch.messages])


def test_records_tell_what_was_observed_and_earned():
  batch = play(lambda turn: 'up')
  record, *_ = results.of_questions(batch, team(), Climb(), TOKENIZER, step=0, split='test')
  first = record['messages'][0]
  assert (first['observed'], first['earned']) == (['0'], 1.5)
  # The plain text that was read is the prompt, without stop tokens.
  found = [message['text_read'] for message in record['messages']]
  ends = [int(TOKENIZER.eos_id in m.prompt_ids) for m in batch.messages]
  assert found == [len(m.prompt_ids) - end for m, end in zip(batch.messages, ends, strict=True)]


@pytest.mark.parametrize('discount', [0.0, 0.5, 1.0])
def test_messages_are_credited_with_what_their_author_earns_from_then_on(discount):
  rng = np.random.default_rng(0)
  says = {(s, a, r): rng.choice(['up', 'so', '']) for s in range(8) for a in (0, 1) for r in (0, 1)}
  batch = play(
    lambda turn: str(says[turn.sample, turn.agent, turn.round]), samples=8, topology='debate'
  )
  found = returns_to_go(batch, discount)
  for m, message in enumerate(batch.messages):
    own = [
      x
      for x in batch.messages
      if (x.episode, x.agent) == (message.episode, message.agent) and x.round >= message.round
    ]
    expected = math.fsum(x.reward * discount**i for i, x in enumerate(own))
    assert found[m] == pytest.approx(expected)
  assert len({*found.tolist()}) > 2
  terms = communication.reward_terms(RewardOptions(), batch, 0.0, returns=found)
  np.testing.assert_allclose(terms.total, found, rtol=1e-6)


def test_without_an_environment_the_task_score_is_the_reward():
  batch = play(lambda turn: 'up')
  plain = tuple(dataclasses.replace(m, reward=None) for m in batch.messages)
  plain = dataclasses.replace(batch, messages=plain)
  np.testing.assert_array_equal(returns_to_go(plain, 1.0), batch.task_scores[batch.episode])


def test_episodes_without_a_reward_keep_their_score_beside_others():
  batch = play(lambda turn: ['up', 'so'][turn.sample], samples=2, topology='debate')
  kept = tuple(
    dataclasses.replace(m, reward=None) if m.episode or m.round else m for m in batch.messages
  )
  batch = dataclasses.replace(batch, messages=kept, task_scores=np.asarray([0.25, 0.75]))
  found = returns_to_go(batch, 1.0)
  for m, message in enumerate(kept):
    assert found[m] == (0.75 if message.episode else message.reward or 0.0)
  assert {*found[batch.episode == 0].tolist()} > {0.0}


def test_equal_observations_are_anchors_whatever_the_prompts_are():
  batch = play(lambda turn: 'so up up'.split()[turn.sample], samples=3, topology='debate')
  rewards = communication.reward_terms(RewardOptions(), batch, 0.0)
  inputs = estimator_inputs(batch, rewards, grouping='question', probability=np.full(1, 0.5))
  seen = [(m.agent, m.told) for m in batch.messages]
  for i, a in enumerate(seen):
    for j, b in enumerate(seen):
      assert (inputs.observation[i] == inputs.observation[j]) == (a == b)
  past = collections.defaultdict(list)  # what each author has observed in its episode
  for k in range(3):
    past.clear()
    last = []
    for m in batch.messages:
      past[m.episode, m.agent].append(m.told)
      last.append((m.agent, past[m.episode, m.agent][-(k + 1) :]))
    equal = [[a == b for a in last] for b in last]
    np.testing.assert_array_equal(inputs.history[k][:, None] == inputs.history[k], equal)
  np.testing.assert_array_equal(inputs.reward, [m.reward for m in batch.messages])


@pytest.mark.parametrize(
  ('found', 'message'),
  [
    (None, 'act returned None; must return'),
    (((0, 0), {}), r'act returned \(\(0, 0\), \{\}\); must return'),
    (((0, 0), {0: math.nan}, False), 'must return'),
    (((0, 0), {0: '1'}, False), 'must return'),
    (((0, 0), math.inf, False), 'must return'),
    (((0, 0), {'a1': 5.0}, False), r'finite rewards by agent, 0\.\.1, or one for all'),
    (((0, 0), {2: 1.0}, False), 'must return'),
  ],
)
def test_a_faulty_environment_is_named(found, message):
  class Faulty(Climb):
    def act(self, state, texts):
      return found

  with pytest.raises(ValueError, match=f"task 'climb', converse: TypeError: .*{message}"):
    play(lambda turn: 'up', Faulty())


@pytest.mark.parametrize('found', [0, ('up',), False])
def test_an_observation_that_is_no_text_is_named(found):
  faulty = type('Faulty', (Climb,), {'observe': lambda self, state, agent: found})()
  with pytest.raises(
    ValueError, match=r"'climb', converse: TypeError: observe returned .*a text or"
  ):
    play(lambda turn: 'up', faulty)


class Echo(Climb):
  """Shows what was written last."""

  def begin(self, question, sample):
    return 'up'

  def observe(self, state, agent):
    return state

  def act(self, state, texts):
    return texts[max(texts)], {}, False

  def outcome(self, state):
    return state


def test_special_tokens_that_a_policy_writes_may_be_observed():
  pad, stop, up = TOKENIZER.pad_id, TOKENIZER.eos_id, TOKENIZER.encode('up')
  policy = lambda turns: [Reply.given([*up, pad, stop], True) for _ in turns]
  env = Echo()
  batch = rollout(team(), env, TOKENIZER, env.questions('test'), 1, policy)
  assert [m.told for m in batch.messages] == [('up',), *[('up <pad>',)] * 3]
  shown = [TOKENIZER.decode(m.prompt_ids.tolist()) for m in batch.messages]
  assert 'environment : up say' in shown[-1]


@pytest.mark.parametrize(
  ('world', 'lacking'),
  [
    ('memory', {'star': 'a turn of agent 2 behind all visits', 'debate': 'a turn of agent 2 beh'}),
    ('common_pool', dict.fromkeys(['star', 'chain', 'complete'], 'in which all write at once')),
    ('saboteur', {'debate': 'an agent that agent 3 reads in the first round'}),
    ('kuhn', {'debate': 'turns for the longest game'}),
  ],
)
def test_a_topology_without_the_turns_of_an_environment_is_refused(world, lacking):
  for topology in ('chain', 'star', 'complete', 'debate'):
    config = importlib.import_module(f'configs.{world}').get_config()
    config.team.topology = topology
    if topology in lacking:
      with pytest.raises(
        ValueError, match=f'team.topology: .*{world}.* needs .*{lacking[topology]}'
      ):
        check.check(config.to_dict())
    else:
      check.check(config.to_dict())


def test_a_vote_on_an_environments_outcome_is_refused():
  config = importlib.import_module('configs.kuhn').get_config()
  config.team.decision = 'majority'
  with pytest.raises(ValueError, match=r"decision='majority' with task 'kuhn', whose environment"):
    check.check(config.to_dict())


class Waits(Climb):
  """Waits until all episodes act at the same time."""

  threads = 4

  def __init__(self):
    self.together = threading.Barrier(4)

  def act(self, state, texts):
    self.together.wait(timeout=60)
    return super().act(state, texts)


def test_episodes_that_wait_do_so_together():
  alone, together = (play(lambda turn: 'up', env, samples=4) for env in (Climb(), Waits()))
  assert [told(alone, e) for e in range(4)] == [told(together, e) for e in range(4)]
  assert alone.answers == together.answers == ('3',) * 4
