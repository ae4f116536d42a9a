"""Tests a task's own episodes: turns, answers of an environment, limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from agent_gspo.config import check as config_lib
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from agent_gspo.types import Question
from configs import guessing as config_file
from configs.tasks import guessing

TASK = guessing.Guessing()
TOKENIZER = word_level([*TASK.vocabulary(), ':'])


def team(**options):
  return make_team({**config_file.get_config().team.to_dict(), **options})


def play(script, task=TASK, samples=1, policy=ScriptedPolicy, **options):
  questions = [Question(word, 'guess', word) for word in guessing._WORDS]
  return rollout(team(**options), task, TOKENIZER, questions, samples, policy(script, TOKENIZER))


def bisect(turn):
  """Guesses the middle of the interval that the prompt shows."""
  low, high = 1, guessing.NUMBERS
  said = TOKENIZER.decode(turn.prompt_ids.tolist()).replace('<eos>', '').split()
  for guess, answer in itertools.pairwise(said):
    if answer == 'higher':
      low = int(guess) + 1
    elif answer == 'lower':
      high = int(guess) - 1
  return str((low + high) // 2)


def test_an_environment_answers_until_the_episode_ends():
  batch = play(bisect, samples=2)
  assert batch.task_scores.tolist() == [1.0] * 14
  guesses = {e: [m.text for m in batch.messages if m.episode == e] for e in range(14)}
  assert guesses[1 * 2] == ['4', '2']
  assert guesses[2 * 2 + 1] == ['4', '2', '3']
  assert guesses[3 * 2] == ['4']
  # Messages are in the order of turns, those of the environment at their place.
  assert [(m.round, m.agent) for m in batch.messages] == (
    [(0, 0)] * 14 + [(0, 1)] * 12 + [(1, 0)] * 8
  )
  first, second, last = (m for m in batch.messages if m.episode == 4)
  assert TOKENIZER.decode(second.prompt_ids.tolist()) == 'guess 4 lower :'
  assert TOKENIZER.decode(last.prompt_ids.tolist()) == 'guess : 4 <eos> lower 2 higher :'
  np.testing.assert_array_equal(last.prompt_ids[: len(first.path)], first.path)
  assert (first.readers, second.readers, last.readers) == (2, 1, 0)


def test_wrong_guesses_end_with_the_last_round():
  batch = play(lambda turn: '7')
  assert batch.task_scores.tolist() == [0.0] * 6 + [1.0]
  assert len(batch.messages) == 6 * 3 + 1


def test_parts_of_a_rollout_have_the_same_messages():
  whole, parts = (
    rollout(
      team(), TASK, TOKENIZER, TASK.questions('test'), 1, ScriptedPolicy(bisect, TOKENIZER), parts=n
    )
    for n in (1, 3)
  )
  told = lambda batch: [(m.episode, m.round, m.text, m.readers) for m in batch.messages]
  assert told(whole) == told(parts)
  assert (whole.answers, whole.task_scores.tolist()) == (parts.answers, parts.task_scores.tolist())


def test_an_episode_ends_where_its_cap_is_spent():
  batch = play(lambda turn: '7' if turn.limit > 1 else '', max_episode_tokens=3)
  for e in range(6):
    spent = [m.spent for m in batch.messages if m.episode == e]
    assert spent == [2, 1]


class _Own(guessing.Guessing):
  def __init__(self, episode):
    self._episode = episode

  def converse(self, talk):
    return self._episode(talk)


def _too_late(talk):
  yield from talk.turn(0, 2)
  return ''


def _twice(talk):
  yield from talk.turn(0, 0)
  yield from talk.turn(0, 0)
  return ''


def _at_once(talk):
  yield from talk.layer((0, 0), 0)
  return ''


def _rewards(agent, value):
  def episode(talk):
    yield from talk.turn(0, 0)
    talk.reward(agent, value)
    return ''

  return episode


def _tells(agent, text):
  def episode(talk):
    yield from talk.turn(0, 0)
    talk.tell(agent, text)
    return ''

  return episode


def _yields(found):
  def episode(talk):
    yield found(talk)
    return ''

  return episode


def _no_answer(talk):
  yield from talk.turn(0, 0)


def _faulty(talk):
  yield from talk.turn(0, 0)
  return talk.nothing


@pytest.mark.parametrize(
  ('episode', 'message'),
  [
    (_too_late, r'takes a turn of agent 0 in round 2, .* with team.rounds=2 does not'),
    (_twice, 'agent 0 in round 0, which was taken before'),
    (_at_once, r'lets agents \(0, 0\) write at once; each must be named once'),
    (_rewards(0, float('nan')), r'TypeError: talk.reward\(0, nan\): must be an agent, 0\.\.1, and'),
    (_rewards(2, 1.0), r'talk.reward\(2, 1.0\): must be'),
    (
      _tells('player1', 'higher'),
      r"talk.tell\('player1', 'higher'\): must be an agent, 0\.\.1, and",
    ),
    (_tells(2, 'higher'), r"TypeError: talk.tell\(2, 'higher'\): must be"),
    (_tells(0, None), r'talk.tell\(0, None\): must be .* and a text'),
    (_yields(lambda talk: talk.turn(0, 0)), r'yielded <generator .*; write: yield from talk\.turn'),
    (
      _yields(lambda talk: None),
      r'converse: TypeError: yielded None; write: yield from talk\.turn',
    ),
    (_yields(lambda talk: [0]), r'yielded \[0\]; write: yield from'),
    (_no_answer, 'converse: TypeError: returned None; must return a text'),
    (_faulty, "converse: AttributeError: .* has no attribute 'nothing'"),
  ],
)
def test_faults_of_an_episode_name_it(episode, message):
  with pytest.raises(ValueError, match=message):
    play(lambda turn: '7', _Own(episode))


def test_worth_needs_the_turns_of_the_topology():
  config = config_file.get_config().to_dict()
  config |= {'algorithm': 'worth'}
  with pytest.raises(ValueError, match=r"advantage.name='worth': task 'guessing' brings its own"):
    config_lib.check(config)
