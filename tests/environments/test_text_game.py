"""Tests games with TextArena's interface as environments."""

from __future__ import annotations

import copy
import pickle
import random
import re
import time
from concurrent import futures

import hypothesis
import hypothesis.strategies as st
import pytest

from agent_gspo.environments.text_game import Played, TextGame
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.plugins import PluginError
from agent_gspo.tasks.registry import make_task
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team


class Count:
  """Plays counting in turns up to a limit drawn by dice, in TextArena's style.

  Observations are consumed when read, and draws are from `random` itself.
  """

  def reset(self, num_players, seed=None):
    random.seed(seed)
    self.total, self.player, self.rewards = 0, 0, None
    self.goal = random.randint(3, 4)
    self.told = {player: [(-1, f'to {self.goal}', None)] for player in range(num_players)}

  def get_observation(self):
    told, self.told[self.player] = self.told[self.player], []
    return self.player, told

  def step(self, action):
    number = int(action)  # raises on most texts
    right = number == self.total + 1
    self.total, other = number, 1 - self.player
    self.told[other].append((self.player, action, None))
    self.told[other].append((-1, f'dice {random.randint(1, 6)}', None))
    done = not right or number == self.goal
    if done:
      self.rewards = {self.player: 1 if right else -1, other: 0}
    self.player = other
    return done, {}

  def close(self):
    return self.rewards, {}


class Waiting(Count):
  """Yields to other threads in mid-game."""

  def step(self, action):
    time.sleep(0.002)
    return super().step(action)


TASK = TextGame(game='test_text_game:Count', players=2)


def test_a_game_is_played_by_its_rules_and_leaves_the_generator_alone():
  role = {'opening': '', 'incoming': '{message} ', 'cue': 'say :'}
  options = {'agents': ('a', 'a'), 'topology': 'complete', 'rounds': 4, 'max_message_tokens': 3}
  team = make_team({**options, 'roles': {'a': role}})
  tokenizer = word_level(['say', ':', 'to', 'dice', 'environment', *'0123456789'])
  asked = [TASK.questions('test')[i] for i in range(20)]
  spoken = []

  def script(turn):
    spoken.append((turn.question.id, turn.agent, turn.told))
    return str(len(turn.state.actions) + 1)

  before = random.getstate()
  batch = rollout(team, TASK, tokenizer, asked, 1, ScriptedPolicy(script, tokenizer))
  assert random.getstate() == before
  for e, question in enumerate(asked):
    told = [texts for id_, _, texts in spoken if id_ == question.id]
    goal = int(told[0][0].split()[-1])
    assert len(told) == goal
    first, *later = told[1][0].split('\n')
    assert first == f'to {goal}'  # once, and then what the other one said
    assert later[0] == '1'
    assert told[2][0].split('\n')[0] == '2'
    rewards = [m.reward for m in batch.messages if m.episode == e]
    assert rewards[-1] == 1.0
    assert not any(rewards[:-1])
    assert batch.task_scores[e] == float(goal % 2)  # player 0 begins
  assert len({len([s for s in spoken if s[0] == q.id]) for q in asked}) == 2


def test_threads_play_games_of_their_own():
  """All threads share Python's generator, from which the games draw."""
  task = TextGame(game='test_text_game:Waiting', players=2)
  states = [task.begin(question, 0) for question in task.questions('test')[:9]]
  play = lambda state: task.observe(task.act(state, {0: '1'})[0], 1)
  alone = [play(state) for state in states]
  with futures.ThreadPoolExecutor(4) as threads:
    assert list(threads.map(play, states)) == alone


def test_games_depend_on_the_seed_and_splits_share_none():
  seeds = lambda task, split: [task.begin(q, s).seed for q in task.questions(split) for s in (0, 1)]
  small = {'game': 'test_text_game:Count', 'train_size': 300}
  task = make_task('text_game', **small)
  found = [{*seeds(task, split)} for split in ('train', 'validation', 'test')]
  assert [len(x) for x in found] == [300, 200, 500]
  assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]
  assert seeds(task, 'train') == seeds(make_task('text_game', **small), 'train')
  assert not found[0] & {*seeds(make_task('text_game', **small, seed=1), 'train')}


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from('0123')), max_size=4))
def test_what_is_no_action_ends_the_game_without_a_reward(texts):
  state, done = Played(seed=7), False
  for i, text in enumerate(texts):
    before = copy.deepcopy(state)
    now, rewards, done = TASK.act(state, {i % 2: text})
    assert state == before
    state = pickle.loads(pickle.dumps(now))
    assert state == now
    if text != str(i + 1):
      assert done
      assert max(rewards.values(), default=0) <= 0
    if done:
      break
    assert not rewards
  assert 0 <= TASK.score(TASK.questions('test')[0], TASK.outcome(state)) <= 1


class Buggy(Count):
  """Reads an attribute that it never set."""

  def step(self, action):
    return self.undefined, {}


class Unimported(Count):
  """Calls a function that it never imported."""

  def step(self, action):
    return undefined(action), {}  # noqa: F821


@pytest.mark.parametrize(
  ('game', 'message'), [('Buggy', "AttributeError: .*'undefined'"), ('Unimported', 'NameError: ')]
)
def test_a_bug_of_a_game_is_no_wrong_action(game, message):
  task = TextGame(game=f'test_text_game:{game}')
  where = rf"task\.options\.game='test_text_game:{game}': {message}.* at test_text_game\.py:\d+"
  with pytest.raises(PluginError, match=where):
    task.act(Played(seed=7), {0: '1'})


class Matched(Count):
  """Reads a number from any text, without checking the match."""

  def step(self, action):
    return super().step(re.match(r'\d+', action).group())


def test_a_match_that_a_game_does_not_check_is_a_wrong_action():
  state, rewards, done = TextGame(game='test_text_game:Matched').act(Played(seed=7), {0: 'x'})
  assert (state.result, rewards, done) == (0.0, {}, True)


def test_a_missing_factory_is_named():
  with pytest.raises(ValueError, match=r"task\.options\.game='': write module:Name"):
    TextGame()
